from __future__ import annotations

import os
import select
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field

import pytest


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
