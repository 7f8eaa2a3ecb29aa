"""I22 to I25: each checker is silent about a run that shows the thing done right, and speaks about one done wrong."""

from __future__ import annotations

from functools import cache

import attrs
import msgspec
import pytest

from omni_actors.testing.invariants import INVARIANTS, Facts
from omni_actors.testing.invariants._lifecycle import replays
from omni_actors.testing.sim._history import (
    Accepted,
    Closed,
    Crashed,
    Deadlocked,
    History,
    Process,
    Refused,
    ShutdownCalled,
    ShutdownReturned,
    StageSaid,
    State,
    Submitting,
    TerminalSeen,
)
from omni_actors.testing.sim._scenario import Cancel, Kill, Scenario, Shutdown, Stage, Submit
from omni_actors.testing.sim._simulate import simulate

TEXT = Stage(name="t", output="text", replicas=2, behaviour={"token_s": 0.1, "ignore_sigterm": True})
CHAIN = (TEXT, Stage(name="v", wire="omni", inputs=("t",), output="audio"))


@cache
def closing(seed: int = 5) -> History:
    """Shutdown while requests run and one comes, called three times, with engines that do not stop when asked."""
    ops = (
        *(Submit(at=0.1, request=name) for name in "ab"),
        Kill(at=0.3, stage="t"),
        Shutdown(at=0.5),
        Submit(at=0.6, request="late"),
        Shutdown(at=0.7, drain_s=0.2),
        Shutdown(at=1.5, stop_s=1.0),
    )
    return simulate(Scenario(stages=CHAIN, ops=ops, seed=seed))


def found(history: History, name: str) -> str:
    """What the checker says, one violation per line."""
    return "\n".join(map(str, INVARIANTS[name](Facts(history))))


def edited(history: History, change) -> History:
    """The same history with ``change(event)``, a list, in the place of each event."""
    return attrs.evolve(history, events=[new for event in history.events for new in change(event)])


def told(*events) -> History:
    """A history written by hand."""
    return History(Scenario(stages=CHAIN).pipeline(), None, list(events))


def request(at: float, name: str = "a") -> list:
    return [Submitting(at=at, request=name, id=name), Accepted(at=at, request=name, key=f"{name}-x")]


def process(at: float, what: str, pid: int = 7, code: int | None = None) -> Process:
    return Process(at=at, what=what, stage="t", replica=0, generation=1, pid=pid, code=code)


def closed(at: float = 9.0, **counts: int) -> list:
    return [Closed(at=at, opened=True), State(at=at, when="closed", counts=counts)]


# ---------------------------------------------------------------------- I22


def test_the_door_closes_first_and_engines_stop_last() -> None:
    history = closing()

    assert [event.error for event in history.of(Refused)] == ["ShuttingDown"]
    assert {event.kind for event in history.of(TerminalSeen)} >= {"failed", "aborted"}
    assert found(history, "I22") == ""


def test_a_request_that_is_let_in_after_the_door_was_closed_is_found() -> None:
    history = told(ShutdownCalled(at=0.5, call=1), *request(0.6))
    before = told(request(0.4)[0], ShutdownCalled(at=0.5, call=1), request(0.6)[1])

    assert "request a was submitted at 0.6 s and accepted, although shutdown had been called at 0.5 s" in found(
        history, "I22"
    )
    assert found(before, "I22") == ""


@pytest.mark.parametrize(
    "stop",
    [
        process(1.0, "signalled", code=15),
        StageSaid(at=1.0, stage="t", replica=0, generation=1, kind="stopping"),
    ],
)
def test_an_engine_that_is_stopped_before_a_request_has_ended_is_found(stop) -> None:
    end = TerminalSeen(at=1.0, request="a", kind="aborted")

    assert "stage t, replica 0, generation 1 was told to stop at 1 s, while request a" in found(
        told(*request(0.4), stop, end), "I22"
    )
    assert found(told(*request(0.4), end, stop), "I22") == ""


def test_a_signal_of_fate_is_no_stop() -> None:
    fate = msgspec.structs.replace(process(1.0, "signalled", code=15), by="fate")

    assert found(told(*request(0.4), fate, process(1.1, "signalled", code=9)), "I22") == ""


# ---------------------------------------------------------------------- I23


def test_shutdowns_join_and_are_bounded() -> None:
    history = closing()
    returns = list(history.of(ShutdownReturned))

    assert len(returns) == 4, "three of the scenario, one of the simulation's end"
    assert returns[0].killed, "which took the whole of stop_s"
    assert found(history, "I23") == ""


def test_a_cancelled_runtime_is_left_in_time() -> None:
    history = simulate(Scenario(stages=CHAIN, ops=(Submit(at=0.1, request="a"), Cancel(at=0.3))))

    assert [event.by for event in history.of(ShutdownCalled)] == ["leave"]
    assert found(history, "I23") == ""


def test_a_shutdown_that_never_returns_or_returns_twice_is_found() -> None:
    call, back = ShutdownCalled(at=1.0, call=3), ShutdownReturned(at=2.0, call=3, report="r")

    assert "shutdown call 3, made at 1 s, returned 0 times" in found(told(call), "I23")
    assert "shutdown call 3, made at 1 s, returned 2 times" in found(told(call, back, back), "I23")


