"""A pytest plugin for vLLM's own tests: their servers and engines are ours, or vLLM's own for comparison.

Set ``OMNI_VLLM_TESTS`` to ``ours`` or ``vllm``; it is loaded with ``-p``, before any of the tests is imported. Both run
the tiny thinker under the names that the tests use. One server at a time is kept for the tests that ask for the same.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tools.vllm_tests import _engines, _servers

if TYPE_CHECKING:
    import pytest

PLAN = json.loads(Path(os.environ["OMNI_VLLM_TESTS_PLAN"]).read_text())
MODEL: str = PLAN["model"]


def _here(name: Any) -> Any:
    """The tiny model's folder, for every model that the tests name."""
    return name if os.path.isdir(str(name)) else MODEL


def _tokenizers() -> None:
    import transformers
    import vllm.tokenizers
    from vllm.transformers_utils import repo_utils

    get, load = vllm.tokenizers.get_tokenizer, transformers.AutoTokenizer.from_pretrained

    def get_tokenizer(tokenizer_name: Any, *args: Any, **more: Any) -> Any:
        return get(_here(tokenizer_name), *args, **more)

    def from_pretrained(name: Any, *args: Any, **more: Any) -> Any:
        return load(_here(name), *args, **more)

    class Hub:
        """Nothing is downloaded."""

        def snapshot_download(self, *_: Any, **__: Any) -> str:
            return MODEL

    vllm.tokenizers.get_tokenizer = get_tokenizer
    transformers.AutoTokenizer.from_pretrained = from_pretrained
    repo_utils.hf_api = Hub


def _configs() -> None:
    from vllm.config import ModelConfig

    begin = ModelConfig.__init__

    def __init__(self: Any, *args: Any, **more: Any) -> None:
        begin(self, *args, **(more | {"model": _here(more["model"])} if "model" in more else more))

    ModelConfig.__init__ = __init__


def _images() -> None:
    from PIL import Image
    from vllm.assets.image import ImageAsset

    ImageAsset.pil_image = property(lambda self: Image.new("RGB", (8, 8)))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what the list leaves out."""
    out = [item for item in items if any(words in item.nodeid for words in PLAN["without"])]
    items[:] = [item for item in items if item not in out]
    config.hook.pytest_deselected(items=out)


def pytest_sessionfinish() -> None:
    """The last server goes."""
    _servers.stop_kept()
    _engines.stop_kept()


_tokenizers()
_configs()
_images()
_servers.install(MODEL, tuple(PLAN["names"]), os.environ["OMNI_VLLM_TESTS"])
_engines.install(MODEL, os.environ["OMNI_VLLM_TESTS"])
