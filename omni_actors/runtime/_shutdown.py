"""The shutdown ladder: running → draining → aborting → stopping → closed, each rung with one absolute deadline.

A rung's deadline is fixed when it is entered; later calls of ``request`` join the first and may only shorten it. Keeps
I22 (admission closes first, every request has its terminal before the first engine is stopped) and I23 (bounded,
ordered, idempotent, callable at any moment). Killing and reaping are each replica's own last steps: an engine that has
not stopped by the deadline is destroyed with its whole group.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import attrs
import trio

if TYPE_CHECKING:
    from omni_actors.stages import Ending, StageSupervisor

    from ._handler import RequestHandler

__all__ = ["Ladder", "ShutdownReport"]


@attrs.frozen(kw_only=True)
class ShutdownReport:
    """How a shutdown went. Engines as ``stage/replica``; ``seconds`` per rung; ``unreaped`` pids survived SIGKILL.

    ``stopped`` engines exited with 0 when asked, ``terminated`` otherwise when asked, ``killed`` did not in time.
    """

    stopped: tuple[str, ...] = ()
    terminated: tuple[str, ...] = ()
    killed: tuple[str, ...] = ()
    unreaped: tuple[int, ...] = ()
    aborted_requests: int = 0
    unconfirmed_leases: int = 0
    seconds: Mapping[str, float] = attrs.field(factory=dict)


class Ladder:
    """``run`` is a task of the runtime's; everybody else requests and joins."""

    def __init__(
        self, handler: RequestHandler, stages: Sequence[StageSupervisor], *, drain_s: float, abort_s: float
    ) -> None:
        self.state = "running"
        self.observer: Callable[[], None] = lambda: None  # called with every change of state
        self._handler, self._stages = handler, stages
        self._limits = {"draining": drain_s, "aborting": abort_s, "stopping": math.inf}
        self._requested, self._closed = trio.Event(), trio.Event()
        self._scope: trio.CancelScope | None = None
        self._seconds: dict[str, float] = {}
        self._report = ShutdownReport()

    @property
    def report(self) -> ShutdownReport:
        """Complete once ``join`` has returned."""
        return self._report

    def request(
        self, *, drain_s: float | None = None, abort_s: float | None = None, stop_s: float | None = None
    ) -> None:
        """Begin, or join and shorten. Synchronous; seconds from now for the present rung, else from its start."""
        for rung, seconds in (("draining", drain_s), ("aborting", abort_s), ("stopping", stop_s)):
            if seconds is not None:
                self._limits[rung] = min(self._limits[rung], seconds)
        self._handler.admission.close()
        self._requested.set()
        if self.state == "running":
            self._enter("draining")
        now = trio.current_time()
        if self._scope is not None:
            self._scope.deadline = min(self._scope.deadline, now + self._limits[self.state])
        elif self.state == "stopping":
            for stage in self._stages:
                stage.hurry(now + self._limits["stopping"])

    async def join(self) -> ShutdownReport:
        """Wait until it is closed. Cancelling ends the waiting only."""
        await self._closed.wait()
        return self._report

    async def run(self) -> None:
        """Wait for the first request, then climb down."""
        await self._requested.wait()
        try:
            await self._rung("draining", self._handler.drained)
            aborted = self._handler.abort_all("the runtime is shutting down")
            await self._rung("aborting", self._handler.emptied)
            unconfirmed = len(self._handler.table.leases)
            with self._timed("stopping"):
                await self._stop_engines()
            self._report = self._summary(aborted, unconfirmed)
        finally:
            self._enter("closed")
            self._closed.set()

    def _enter(self, state: str) -> None:
        self.state = state
        self.observer()

    async def _rung(self, name: str, done: Callable[[], Awaitable[None]]) -> None:
        with self._timed(name), trio.CancelScope(deadline=trio.current_time() + self._limits[name]) as self._scope:
            await done()
        self._scope = None

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        self._enter(name)
        begun = trio.current_time()
        try:
            yield
        finally:
            self._seconds[name] = trio.current_time() - begun

    async def _stop_engines(self) -> None:
        """All at once. Bounded by each replica's own deadlines: stop, kill, and the grace of resource trackers."""
        stop_by = trio.current_time() + self._limits["stopping"]
        async with trio.open_nursery() as nursery:
            for stage in self._stages:
                nursery.start_soon(stage.stop, stop_by)

    def _summary(self, aborted: int, unconfirmed: int) -> ShutdownReport:
        endings = [ending for stage in self._stages for ending in stage.endings]
        return ShutdownReport(
            stopped=_named(endings, "stopped"),
            terminated=_named(endings, "terminated"),
            killed=_named(endings, "killed"),
            unreaped=tuple(pid for ending in endings for pid in ending.unreaped),
            aborted_requests=aborted,
            unconfirmed_leases=unconfirmed,
            seconds=dict(self._seconds),
        )


def _named(endings: Sequence[Ending], how: str) -> tuple[str, ...]:
    return tuple(f"{ending.stage}/{ending.replica}" for ending in endings if ending.how == how)
