from __future__ import annotations

import select
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field

import os

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
        alive = dict(self.fds)
        while alive and (left := deadline - time.monotonic()) > 0:
            poller = select.poll()
            for fd in alive.values():
                poller.register(fd, select.POLLIN)
            ready = {fd for fd, _ in poller.poll(left * 1000)}
            alive = {pid: fd for pid, fd in alive.items() if fd not in ready}
        return set(alive)

    def close(self) -> None:
        for fd in self.fds.values():
            os.close(fd)


@pytest.fixture()
def watch() -> Iterable[Callable[..., Watch]]:
    """``watch(pid, …)`` gives something that can wait for their end."""
    with ExitStack() as stack:

        def make(*pids: int) -> Watch:
            one = Watch()
            stack.callback(one.close)
            one.add(*pids)
            return one

        yield make
