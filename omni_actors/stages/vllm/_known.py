"""The names that the installed vLLM knows, read from its source: importing it takes seconds, this a tenth of one."""

from __future__ import annotations

import ast
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["known_engine_args", "known_pooling_params", "known_sampling_params", "vllm_folder"]


@cache
def vllm_folder() -> Path | None:
    """Where vLLM is installed; None if it is not."""
    spec = find_spec("vllm")
    return Path(spec.origin).parent if spec is not None and spec.origin else None


@cache
def known_engine_args() -> frozenset[str]:
    """The fields of AsyncEngineArgs. Empty if vLLM is not installed or is laid out otherwise."""
    return _fields("engine/arg_utils.py", ("EngineArgs", "AsyncEngineArgs"))


@cache
def known_sampling_params() -> frozenset[str]:
    """The public fields of SamplingParams. Empty if vLLM is not installed or is laid out otherwise."""
    return _fields("sampling_params.py", ("SamplingParams",))


@cache
def known_pooling_params() -> frozenset[str]:
    """The fields of PoolingParams. Empty if vLLM is not installed or is laid out otherwise."""
    return _fields("pooling_params.py", ("PoolingParams",))


def _fields(file: str, classes: tuple[str, ...]) -> frozenset[str]:
    folder = vllm_folder()
    path = folder / file if folder is not None else None
    if path is None or not path.is_file():
        return frozenset()
    return frozenset(_annotated(ast.parse(path.read_bytes()), classes))


def _annotated(module: ast.Module, classes: tuple[str, ...]) -> Iterator[str]:
    for node in module.body:
        if isinstance(node, ast.ClassDef) and node.name in classes:
            for line in node.body:
                if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name) and line.target.id[0] != "_":
                    yield line.target.id
