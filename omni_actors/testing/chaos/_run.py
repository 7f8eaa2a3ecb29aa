"""One schedule on real processes: a fresh start, the faults at their times, a stop, and what is left of it all.

The clock of a schedule is a real one that stands still at ``OPEN_AT`` until the pipeline is open (or never will be):
what comes before happens while it starts. Everything that was seen is in the history, as in a simulation.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import trio

from omni_actors.testing.invariants import Violation, check
from omni_actors.testing.os_state import OsState, descendants
from omni_actors.testing.sim._driver import Driver
from omni_actors.testing.sim._history import Crashed, Deadlocked, History, State
from omni_actors.testing.sim._schedule import scheduled_by
from omni_actors.testing.sim._simulate import Watch

from ._left import Belongings, left_behind
from ._schedule import OPEN_AT
from ._world import ProcessWorld

if TYPE_CHECKING:
    from collections.abc import Iterator

    from omni_actors.config import PipelineSpec
    from omni_actors.testing.sim._scenario import Scenario

__all__ = ["Chaos", "Outcome", "private_base"]

SETTLE_S = 10.0
"""After the last operation: longer than any deadline of a request here."""

SLACK_S = 2.0
"""What a checker allows a real clock: a busy machine runs late, and a group's end takes time of its own. To it comes
``SLACK_PER_LATE_S`` times the worst delay that a timer of the run had: engines had worse ones.
"""

SLACK_PER_LATE_S = 5.0

WATCHDOG_S = 120.0
START_S = 300.0
_LOOK_S = 0.02


@attrs.frozen(kw_only=True)
class Outcome:
    """One run: what was seen, which invariants did not hold, what was left (by kind), and how long it took."""

    history: History
    violations: tuple[Violation, ...]
    left: dict[str, list[str]]
    seconds: float

    @property
    def good(self) -> bool:
        """Whether nothing was wrong."""
        return not (self.violations or self.left)


@contextmanager
def private_base() -> Iterator[Path]:
    """A folder of its own for this process's run folders, for the length of the block."""
    base = Path(tempfile.mkdtemp(prefix="oa-"))  # short: socket paths must be
    before = os.environ.get("XDG_RUNTIME_DIR")
    os.environ["XDG_RUNTIME_DIR"] = str(base)
    try:
        yield base
    finally:
        if before is None:
            del os.environ["XDG_RUNTIME_DIR"]
        else:
            os.environ["XDG_RUNTIME_DIR"] = before
        shutil.rmtree(base, ignore_errors=True)


class Chaos:
    """Runs schedules one after the other in this process. Children that it already has are nobody's concern.

    ``base`` is where its run folders are made. The first run is the baseline of the others' descriptors.
    """

    def __init__(self, base: Path) -> None:
        self._base = base
        self._threads = OsState.now().threads
        self._strangers = frozenset(descendants(os.getpid()))
        self._baseline: OsState | None = None

    def run(self, scenario: Scenario, pipeline: PipelineSpec | None = None) -> Outcome:
        """Start, hurt and stop a pipeline: the scenario's own, or the given one. Raises nothing but KeyboardInterrupt.

        Blocks: for the scenario's seconds, the start and the stop; never for more than ``WATCHDOG_S`` beyond a start.
        """
        began = time.monotonic()
        history = History(pipeline or scenario.pipeline(), scenario, slack_s=SLACK_S)
        seen = Belongings(self._strangers)
        with scheduled_by(scenario.seed):
            try:
                watch = Watch()
                trio.run(_watched, history, scenario, seen, watch, instruments=[watch])
            except BaseExceptionGroup as group:
                if group.subgroup(KeyboardInterrupt) is not None:
                    raise KeyboardInterrupt from group
                history.events.append(Crashed(at=0.0, where="the run", error=repr(group.exceptions[0])))
        if self._baseline is None:
            self._baseline = OsState.now()
        left = left_behind(seen, self._baseline, self._base)
        return Outcome(history=history, violations=tuple(check(history)), left=left, seconds=time.monotonic() - began)

    def count_threads(self, idle_s: float = 12.0) -> None:
        """Take the threads of now, when trio's idle ones are gone, as the baseline: a library has its own by now."""
        time.sleep(idle_s)  # nothing tells when a thread of trio's cache has ended: it keeps them for 10 s
        self._threads = OsState.now().threads

    def extra_threads(self, within_s: float = 25.0) -> int:
        """How many threads this process has more than at first, when trio's idle ones are gone."""
        deadline = time.monotonic() + within_s
        # Nothing tells when a thread of trio's cache has ended: it keeps them for 10 s.
        while (extra := OsState.now().threads - self._threads) > 0 and time.monotonic() < deadline:
            time.sleep(0.1)
        return max(0, extra)


async def _watched(history: History, scenario: Scenario, seen: Belongings, watch: Watch) -> None:
    world = ProcessWorld()
    driver = world.driver = watch.driver = Driver(history.pipeline, world, world, history)
    with trio.move_on_after(START_S + WATCHDOG_S) as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_perform, driver, scenario, seen)
            nursery.start_soon(_allow_for_delays, history)
            await driver.hold(lambda: _settle(driver))
            nursery.cancel_scope.cancel()
    if scope.cancelled_caught:
        driver.record(Deadlocked(at=driver.now, tasks="the watchdog ended the run"))
    seen.look()
    counts = {"processes": len(seen.living()), "tasks": _other_tasks()}
    driver.record(State(at=driver.now, when="closed", counts=counts))


def _other_tasks() -> int:
    """Tasks below the one that asks: the run is over, there should be none."""
    return sum(len(nursery.child_tasks) for nursery in trio.lowlevel.current_task().child_nurseries)


async def _perform(driver: Driver, scenario: Scenario, seen: Belongings) -> None:
    """The operations, each at its time on the schedule's clock."""
    begun = driver.begun
    waited = False
    for op in sorted(scenario.ops, key=lambda op: op.at):
        if op.at >= OPEN_AT and not waited:
            await _opened_or_closed(driver)
            begun, waited = trio.current_time() - OPEN_AT, True
        await trio.sleep_until(begun + op.at)
        seen.look()
        driver.do(op)
    driver.performed.set()


async def _allow_for_delays(history: History) -> None:
    """Widen the history's slack by how late this process itself ran. Until cancelled."""
    while True:
        due = trio.current_time() + _LOOK_S
        await trio.sleep_until(due)
        late_s = trio.current_time() - due
        history.slack_s = max(history.slack_s, SLACK_S + SLACK_PER_LATE_S * late_s)


async def _opened_or_closed(driver: Driver) -> None:
    async def either(event: trio.Event) -> None:
        await event.wait()
        nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(either, driver.opened)
        nursery.start_soon(either, driver.closed)


async def _settle(driver: Driver) -> None:
    """The body of the block: stays until all was done, and what was asked has ended or never will."""
    await driver.performed.wait()
    with trio.move_on_after(SETTLE_S):
        # Nothing tells when the last engine has let go of the last request, nor when its last job has unwound.
        while await _looked(driver):
            continue
    if driver.empty:
        driver.quiet()


async def _looked(driver: Driver) -> bool:
    """Whether, twice in a row, there still was something in the runtime."""
    for _ in range(2):
        await trio.sleep(_LOOK_S)
        if driver.omni is not None and not driver.empty:
            return True
    return False
