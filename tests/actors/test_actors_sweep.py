"""Whatever happens to the supervisor itself: crashed, cancelled at any step, or idle, it leaves nothing running."""

from __future__ import annotations

import math

import pytest
import trio
import trio.testing

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
