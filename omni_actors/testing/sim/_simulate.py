"""One run of one scenario: virtual time, in-memory engines, a seeded scheduler, and everything that was seen.

Nothing of the runtime is replaced. What could hang does so in virtual time: when every task waits and no deadline is
left, the clock jumps to the watchdog's (``patience_s``), and the history says who waited, and where.
"""

from __future__ import annotations

import logging
import random
import signal
import zlib
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import trio
import trio.testing

from omni_actors._buggify import injecting
from omni_actors.testing._core_wire import FakeOutput, FakeOutputs, FakeUtility
from omni_actors.testing._world import MemoryWorld
from omni_actors.wire import omni

from ._driver import Driver
from ._history import Crashed, History, Noted, Process, State, Wire
from ._scenario import Shutdown
from ._schedule import scheduled_by
from ._tasks import DEADLOCK_S, patience_s, watchdog
from ._wiretap import TappedTransport

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from omni_actors.config import PipelineSpec
    from omni_actors.testing._launcher import MemoryProcess
    from omni_actors.transport import MemoryTransport, Transport

    from ._scenario import Op, Scenario

__all__ = [
    "DEADLOCK_S", "SETTLE_S", "MemoryFaults", "Sites", "Watch", "conditions", "in_memory", "left_over", "simulate",
    "watched",
]  # fmt: skip

SETTLE_S = 150
"""Virtual seconds after the last operation in which every deadline of a request, a hang or a restart has passed."""


class Sites:
    """Which sites are active in this run, and how often: each with its own chance, drawn from the seed."""

    def __init__(self, seed: int, *, active: float = 0.3) -> None:
        self._random = random.Random(seed)
        self._seed, self._active = seed, active
        self._chances: dict[str, float] = {}
        self.fired: set[str] = set()

    def __call__(self, site: str) -> bool:
        chance = self._chances.get(site)
        if chance is None:
            # From the site's name, so that a run does not depend on which site is met first.
            own = random.Random(zlib.crc32(site.encode()) ^ self._seed)
            chance = self._chances[site] = own.choice((0.1, 0.5, 1.0)) if own.random() < self._active else 0.0
        if chance and self._random.random() < chance:
            self.fired.add(site)
            return True
        return False


def simulate(
    scenario: Scenario, pipeline: PipelineSpec | None = None, *, at_step: Mapping[int, Op] | None = None
) -> History:
    """Run a scenario; return its history. The same scenario gives the same history, byte for byte (I25).

    ``pipeline``: instead of the scenario's own stages; its engines must be fakes. ``at_step``: more operations, each
    done right after that step of the scheduler, wherever its batch then is (``History.steps`` says how many there
    were). Never raises for what the runtime does: that is in the history, for the checkers to judge.
    """
    history = History(pipeline or scenario.pipeline(), scenario)

    async def main() -> None:
        driver, world = in_memory(history, scenario)
        watch.driver = driver
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_perform, driver, scenario)
            await driver.hold(lambda: _settle(driver, scenario))
            nursery.cancel_scope.cancel()
        driver.record(State(at=driver.now, when="closed", counts=left_over(world.left)))

    watch = Watch(at_step)
    due = patience_s(history.pipeline, SETTLE_S + max((op.at for op in scenario.ops), default=0.0))
    clock = trio.testing.MockClock(autojump_threshold=0)
    with conditions(scenario) as sites:
        try:
            trio.run(watched, main, history, lambda: due, clock=clock, instruments=[watch])
        except BaseExceptionGroup as group:
            if group.subgroup(KeyboardInterrupt) is not None:
                raise KeyboardInterrupt from None  # somebody's Ctrl-C is no finding
            history.events.append(Crashed(at=0.0, where="the run", error=repr(group.exceptions[0])))
    history.steps, history.sites = watch.steps, frozenset(sites.fired)
    watch.reraise()
    return history


@contextmanager
def conditions(scenario: Scenario) -> Iterator[Sites]:
    """What a run of the scenario needs around it: its schedule, its sites, no log."""
    sites = Sites(scenario.seed)
    with ExitStack() as stack:
        stack.enter_context(scheduled_by(scenario.seed))
        stack.enter_context(_silent_log())
        stack.enter_context(injecting(sites if scenario.buggify else lambda site: False))
        yield sites


def in_memory(history: History, scenario: Scenario) -> tuple[Driver, MemoryWorld]:
    """A driver on an in-memory world of its own; its wire and its processes leave their traces in the history."""

    def tap(transport: MemoryTransport) -> Transport:
        return TappedTransport(transport, history.events.append)

    def observe(what: Any, process: MemoryProcess, code: int | None, key: str) -> None:
        launch = process.launch
        where: dict[str, Any] = {
            "stage": launch.stage, "replica": launch.replica, "generation": launch.generation,
        }  # fmt: skip
        if key:
            driver.record(Noted(at=driver.now, what=what, key=key, **where))
            return
        by: Literal["fate", "us"] = "fate" if faults.acting else "us"
        driver.record(Process(at=driver.now, what=what, pid=process.pid, code=code, by=by, **where))

    world = MemoryWorld(tap=tap, observe=observe, salt="sim", hwm=scenario.hwm, queue_limit=scenario.queue_limit)
    faults = MemoryFaults(world)
    driver = Driver(history.pipeline, world, faults, history)
    return driver, world


