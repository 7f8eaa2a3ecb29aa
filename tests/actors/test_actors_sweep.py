"""Whatever happens to the supervisor itself: crashed, cancelled at any step, or idle, it leaves nothing running."""

from __future__ import annotations

import math

import pytest
import trio
import trio.testing

from omni_actors._errors import GaveUp
from omni_actors.actors import Backoff, ChildSpec, Intensity, PerChild, Supervisor


class Boom(Exception):
    """A failure of a test's own making."""


def child(name, fails_after=math.inf, lives=1, cleanup=0.0) -> ChildSpec:
    """Ready at once; its first ``lives`` generations fail after ``fails_after`` s; its cleanup takes ``cleanup`` s."""

    async def start(life) -> None:
        life.started()
        try:
            await trio.sleep(fails_after if life.generation <= lives else math.inf)
            raise Boom
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(cleanup)

    return ChildSpec(name, start, start_s=10, stop_s=10)


@pytest.mark.parametrize("crash_on", ["starting b1", "ready a1", "exited b1", "stopping c1"])
async def test_a_crash_of_the_supervisor_leaves_no_shielded_child_behind(crash_on, autojump_clock) -> None:
    """FACTS: it would hang past this move_on_after, for good."""
    before = trio.lowlevel.current_statistics().tasks_living

    def observe(event) -> None:
        if f"{event.kind} {event.name}{event.generation}" == crash_on:
            raise LookupError("a bug")

    children = [child("a"), child("b", fails_after=1), child("c")]
    supervisor = Supervisor(children, strategy="one_for_all", intensity=Intensity(1, 9.0), observe=observe)
    with trio.move_on_after(50) as limit, pytest.raises(LookupError, match="a bug"):
        await supervisor.run()
    assert not limit.cancelled_caught
    assert trio.lowlevel.current_statistics().tasks_living == before
    assert trio.current_time() <= 1


async def test_its_own_error_is_not_lost_when_it_is_cancelled_while_stopping(autojump_clock) -> None:
    supervisor = Supervisor([child("a", cleanup=9), child("b", fails_after=1)], intensity=Intensity(0, 1.0))
    with pytest.raises(GaveUp), trio.move_on_after(5):
        await supervisor.run()
    assert trio.current_time() == 10


async def test_a_later_failure_does_not_shorten_the_backoff_of_a_group(autojump_clock) -> None:
    """b fails at 1 and 4 and backs off to 8; a fails at 5 and is back at 7: b waits for its own time still."""
    starts: list = []
    supervisor = Supervisor(
        [child("a", fails_after=5), child("b", fails_after=1, lives=2)],
        strategy="rest_for_one",
        intensity=PerChild(),
        backoff=Backoff(2.0, max_s=4.0),
        observe=lambda e: starts.append((e.at, f"{e.name}{e.generation}")) if e.kind == "starting" else None,
    )
    with trio.move_on_after(20):
        await supervisor.run()
    assert starts == [(0, "a1"), (0, "b1"), (3, "b2"), (7, "a2"), (8, "b3")]


async def test_a_temporary_child_is_still_owed_its_first_start(autojump_clock) -> None:
    async def slow(life) -> None:
        await trio.sleep(5)
        life.started()
        await trio.sleep_forever()

    children = [child("a", fails_after=1), ChildSpec("t", slow, "temporary", start_s=9, stop_s=9)]
    supervisor = Supervisor(children, strategy="one_for_all", intensity=PerChild())
    async with trio.open_nursery() as nursery:
        with trio.fail_after(60):
            await nursery.start(supervisor.run)
        assert (trio.current_time(), supervisor.state("t")) == (6, "ready")
        await supervisor.stop()


async def test_a_long_life_that_a_group_restart_ended_forgives_too(autojump_clock) -> None:
    ends = {1: 1, 2: 100, 3: 1}  # a: fails at 1, is stopped at 70 with b's group, fails again a second later

    async def start(life) -> None:
        life.started()
        await trio.sleep(ends.get(life.generation, math.inf))
        raise Boom

    a = ChildSpec("a", start, start_s=1, stop_s=1)
    supervisor = Supervisor(
        [a, child("b", fails_after=69, lives=2)], strategy="one_for_all", intensity=PerChild(1, 60.0)
    )
    async with trio.open_nursery() as nursery:
        await nursery.start(supervisor.run)
        await trio.sleep(75)
        assert (supervisor.state("a"), supervisor.state("b")) == ("ready", "ready")
        nursery.cancel_scope.cancel()


class Steps(trio.abc.Instrument):
    """Counts the steps of the run and acts at one of them."""

    def __init__(self, at: int = 0, act=lambda: None) -> None:
        self.count, self.at, self.act = 0, at, act

    def before_task_step(self, task) -> None:
        self.count += 1
        if self.count == self.at:
            self.act()


async def test_an_idle_supervisor_never_wakes(autojump_clock) -> None:
    steps = Steps()
    supervisor = Supervisor([child("a"), child("b")], intensity=PerChild(), backoff=Backoff(1.0, max_s=9.0))
    async with trio.open_nursery() as nursery:
        await nursery.start(supervisor.run)
        await trio.testing.wait_all_tasks_blocked()
        trio.lowlevel.add_instrument(steps)
        await trio.sleep(1000)
        assert steps.count == 1  # this task's own
        await supervisor.stop()


async def test_a_supervisor_without_children_is_ready_and_lives_until_it_is_stopped() -> None:
    supervisor = Supervisor([], intensity=PerChild())
    async with trio.open_nursery() as nursery:
        await nursery.start(supervisor.run)
        await trio.testing.wait_all_tasks_blocked()
        assert len(nursery.child_tasks) == 1
        await supervisor.stop()


def sweep(at: int, log: list) -> tuple[int, int]:
    """One busy run, cancelled at step ``at`` (0: never): how many steps it took, and how many tasks it left."""
    left = 0

    async def main() -> None:
        nonlocal left
        before = trio.lowlevel.current_statistics().tasks_living
        children = [child("a", cleanup=1), child("b", fails_after=2, lives=2), child("c", cleanup=1)]
        options = {"strategy": "rest_for_one", "intensity": Intensity(2, 9.0), "backoff": Backoff(1.0, max_s=9.0)}
        supervisor = Supervisor(children, observe=log.append, **options)
        scope = trio.CancelScope()
        steps.act = scope.cancel
        with scope:
            async with trio.open_nursery() as nursery:
                await nursery.start(supervisor.run)
                await trio.sleep(20)
                await supervisor.stop()
        left = trio.lowlevel.current_statistics().tasks_living - before

    steps = Steps(at)
    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0), instruments=[steps])
    return steps.count, left


def test_cancelled_at_every_step_it_leaves_no_task_and_stops_in_reverse() -> None:
    total, _ = sweep(0, [])
    assert total > 30
    for step in range(1, total + 1):
        log: list = []
        _, left = sweep(step, log)
        assert left == 0, f"step {step}"
        alive: list[str] = []
        for event in log:
            if event.kind == "starting":
                assert event.name not in alive
                alive.append(event.name)
            elif event.kind == "stopping":
                assert event.name == max(alive), f"step {step}: {event.name} was stopped before {max(alive)}"
            elif event.kind in ("exited", "stopped"):
                alive.remove(event.name)
        assert alive == [], f"step {step}"
