from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from omni_actors.testing.os_state import Watch, children


@pytest.fixture
def watch() -> Iterable[Callable[..., Watch]]:
    """``watch(pid, …)`` gives something that can wait for their end."""
    with ExitStack() as stack:

        def make(*pids: int) -> Watch:
            one = Watch(pids)
            stack.callback(one.close)
            return one

        yield make


@pytest.fixture
def run_base(monkeypatch) -> Iterator[Path]:
    """Where this test's runtimes make their run folders; empty again when it ends, and no child is left either."""
    base = Path(tempfile.mkdtemp(prefix="oa-"))  # not tmp_path: socket paths must be short
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(base))
    before = children(os.getpid())
    try:
        yield base
        assert list(base.iterdir()) == []
        assert children(os.getpid()) == before
    finally:
        shutil.rmtree(base, ignore_errors=True)
