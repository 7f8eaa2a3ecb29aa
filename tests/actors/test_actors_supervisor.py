"""The supervisor in plain conversations: order, stops, crashes, cancellation, nesting; I19 among them."""

from __future__ import annotations

import logging
import math

import pytest
import trio
import trio.testing

from omni_actors._errors import ActorDied, ActorError, ActorNotReady, GaveUp, UsageError
from omni_actors.actors import Ask, Backoff, ChildSpec, Intensity, PerChild, Supervisor, run_actor

NEVER = Intensity(0, 1.0)


class Boom(Exception):
    """A failure of a test's own making."""


async def forever(life) -> None:
    life.started()
    await trio.sleep_forever()


def dies_after(seconds, lives=1, error=Boom):
    """Its first ``lives`` generations fail ``seconds`` after they were ready; later ones run on."""

    async def start(life) -> None:
        life.started(life.generation)
        await trio.sleep(seconds if life.generation <= lives else math.inf)
        raise error("as planned")

    return start


def slow_to_stop(seconds):
    async def start(life) -> None:
        life.started()
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(seconds)

    return start


def child(name, start=forever, restart="permanent", start_s=10, stop_s=10) -> ChildSpec:
    return ChildSpec(name, start, restart, start_s=start_s, stop_s=stop_s)


def supervise(*children, intensity=NEVER, **options):
    """A supervisor and the log of its events, as "kind name generation"."""
    log: list[str] = []
    options.setdefault("observe", lambda e: log.append(f"{e.kind} {e.name}{e.generation}"))
    return Supervisor(children, intensity=intensity, **options), log


def only(log, kind) -> list[str]:
    return [line.split()[1] for line in log if line.split()[0] == kind]


async def test_starts_in_order_and_stops_in_reverse(autojump_clock) -> None:
    async def slow_to_start(life) -> None:
        await trio.sleep(1)
        await forever(life)

    supervisor, log = supervise(child("a", slow_to_start), child("b", slow_to_start), child("c", slow_to_stop(2)))
    async with trio.open_nursery() as nursery:
        assert await nursery.start(supervisor.run) is supervisor
        assert trio.current_time() == 2
        await supervisor.stop()
        assert trio.current_time() == 4
    starts = ["starting a1", "ready a1", "starting b1", "ready b1", "starting c1", "ready c1"]
    stops = ["stopping c1", "stopped c1", "stopping b1", "stopped b1", "stopping a1", "stopped a1"]
    assert log == starts + stops


async def test_together_means_together(autojump_clock) -> None:
    children = [child(name, slow_to_stop(3)) for name in "abc"]
    supervisor, log = supervise(*children, start_order="together", stop_order="together")
    async with trio.open_nursery() as nursery:
        await nursery.start(supervisor.run)
        assert log[:3] == ["starting a1", "starting b1", "starting c1"]
        await supervisor.stop()
        assert trio.current_time() == 3


async def test_value_and_state(autojump_clock) -> None:
    supervisor, _ = supervise(child("a", dies_after(1)), intensity=Intensity(1, 5.0), backoff=Backoff(2.0, max_s=2.0))
    assert supervisor.state("a") == "stopped"
    async with trio.open_nursery() as nursery:
        await nursery.start(supervisor.run)
        assert (supervisor.state("a"), supervisor.value("a")) == ("ready", 1)
        await trio.sleep(2)
        assert supervisor.state("a") == "backing_off"
        with pytest.raises(ActorNotReady, match="'a' is backing_off"):
            supervisor.value("a")
        await trio.sleep(2)
        assert (supervisor.state("a"), supervisor.value("a")) == ("ready", 2)
        await supervisor.stop()
    assert supervisor.state("a") == "stopped"
    with pytest.raises(KeyError):
        supervisor.state("nobody")


