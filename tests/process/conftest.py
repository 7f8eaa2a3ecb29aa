from __future__ import annotations

import os
import select
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import trio

from omni_actors.testing.os_state import children


@dataclass
class Watch:
    """Holds pidfds, so that a pid that is used again is not taken for its predecessor."""

    fds: dict[int, int] = field(default_factory=dict)

    def add(self, *pids: int) -> None:
        for pid in pids:
            self.fds[pid] = os.pidfd_open(pid)

    def alive_after(self, seconds: float) -> set[int]:
        """Who still runs when all have ended or the time is over. A zombie has ended."""
        deadline = time.monotonic() + seconds
        alive = set()
        for pid, fd in self.fds.items():
            poller = select.poll()
            poller.register(fd, select.POLLIN)
            if not poller.poll(max(0.0, deadline - time.monotonic()) * 1000):
                alive.add(pid)
        return alive

    def close(self) -> None:
        for fd in self.fds.values():
            os.close(fd)


@pytest.fixture
def watch() -> Iterable[Callable[..., Watch]]:
    """``watch(pid, …)`` gives something that can wait for their end."""
    with ExitStack() as stack:

        def make(*pids: int) -> Watch:
            one = Watch()
            stack.callback(one.close)
            one.add(*pids)
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


@pytest.fixture
async def in_time() -> AsyncIterator[None]:
    """Fails what hangs, long before anybody wonders."""
    with trio.fail_after(90):
        yield
