"""Every timer of the requests in one task: it sleeps until the earliest, and forever when there is none."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable

import attrs
import trio

__all__ = ["Deadlines", "Timer"]


@attrs.define(eq=False)
class Timer:
    """One absolute moment. ``cancel`` is immediate and idempotent; a cancelled timer holds no reference to its act."""

    act: Callable[[], None] | None

    def cancel(self) -> None:
        """Never fire."""
        self.act = None


class Deadlines:
    """``at`` is synchronous and cheap; ``run`` is the one task that fires."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Timer]] = []  # cancelled ones stay until they are the earliest
        self._numbers = itertools.count()
        self._sleep: trio.CancelScope | None = None

    def __len__(self) -> int:
        """Timers that can still fire."""
        return sum(timer.act is not None for _, _, timer in self._heap)

    def at(self, when: float, act: Callable[[], None]) -> Timer:
        """Call ``act`` in the deadlines' task at ``when`` (trio time). It must not block or raise."""
        timer = Timer(act)
        if when < math.inf:
            heapq.heappush(self._heap, (when, next(self._numbers), timer))
            if self._sleep is not None and when < self._sleep.deadline:
                self._sleep.deadline = when
        return timer

    async def run(self) -> None:
        """Fire timers until cancelled."""
        while True:
            self._fire(trio.current_time())
            with trio.CancelScope(deadline=self._heap[0][0] if self._heap else math.inf) as self._sleep:
                await trio.sleep_forever()
            self._sleep = None

    def _fire(self, now: float) -> None:
        heap = self._heap
        while heap and (heap[0][0] <= now or heap[0][2].act is None):
            _, _, timer = heapq.heappop(heap)
            if (act := timer.act) is not None:
                timer.act = None
                act()