async def test_a_failed_start_leaves_as_itself_after_the_others_were_stopped_in_reverse() -> None:
    async def broken(life) -> None:
        raise Boom("no")

    supervisor, log = supervise(child("a"), child("b"), child("c", broken), child("d"))
    with pytest.raises(Boom, match="no"):
        await supervisor.run()
    assert only(log, "stopped") == ["b1", "a1"]
    assert "starting d1" not in log


async def test_together_the_first_failed_start_cancels_the_others_at_once(autojump_clock) -> None:
    async def loading(life) -> None:
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(1)

    async def broken(life) -> None:
        await trio.sleep(5)
        raise Boom

    children = [child("a", slow_to_stop(1)), *(child(n, loading) for n in "bc"), child("d", broken)]
    supervisor, log = supervise(*children, start_order="together")
    with pytest.raises(Boom):
        await supervisor.run()
    assert trio.current_time() == 7  # b and c in the same second, then the one that was ready
    assert only(log, "stopping") == ["c1", "b1", "a1"]


async def test_start_s_is_a_deadline(autojump_clock) -> None:
    async def silent(life) -> None:
        try:
            await trio.sleep_forever()
        finally:
            life.started()  # too late, and ignored

    supervisor, log = supervise(child("a", silent, start_s=3))
    with pytest.raises(ActorNotReady, match="'a' was not ready within 3 s") as caught:
        await supervisor.run()
    assert (trio.current_time(), caught.value.generation) == (3, 1)
    assert log == ["starting a1", "exited a1"]


async def test_what_the_late_child_died_of_is_the_cause(autojump_clock) -> None:
    async def silent(life) -> None:
        try:
            await trio.sleep_forever()
        finally:
            raise Boom("its own words")

    supervisor, _ = supervise(child("a", silent))
    with pytest.raises(ActorNotReady) as caught:
        await supervisor.run()
    assert isinstance(caught.value.__cause__, Boom)


async def test_ending_before_ready_is_a_failure() -> None:
    async def nothing(life) -> None:
        return

    supervisor, _ = supervise(child("a", nothing, restart="transient"))
    with pytest.raises(ActorNotReady, match="'a' ended before it was ready"):
        await supervisor.run()


async def test_started_twice_is_an_error_of_the_child() -> None:
    async def eager(life) -> None:
        life.started()
        life.started()

    supervisor, _ = supervise(child("a", eager))
    with pytest.raises(GaveUp) as caught:
        await supervisor.run()
    assert isinstance(caught.value.__cause__, ActorError)


async def test_one_restart_too_many_stops_all_in_order_and_gives_up_once(autojump_clock) -> None:
    """I19."""
    children = [child("a"), child("b", dies_after(1, lives=9)), child("c")]
    supervisor, log = supervise(*children, intensity=Intensity(2, 10.0))
    with pytest.raises(GaveUp, match="'b'") as caught:
        await supervisor.run()
    assert isinstance(caught.value.__cause__, Boom)
    assert only(log, "starting") == ["a1", "b1", "c1", "b2", "b3"]
    assert log[-4:] == ["stopping c1", "stopped c1", "stopping a1", "stopped a1"]


async def test_the_fourth_failure_marks_a_child_down_and_the_supervisor_lives_on(autojump_clock) -> None:
    supervisor, log = supervise(child("a", dies_after(1, lives=9)), intensity=PerChild())
    async with trio.open_nursery() as nursery:
        await nursery.start(supervisor.run)
        await trio.sleep(100)
        assert supervisor.state("a") == "down"
        assert (only(log, "starting"), only(log, "down")) == (["a1", "a2", "a3", "a4"], ["a4"])
        await supervisor.stop()
    assert supervisor.state("a") == "down"


async def test_a_restart_that_never_gets_ready_counts_like_any_failure(autojump_clock) -> None:
    async def worse(life) -> None:
        if life.generation > 1:
            raise Boom
        life.started()

    supervisor, log = supervise(child("a", worse), child("b"), intensity=PerChild())
    async with trio.open_nursery() as nursery:
        await nursery.start(supervisor.run)
        await trio.sleep(1)
        assert (only(log, "exited"), supervisor.state("b")) == (["a1", "a2", "a3", "a4"], "ready")
        await supervisor.stop()


