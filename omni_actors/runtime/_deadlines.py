"""Every timer of the requests in one task: it sleeps until the earliest, and forever when there is none."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable

import attrs
import trio

__all__ = ["Deadlines", "Timer"]

_FEW = 64
"""Entries that are never worth a sweep."""


@attrs.define(eq=False)
class Timer:
    """One absolute moment. ``cancel`` is immediate and idempotent; a cancelled timer holds no reference to its act."""

    act: Callable[[], None] | None
    _owner: Deadlines

    def cancel(self) -> None:
        """Never fire."""
        if self.act is not None:
            self.act = None
            self._owner.live -= 1


class Deadlines:
    """``at`` is synchronous and cheap; ``run`` is the one task that fires. ``live`` timers can still fire.

    Cancelled ones stay in the heap until they are the earliest, or half of it: most requests end long before their
    deadlines.
    """

    def __init__(self) -> None:
        self.live = 0
        self._heap: list[tuple[float, int, Timer]] = []
        self._numbers = itertools.count()
        self._sleep: trio.CancelScope | None = None

    def at(self, when: float, act: Callable[[], None]) -> Timer:
        """Call ``act`` in the deadlines' task at ``when`` (trio time). It must not block or raise."""
        if when == math.inf:
            return Timer(None, self)
        timer = Timer(act, self)
        self.live += 1
        if len(self._heap) > max(_FEW, 2 * self.live):
            self._sweep()
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
                timer.cancel()
                act()

    def _sweep(self) -> None:
        self._heap[:] = [entry for entry in self._heap if entry[2].act is not None]
        heapq.heapify(self._heap)