class MemoryFaults:
    """What an in-memory world can do to its engines. ``acting``: it is doing it right now."""

    def __init__(self, world: MemoryWorld) -> None:
        self._world = world
        self.acting = False

    def _find(self, stage: str, replica: int) -> MemoryProcess | None:
        try:
            process = self._world.launcher.find(stage, replica)
        except (LookupError, AttributeError):
            return None
        return process if process.returncode is None else None

    def _act(self, stage: str, replica: int, act: Callable[[MemoryProcess], object]) -> int | None:
        process = self._find(stage, replica)
        if process is None:
            return None
        self.acting = True
        try:
            done = act(process)
        finally:
            self.acting = False
        return None if done is False else process.launch.generation

    def signal(self, stage: str, replica: int, signum: int, member: str = "engine") -> int | None:
        """Send it a signal. Here an engine has no workers, and its next generation is not waited for."""
        if member != "engine":
            return None
        signum = signal.Signals(signum)
        return self._act(stage, replica, lambda process: process.kill(signum))

    def exit(self, stage: str, replica: int, code: int) -> int | None:
        """Let it end by itself."""
        return self._act(stage, replica, lambda process: process.exit(code))

    def inject(self, stage: str, replica: int, what: str, history: History) -> int | None:
        """Let it say what it should not."""
        core = history.pipeline.stage(stage).engine == "fake-core"
        return self._act(stage, replica, lambda process: process.inject(_nonsense(what, core, process, history)))


def _nonsense(what: str, core: bool, process: MemoryProcess, history: History) -> list[bytes]:
    launch = process.launch
    here = (launch.stage, launch.replica, launch.generation)
    own = [e.key for e in history.of(Wire) if e.what == "add" and e.place == here]
    ended = {e.key for e in history.of(Wire) if e.what in ("finished", "released", "failed") or e.way == "unsent"}
    others = [e.key for e in history.of(Wire) if e.what == "add" and e.place != here and e.key not in ended]
    past = next((key for key in reversed(own) if key in ended), "0-none-0")
    match what:
        case "garbage":
            return [b"\xc1 no message"]
        case "empty":
            return [b""]
        case "truncated":
            whole = _output(core, own[-1] if own else "0-none-0")[0]
            return [whole[: len(whole) // 2]]
        case "late release" if core:
            return [msgspec.msgpack.encode(FakeOutputs(utility_output=FakeUtility.answer(0, False)))]
        case "late release":
            return [bytes(frame) for frame in omni.encode(omni.Released(past))]
        case "late output":
            return _output(core, past)
        case _:
            return _output(core, others[-1] if others else "0-none-0")


def _output(core: bool, key: str) -> list[bytes]:
    if core:
        return [msgspec.msgpack.encode(FakeOutputs(outputs=[FakeOutput(key, [63])]))]
    return [bytes(frame) for frame in omni.encode(omni.Output(key, 0, {}, {"text": "?"}))]


# ---------------------------------------------------------------------- the run


class Watch(trio.abc.Instrument):
    """Looks after every step of the scheduler, and does what is to be done at a step."""

    LOOK = 32

    def __init__(self, at_step: Mapping[int, Op] | None = None) -> None:
        self.driver: Driver | None = None
        self.steps = 0
        self._at_step = at_step or {}
        self._error: Exception | None = None

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        self.steps += 1
        if (driver := self.driver) is not None:
            try:
                self._look(driver)
            except Exception as error:
                # trio would log it and take the instrument off: a run that nobody looks at.
                self._error = self._error or error

    def _look(self, driver: Driver) -> None:
        driver.after_step()
        if self.steps % self.LOOK == 0:
            driver.look()
        if (op := self._at_step.get(self.steps)) is not None:
            driver.do(op)

    def reraise(self) -> None:
        """Raise what went wrong while looking: a bug of the simulation's own."""
        if self._error is not None:
            raise self._error


@contextmanager
def _silent_log() -> Iterator[None]:
    """What a run logs is not a report: thousands of engines die in it, as planned."""
    logger = logging.getLogger("omni_actors")
    before = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(before)


async def watched(main: Callable[[], Any], history: History, due: Callable[[], float]) -> None:
    """The run's main task: ``main`` under the watchdog, which ends it when ``due()`` has come."""
    with trio.CancelScope() as scope:
        # A task of the system's, so that it is none of those that a run may leave behind.
        trio.lowlevel.spawn_system_task(watchdog, trio.lowlevel.current_task(), scope, history, due)
        await main()


async def _perform(driver: Driver, scenario: Scenario) -> None:
    """The operations, each at its time."""
    for op in sorted(scenario.ops, key=lambda op: op.at):
        await trio.sleep_until(driver.begun + op.at)
        driver.do(op)
    driver.performed.set()


async def _settle(driver: Driver, scenario: Scenario) -> None:
    """The body of the block: stays until all was done, and what was asked has ended or never will."""
    await driver.performed.wait()
    for _ in range(SETTLE_S):
        await trio.sleep(1.0)
        # What ends in this very moment has tasks that are cancelled and have not run since.
        await trio.testing.wait_all_tasks_blocked()
        if driver.empty:
            driver.quiet()
            break
    # A task of its own: whoever holds the runtime may be cancelled now, whoever called shutdown is not.
    driver.do(Shutdown())
    await driver.shut.wait()


def left_over(left: Mapping[str, int]) -> dict[str, int]:
    """What the runtime left in its world, and the tasks that still are, but for the one that asks."""
    nurseries = trio.lowlevel.current_task().child_nurseries
    return {**left, "tasks": sum(len(nursery.child_tasks) for nursery in nurseries)}