@pytest.mark.parametrize(
    ("strategy", "restarted"),
    [("one_for_one", ["b2"]), ("rest_for_one", ["b2", "c2"]), ("one_for_all", ["a2", "b2", "c2"])],
)
async def test_strategies(strategy, restarted, autojump_clock) -> None:
    children = [child("a"), child("b", dies_after(1)), child("c"), child("t", restart="temporary")]
    supervisor, log = supervise(*children, strategy=strategy, intensity=Intensity(1, 10.0))
    async with trio.open_nursery() as nursery:
        await nursery.start(supervisor.run)
        await trio.sleep(2)
        assert only(log, "starting")[4:] == restarted
        stopped = ["t1", "c1", "a1"][: {"one_for_one": 0, "rest_for_one": 2, "one_for_all": 3}[strategy]]
        assert only(log, "stopped") == stopped
        assert supervisor.state("t") == ("ready" if strategy == "one_for_one" else "stopped")
        await supervisor.stop()


async def test_restarts_of_single_children_do_not_wait_for_each_other(autojump_clock) -> None:
    async def slow_second_start(life) -> None:
        await trio.sleep(100 if life.generation == 2 else 0)
        await dies_after(1)(life)

    children = [child("a", slow_second_start, start_s=200), child("b", dies_after(2))]
    supervisor, _ = supervise(*children, intensity=PerChild())
    async with trio.open_nursery() as nursery:
        await nursery.start(supervisor.run)
        await trio.sleep(3)
        assert (supervisor.state("a"), supervisor.value("b")) == ("starting", 2)
        await supervisor.stop()


async def test_overdue_is_said_and_still_waited_for(autojump_clock) -> None:
    supervisor, log = supervise(child("a", slow_to_stop(30), stop_s=4))
    async with trio.open_nursery() as nursery:
        await nursery.start(supervisor.run)
        await supervisor.stop()
        assert trio.current_time() == 30
    assert log[2:] == ["stopping a1", "overdue a1", "stopped a1"]


async def test_an_error_while_stopping_is_told_but_not_raised(caplog) -> None:
    async def bad_cleanup(life) -> None:
        life.started()
        try:
            await trio.sleep_forever()
        finally:
            raise Boom("in cleanup")

    supervisor = Supervisor([child("a", bad_cleanup)], intensity=NEVER)
    with caplog.at_level(logging.WARNING, logger="omni_actors.actors"):
        async with trio.open_nursery() as nursery:
            await nursery.start(supervisor.run)
            await supervisor.stop()
    assert [(r.getMessage(), str(r.exc_info[1])) for r in caplog.records] == [("child a #1: stopped", "in cleanup")]


async def test_stop_twice_joins_and_stop_of_nothing_returns(autojump_clock) -> None:
    supervisor, log = supervise(child("a", slow_to_stop(5)))
    await supervisor.stop()
    async with trio.open_nursery() as nursery:
        await nursery.start(supervisor.run)
        nursery.start_soon(supervisor.stop)
        with trio.move_on_after(1) as impatient:
            await supervisor.stop()
        assert impatient.cancelled_caught
        await supervisor.stop()
        assert trio.current_time() == 5
    await supervisor.stop()
    assert only(log, "stopping") == ["a1"]


async def test_stop_during_start(autojump_clock) -> None:
    async def loading(life) -> None:
        await trio.sleep(9)

    events: list = []
    supervisor, _ = supervise(child("a"), child("b", loading), child("c"), observe=events.append)
    async with trio.open_nursery() as nursery:

        async def stop_soon() -> None:
            await trio.sleep(1)
            await supervisor.stop()

        nursery.start_soon(stop_soon)
        with pytest.raises(ActorNotReady, match="stopped before"):
            await nursery.start(supervisor.run)
    assert trio.current_time() == 1
    assert [(e.name, e.error) for e in events if e.kind == "stopped"] == [("b", None), ("a", None)]
    assert [e.name for e in events if e.kind == "starting"] == ["a", "b"]


