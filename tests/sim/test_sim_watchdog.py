"""The watchdog: a run that can never go on ends within milliseconds, and its history says who waited, and where."""

from __future__ import annotations

import inspect
import time

import pytest
import trio
import trio.testing

from omni_actors.runtime._handler import RequestHandler
from omni_actors.runtime._shutdown import Ladder
from omni_actors.testing.invariants import check
from omni_actors.testing.sim._guest import Pump
from omni_actors.testing.sim._history import Closed, Deadlocked, History
from omni_actors.testing.sim._scenario import Scenario, Stage, Submit
from omni_actors.testing.sim._simulate import simulate
from omni_actors.testing.sim._tasks import DEADLOCK_S, patience_s, waiting_tasks

QUIET = Scenario(stages=(Stage(name="t", output="text"),), ops=(Submit(at=0.1, request="a"),))
STUCK = Scenario(
    stages=(Stage(name="v", wire="omni", output="audio", behaviour={"stuck_at_chunk": 1}),),
    ops=(Submit(at=0.1, request="a"),),
)


async def drained_never(self: RequestHandler) -> None:
    await trio.sleep_forever()


async def drained_never_shielded(self: RequestHandler) -> None:
    with trio.CancelScope(shield=True):
        await trio.sleep_forever()


async def without_a_deadline(self: Ladder, name: str, done) -> None:
    with self._timed(name):
        await done()


@pytest.fixture
def a_ladder_without_deadlines(monkeypatch) -> None:
    monkeypatch.setattr(Ladder, "_rung", without_a_deadline)


def quickly(run, *args) -> History:
    """What ``run`` returns, if it does so in little time, of this process alone: the machine may be busy."""
    begun = time.process_time()
    history = run(*args)
    assert time.process_time() - begun < 2
    return history


def pumped(scenario: Scenario) -> History:
    with Pump(scenario) as pump:
        for op in scenario.ops:
            pump.do(op)
        return pump.finish()


def place_in(function) -> str:
    """Where the function's last line is, as the watchdog names it."""
    lines, first = inspect.getsourcelines(function)
    return f"test_sim_watchdog.py:{first + len(lines) - 1} in {function.__qualname__}"


@pytest.mark.usefixtures("a_ladder_without_deadlines")
@pytest.mark.parametrize("run", [simulate, pumped])
@pytest.mark.parametrize("never", [drained_never, drained_never_shielded])
def test_a_deadlock_is_seen_and_the_waiters_are_named(run, never, monkeypatch) -> None:
    """I14. The run ends even where a shield without a deadline keeps the cancellation out."""
    monkeypatch.setattr(RequestHandler, "drained", never)
    history = quickly(run, QUIET)
    (deadlock,) = history.of(Deadlocked)
    lines = deadlock.tasks.splitlines()
    assert any(place_in(never) in line and "(sleep_forever)" in line for line in lines)
    assert any("omni_actors/runtime/_shutdown.py:" in line and "Ladder.join" in line for line in lines)
    assert any("omni_actors/testing/_fake_core.py:" in line for line in lines)
    assert any(isinstance(event, Closed) for event in history.events)
    assert "I14" in {violation.invariant for violation in check(history)}


@pytest.mark.usefixtures("a_ladder_without_deadlines")
def test_what_beats_for_ever_does_not_hide_it(monkeypatch) -> None:
    """An engine that owes work beats every second: time goes on, and still nothing ever happens."""
    monkeypatch.setattr(RequestHandler, "drained", drained_never)
    history = quickly(simulate, STUCK)
    (deadlock,) = history.of(Deadlocked)
    assert deadlock.at == patience_s(history.pipeline, 0.1 + 150)


@pytest.mark.usefixtures("a_ladder_without_deadlines")
def test_the_same_run_names_the_same_tasks(monkeypatch) -> None:
    """I25. Nurseries keep their tasks in sets."""
    monkeypatch.setattr(RequestHandler, "drained", drained_never)
    assert simulate(QUIET).to_json() == simulate(QUIET).to_json()


def test_a_run_that_only_takes_long_is_left_alone() -> None:
    slow = Scenario(
        stages=(Stage(name="t", output="text", behaviour={"start_s": 15.0, "token_s": 2.0, "tokens": 12}),),
        ops=(Submit(at=16.0, request="a"), Submit(at=3000.0, request="b")),
    )
    history = simulate(slow)
    assert not list(history.of(Deadlocked))
    assert check(history) == []


def test_its_patience_is_longer_than_every_deadline_and_ends() -> None:
    pipeline = QUIET.pipeline()
    assert pipeline.drain_s + pipeline.abort_s + pipeline.stage("t").deadlines.start_s < patience_s(pipeline, 0.0)
    assert patience_s(pipeline, 10.0) == patience_s(pipeline, 0.0) + 10
    assert patience_s(pipeline, 1e9) == DEADLOCK_S


async def test_the_tree_has_every_task_with_its_place() -> None:
    async def waits(event: trio.Event) -> None:
        await event.wait()

    async def parent(event: trio.Event) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(waits, event, name="second")
            nursery.start_soon(waits, event, name="first")

    event = trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(parent, event, name="above")
        await trio.testing.wait_all_tasks_blocked()
        (above,) = nursery.child_tasks
        lines = waiting_tasks(above).splitlines()
        event.set()
    assert [line.partition(":")[0] for line in lines] == ["above", "  first", "  second"]
    assert "parent (NurseryManager.__aexit__)" in lines[0]
    assert all("waits (Event.wait)" in line for line in lines[1:])
