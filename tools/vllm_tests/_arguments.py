"""A test's server arguments, for the tiny model: as vLLM's own server takes them, and as a pipeline's.

vLLM's tests name models of billions of parameters. Here each of them is the tiny thinker, under the same name, in
float32, with the context that it has; adapters and images are left out. Both servers get the same.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import attrs
import yaml

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["Asked", "Option", "for_vllm", "options_of", "pipeline_of", "possible"]

_LEFT_OUT = (
    "dtype", "max-model-len", "gpu-memory-utilization", "trust-remote-code", "limit-mm-per-prompt", "enforce-eager",
    "enable-lora", "lora-modules", "max-lora-rank", "max-cpu-loras", "max-loras", "served-model-name", "model",
    "quantization", "runner", "max-num-batched-tokens", "kv-cache-memory-bytes", "load-format", "tokenizer",
    "max-num-seqs", "seed", "structured-outputs-config.backend",
)  # fmt: skip
_TINY = {"dtype": "float32", "max-model-len": "256", "kv-cache-memory-bytes": "67108864"}
_OPTION = re.compile(r"--?[a-zA-Z][\w.-]*")


@attrs.frozen
class Option:
    """One option, without its dashes, and its values."""

    name: str
    values: tuple[str, ...]

    @property
    def tokens(self) -> list[str]:
        """As on a command line."""
        return [f"--{self.name}", *self.values]


@attrs.frozen
class Asked:
    """A server that a test asks for: the tiny ``model``, called ``names``."""

    model: str
    names: tuple[str, ...]
    options: tuple[Option, ...]


def options_of(arguments: Sequence[str]) -> tuple[Option, ...]:
    """The options of a command line."""
    found: list[Option] = []
    for token in arguments:
        if _OPTION.fullmatch(token.partition("=")[0]):
            name, equals, value = token.partition("=")
            name = {"p": "port"}.get(name.lstrip("-"), name.lstrip("-").replace("_", "-"))
            found.append(Option(name, (value,) if equals else ()))
        elif found:
            found[-1] = attrs.evolve(found[-1], values=(*found[-1].values, token))
    return tuple(found)


def possible(options: Sequence[Option]) -> tuple[Option, ...]:
    """Those that the tiny model can have."""
    return tuple(option for option in options if option.name.removeprefix("no-") not in _LEFT_OUT)


def for_vllm(asked: Asked) -> list[str]:
    """The command line of vLLM's own server."""
    tiny = [part for name, value in _TINY.items() for part in (f"--{name}", value)]
    own = [token for option in asked.options for token in option.tokens]
    return ["--model", asked.model, "--served-model-name", *asked.names, "--enforce-eager", *tiny, *own]


def pipeline_of(asked: Asked, of_the_server: frozenset[str], texts: frozenset[str]) -> tuple[dict[str, Any], list[str]]:
    """A pipeline of one stage as data, and the command line of ``omni-actors serve`` after it.

    ``of_the_server``: the names of those options that belong to the server; the others are the engine's. ``texts``:
    those whose values are text, whatever they look like.
    """
    engine = {name.replace("-", "_"): yaml.safe_load(value) for name, value in _TINY.items()} | {"enforce_eager": True}
    own, extra = [], ["--served-model-name", *asked.names]
    drain_s = 0.0  # vLLM's default: what runs is aborted
    for option in asked.options:
        if option.name in ("host", "port"):
            own += option.tokens
        elif option.name == "shutdown-timeout":
            drain_s = float(option.values[0])
        elif _dest(option.name) in of_the_server or option.name.removeprefix("no-").replace("-", "_") in of_the_server:
            extra += option.tokens
        else:
            engine |= _engine_argument(option, texts)
    stage = {"engine": "vllm", "model": asked.model, "output": "text", "engine_args": engine}
    data = {"name": "vllm-tests", "drain_s": drain_s, "stages": {"thinker": stage}}
    return data, [*own, "--", *extra]


def _dest(name: str) -> str:
    return name.replace("-", "_")


def _engine_argument(option: Option, texts: frozenset[str]) -> Mapping[str, Any]:
    whole, dot, part = option.name.partition(".")
    if dot:  # a field of one of vLLM's nested configurations
        return {_dest(whole): _engine_argument(attrs.evolve(option, name=part), texts)}
    if _dest(option.name) in texts:
        return {_dest(option.name): option.values[0]}
    if option.name.startswith("no-") and not option.values:
        return {_dest(option.name.removeprefix("no-")): False}
    values = [yaml.safe_load(value) for value in option.values]
    return {_dest(option.name): True if not values else values[0] if len(values) == 1 else values}