async def test_stop_during_backoff_is_immediate(autojump_clock) -> None:
    supervisor, log = supervise(
        child("a", dies_after(1)),
        child("b", slow_to_stop(3)),
        intensity=Intensity(1, 9.0),
        backoff=Backoff(500, max_s=500),
    )
    async with trio.open_nursery() as nursery:
        await nursery.start(supervisor.run)
        await trio.sleep(2)
        assert log[-1] == "backing_off a1"
        nursery.start_soon(supervisor.stop)
        await trio.testing.wait_all_tasks_blocked()
        assert (supervisor.state("a"), log[-1]) == ("stopped", "stopping b1")
    assert trio.current_time() == 5


async def test_it_can_run_again_with_new_generations_but_not_twice_at_once() -> None:
    supervisor, log = supervise(child("a"))
    for _ in range(2):
        async with trio.open_nursery() as nursery:
            await nursery.start(supervisor.run)
            with pytest.raises(UsageError, match="already running"):
                await supervisor.run()
            await supervisor.stop()
    assert only(log, "starting") == ["a1", "a2"]


def test_names_are_unique() -> None:
    with pytest.raises(UsageError, match="same name"):
        supervise(child("a"), child("a"))


async def test_a_keyboard_interrupt_leaves_at_once_after_stopping_the_children(autojump_clock) -> None:
    supervisor, log = supervise(child("a"), child("b", dies_after(1, error=KeyboardInterrupt)), intensity=PerChild())
    with pytest.raises(KeyboardInterrupt):
        await supervisor.run()
    assert log[-3:] == ["exited b1", "stopping a1", "stopped a1"]


async def test_children_are_shielded_so_that_cancelling_stops_in_order(autojump_clock) -> None:
    supervisor, log = supervise(*(child(name, slow_to_stop(1)) for name in "abc"))
    with trio.move_on_after(5):
        await supervisor.run()
    assert trio.current_time() == 8
    assert log[-6:] == ["stopping c1", "stopped c1", "stopping b1", "stopped b1", "stopping a1", "stopped a1"]


async def test_nested_supervisors(autojump_clock) -> None:
    """The inner one gives up, the outer one restarts it whole; a stop goes through both, in reverse."""
    inner, log = supervise(child("x"), child("y", dies_after(1, lives=2)), intensity=Intensity(1, 10.0))
    children = [child("first"), child("inner", inner.run), child("last")]
    outer, outer_log = supervise(*children, intensity=Intensity(1, 10.0))
    async with trio.open_nursery() as nursery:
        await nursery.start(outer.run)
        assert outer.value("inner") is inner
        await trio.sleep(5)
        assert only(log, "starting") == ["x1", "y1", "y2", "x2", "y3"]
        assert only(outer_log, "starting") == ["first1", "inner1", "last1", "inner2"]
        await outer.stop()
    assert only(log, "stopped")[-2:] == ["y3", "x2"]
    assert only(outer_log, "stopped") == ["last1", "inner2", "first1"]


async def test_an_actor_as_a_child(autojump_clock) -> None:
    async def fragile(mailbox) -> None:
        async with trio.open_nursery():
            question = await mailbox.receive()
            assert isinstance(question, Ask)
            raise Boom(question.message)

    supervisor, _ = supervise(
        child("actor", lambda life: run_actor(fragile, name="actor", capacity=1, task_status=life)),
        intensity=Intensity(1, 10.0),
    )
    async with trio.open_nursery() as nursery:
        await nursery.start(supervisor.run)
        first = supervisor.value("actor")
        with pytest.raises(ActorDied):
            await first.ask("?", deadline=math.inf)
        await trio.testing.wait_all_tasks_blocked()
        assert supervisor.value("actor") is not first
        await supervisor.stop()
