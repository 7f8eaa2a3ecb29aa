"""A simulated run that is pumped from outside, step by step: for state machines, where time is one of the rules.

The same run as ``simulate``'s, but synchronous to its caller: trio in guest mode, on a virtual clock that stands still
until ``advance``. ``Pump`` owns the run; nothing of it happens outside of ``Pump``'s methods. A task of the pump's own
inside the run does what the caller asks and tells when everybody else waits; trio never waits for the operating system.
"""

from __future__ import annotations

from collections import deque
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import msgspec
import outcome
import trio
import trio.testing

from ._history import Crashed, History, State
from ._scenario import Scenario, Shutdown
from ._simulate import SETTLE_S, Watch, conditions, in_memory, left_over, watched
from ._tasks import patience_s

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from omni_actors.config import PipelineSpec

    from ._driver import Driver
    from ._scenario import Op

__all__ = ["Pump"]


class Pump:
    """``with Pump(scenario) as pump: pump.do(Submit(…)); pump.advance(0.5); …; history = pump.finish()``.

    ``scenario`` gives the pipeline, the seed and the limits; its ``ops`` are not done: they become those that ``do``
    was given, with their times, so that ``history.scenario`` run again is nearly the same run. Every method returns
    when all tasks are blocked. Leaving the block without ``finish`` finishes. One pump at a time per process.
    """

    def __init__(self, scenario: Scenario, pipeline: PipelineSpec | None = None) -> None:
        self._scenario = msgspec.structs.replace(scenario, ops=())
        self.history = History(pipeline or scenario.pipeline(), self._scenario)
        self._clock = trio.testing.MockClock()
        self._watch = Watch()
        self._ticks: deque[Callable[[], object]] = deque()
        self._wanted: deque[Callable[[], object]] = deque()
        self._blocked = False
        self._next_s = 0.0
        self._last_s = 0.0
        self._over: trio.Event
        self._outcome: outcome.Outcome[Any] | None = None
        self._around = ExitStack()

    # ------------------------------------------------------------------ for the caller

    @property
    def driver(self) -> Driver:
        """The run's driver: what is open, what is quiet."""
        assert self._watch.driver is not None
        return self._watch.driver

    @property
    def now(self) -> float:
        """Virtual seconds from the beginning."""
        return self._clock.current_time()

    @property
    def over(self) -> bool:
        """Whether the run has ended: ``finish`` was called, or the runtime failed."""
        return self._outcome is not None

    def settle(self) -> None:
        """Let every task run until it waits. Does nothing in a run that is over."""
        self._blocked = False
        while self._ticks and not self._blocked:
            self._ticks.popleft()()
        self._watch.reraise()
        assert self._blocked or self.over, "the run stands still, but not for its pump"

    def do(self, op: Op) -> None:
        """Carry out one operation of a scenario, now."""
        if not self.over:
            done = (*self._scenario.ops, msgspec.structs.replace(op, at=self.now))
            self._scenario = self.history.scenario = msgspec.structs.replace(self._scenario, ops=done)
            self._inside(lambda: self.driver.do(op))

    def health(self) -> None:
        """Ask for the health, and write it down."""
        self._inside(lambda: self.driver.health())

    def advance(self, seconds: float) -> None:
        """Let virtual time pass. What is due in between happens in its order, each thing at its time."""
        end = self._last_s = self.now + seconds
        while not self.over and self.now < end:
            self._clock.jump(min(self._next_s, end - self.now))
            self.settle()

    def finish(self) -> History:
        """End as ``simulate`` does: wait for what is live, shut down, leave. Ends what hangs, by the watchdog."""
        waited = 0
        while not self.over and waited < SETTLE_S and not self.driver.empty:
            self.advance(1.0)
            waited += 1
        if not self.over:
            self._inside(lambda: self._over.set())
        while not self.over:
            self._clock.jump(self._next_s)
            self.settle()
        self.history.steps = self._watch.steps
        return self.history

    # ------------------------------------------------------------------ the run

    def __enter__(self) -> Pump:
        self._around.enter_context(conditions(self._scenario))
        trio.lowlevel.start_guest_run(
            watched,
            self._main,
            self.history,
            self._due,
            run_sync_soon_threadsafe=self._ticks.append,
            done_callback=self._done,
            host_uses_signal_set_wakeup_fd=True,
            clock=self._clock,
            instruments=[self._watch],
        )
        self.settle()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with self._around:
            if not self.over:
                self.finish()

    def _due(self) -> float:
        """When the watchdog loses patience: long after the last thing that the caller did."""
        return patience_s(self.history.pipeline, self._last_s + SETTLE_S)

    def _done(self, result: outcome.Outcome[Any]) -> None:
        self._outcome = result
        if isinstance(result, outcome.Error):
            crash = Crashed(at=0.0, where="the run", error=repr(result.error))
            self.history.events.append(crash)

    async def _main(self) -> None:
        self._over = trio.Event()
        driver, world = in_memory(self.history, self._scenario)
        self._watch.driver = driver
        trio.lowlevel.spawn_system_task(self._pace)
        await driver.hold(self._body)
        driver.record(State(at=driver.now, when="closed", counts=left_over(world.left)))

    async def _pace(self) -> None:
        """Does what the caller wants whenever all others wait. Ends with the run; until then trio has it to wait for,
        and so never waits for the operating system.
        """
        while True:
            await trio.testing.wait_all_tasks_blocked()
            if self._wanted:
                self._wanted.popleft()()
            else:
                self._next_s = trio.lowlevel.current_statistics().seconds_to_next_deadline
                self._blocked = True

    def _inside(self, job: Callable[[], object]) -> None:
        if not self.over:
            self._wanted.append(job)
            self.settle()

    async def _body(self) -> None:
        """What holds the runtime until the caller finishes, and then ends as ``simulate`` does."""
        await self._over.wait()
        if self.driver.empty:
            self.driver.quiet()
        self.driver.do(Shutdown())
        await self.driver.shut.wait()