def test_a_shutdown_is_due_by_the_shortest_limits_that_anybody_asked_for() -> None:
    first, second = ShutdownCalled(at=1.0, call=1), ShutdownCalled(at=2.0, call=2, drain_s=0.0, abort_s=1.0, stop_s=0.5)

    def ended(at: float) -> History:
        return told(first, second, *(ShutdownReturned(at=at, call=call, report="r") for call in (1, 2)))

    # From 2 s on: nothing to drain, 1 s to abort, 0.5 s to stop, twice 1 s to kill.
    assert found(ended(5.5), "I23") == ""
    assert found(ended(5.6), "I23").count("returned at 5.6 s; its deadlines allow 5.5 s") == 2
    # Alone, the first has 5 s, 2 s, 3 s and twice 1 s.
    assert found(told(first, ShutdownReturned(at=13.0, call=1, report="r")), "I23") == ""


def test_a_request_that_outlives_the_draining_is_found() -> None:
    calls = [ShutdownCalled(at=1.0, call=1), ShutdownCalled(at=2.0, call=2, drain_s=0.5)]
    back = [ShutdownReturned(at=4.0, call=call, report="r") for call in (1, 2)]

    def ended(at: float) -> History:
        return told(*request(0.5), *calls, TerminalSeen(at=at, request="a", kind="aborted"), *back)

    assert found(ended(2.5), "I23") == ""
    assert "request a ended at 2.6 s; draining was to be over by 2.5 s" in found(ended(2.6), "I23")


def test_engines_that_are_asked_to_stop_too_late_are_found() -> None:
    stop = StageSaid(at=3.5, stage="v", replica=0, generation=2, kind="stopping")
    history = told(ShutdownCalled(at=1.0, call=1, drain_s=0.0, by="leave"), stop)

    assert "stage v, replica 0, generation 2, the first of all, was told to stop at 3.5 s; stopping was due at 3 s" in (
        found(history, "I23")
    )


def test_a_block_that_takes_too_long_to_leave_is_found() -> None:
    leave = ShutdownCalled(at=1.0, call=1, by="leave", drain_s=0.0)

    assert found(told(leave, *closed(8.0)), "I23") == ""
    assert "the runtime's block, left at 1 s, was over at 8.5 s instead of 8 s" in found(
        told(leave, *closed(8.5)), "I23"
    )


def test_two_reports_of_one_shutdown_are_found() -> None:
    last = list(closing().of(ShutdownReturned))[-1]
    other = msgspec.structs.replace(last, report="all was well")
    history = edited(closing(), lambda e: [other if e == last else e])

    assert "returned two reports" in found(history, "I23")
    assert "all was well" in found(history, "I23")


# ---------------------------------------------------------------------- I24


def test_nothing_survives() -> None:
    spawned = [event.pid for event in closing().of(Process) if event.what == "spawned"]
    exited = [event.pid for event in closing().of(Process) if event.what == "exited"]

    assert len(spawned) >= 3
    assert sorted(spawned) == sorted(exited)
    assert found(closing(), "I24") == ""


def test_nothing_survives_a_start_that_failed() -> None:
    mute = Stage(name="v", wire="omni", inputs=("t",), output="audio", behaviour={"exit_at_start": 4})
    history = simulate(Scenario(stages=(TEXT, mute), ops=(Submit(at=0.1, request="a"),)))

    assert [event.error for event in history.of(Closed)] == ["StartupFailed"]
    assert found(history, "I24") == ""


def test_what_is_left_is_found() -> None:
    assert (
        found(told(*closed(processes=1, sockets=0, tasks=2)), "I24") == "I24: left behind at 9 s: 1 processes, 2 tasks"
    )
    assert "nobody looked at what was left" in found(told(Closed(at=9.0, opened=True)), "I24")
    assert found(told(Deadlocked(at=1e6, tasks="")), "I24") == ""


def test_a_process_that_is_not_reaped_is_found() -> None:
    survivor = told(process(0.0, "spawned"), *closed())
    reported = told(ShutdownReturned(at=8.0, call=1, report="r", unreaped=(7,)), *closed())

    assert (
        "process 7 of stage t, replica 0, generation 1, spawned at 0 s, was alive when the runtime was closed"
        in found(survivor, "I24")
    )
    assert found(told(process(0.0, "spawned"), process(1.0, "exited"), *closed()), "I24") == ""
    assert "shutdown call 1 left the processes (7,) at 8 s" in found(reported, "I24")
    assert "ended at 1 s without having been alive" in found(told(process(1.0, "exited"), *closed()), "I24")


# ---------------------------------------------------------------------- I25


def test_the_same_run_has_the_same_history() -> None:
    again = closing.__wrapped__()

    assert again is not closing()
    assert list(replays(closing(), again)) == []
    assert found(closing(), "I25") == ""


def test_another_schedule_is_another_history() -> None:
    (violation,) = replays(closing(5), closing(6))

    assert violation.invariant == "I25"
    assert "of the same run is once" in violation.message


def test_a_history_that_ends_early_differs_where_it_ends() -> None:
    short = attrs.evolve(closing(), events=closing().events[:-1])
    (violation,) = replays(closing(), short)

    assert violation.events == (len(short.events),)
    assert violation.message.endswith("and once missing")


def test_time_that_goes_back_is_found() -> None:
    events = [*request(0.5), TerminalSeen(at=0.4, request="a", kind="finished")]

    assert "is at 0.4 s, after one at 0.5 s" in found(told(*events), "I25")
    assert found(told(*events[:2], Crashed(at=0.0, where="the run", error="")), "I25") == ""
