"""The order of the whole suite: what starts vLLM engines comes last, the tests that share one set of them at the end.

So the shared engines, children of this process, are not there while other tests count children, files and threads.
Also a disk that fills, for whatever writes files.
"""

from __future__ import annotations

import asyncio
import importlib.util
import resource
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import trio_asyncio

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

trio_asyncio._loop._FakedPolicy.policy = asyncio.DefaultEventLoopPolicy()
"""Or else ``asyncio.run`` means a loop of trio-asyncio's from the moment that any test has imported it."""


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: (item.get_closest_marker("engine") is not None, "tests/engines/" in str(item.path)))


@pytest.fixture
def room_for() -> Callable[[int], AbstractContextManager[None]]:
    """``with room_for(nbytes)``: a real limit of the kernel's, past which writing a file fails as on a full disk."""

    @contextmanager
    def limited(nbytes: int) -> Iterator[None]:
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    return limited


@pytest.fixture(scope="session")
def tiny_diffusion(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a real Stable Diffusion pipeline of 32 by 32 pixels: real classes, random weights."""
    path = Path(__file__).parent / "engines" / "tiny_pipelines.py"
    found = importlib.util.spec_from_file_location("tiny_pipelines_of_all", path)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    folder: Path = module.stable_diffusion(tmp_path_factory.mktemp("tiny") / "tiny-diffusion")
    return folder
