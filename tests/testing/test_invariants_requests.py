"""I0 to I10 on real runs, where all is right; then I0 to I5 and I10 on histories by hand: each checker speaks exactly
about what it should. I6 to I9 are in ``test_invariants_outputs``.
"""

from __future__ import annotations

from functools import cache

import msgspec
import pytest

from omni_actors.testing.invariants import INVARIANTS, Facts, interferes
from omni_actors.testing.invariants._by_hand import (
    CHAIN,
    CUT,
    ONE,
    aborted,
    after,
    before,
    begun,
    changed,
    finished,
    found,
    got,
    index,
    names_a,
    seen,
    terminal,
    token,
    wire,
    without,
)
from omni_actors.testing.sim._history import (
    AbortCalled,
    AbortReturned,
    Accepted,
    Closed,
    Crashed,
    Deadlocked,
    Ended,
    Faulted,
    Got,
    History,
    Left,
    Process,
    Refused,
    StageSaid,
    Submitting,
    TerminalSeen,
)
from omni_actors.testing.sim._scenario import Abort, Kill, Leave, Scenario, Shutdown, Stage, Stall, Submit
from omni_actors.testing.sim._simulate import simulate

NAMES = [f"I{number}" for number in range(11)]
STUCK = (Stage(name="v", wire="omni", output="audio", behaviour={"chunks": 3, "release": "missing"}),)


@cache
def busy(seed: int = 3) -> History:
    """Requests that finish, are aborted at several moments, left in each way, refused, and killed."""
    ops = (
        Submit(at=0.1, request="whole"),
        Submit(at=0.1, request="slow", pace_s=0.05),
        Submit(at=0.1, request="twice", params={"t": {"n": 2}}),
        Submit(at=0.1, request="text", modalities=("text",)),
        Submit(at=0.1, request="aborted"),
        Submit(at=0.13, request="again", id="aborted"),
        Submit(at=0.1, request="broke", leave_after=2),
        Submit(at=0.1, request="raised", leave_after=2, leave="raise"),
        Submit(at=0.1, request="cancelled", leave_after=2, leave="cancel"),
        Submit(at=0.1, request="gone", inside=False),
        Submit(at=0.1, request="late", timeout_s=0.05),
        Leave(at=0.14, request="gone"),
        Abort(at=0.15, id="aborted"),
        Abort(at=0.15, id="aborted"),
        Abort(at=0.15, id="nobody"),
        Submit(at=0.6, request="killed"),
        Kill(at=0.65, stage="t"),
        Abort(at=0.9, id="whole"),
        Shutdown(at=3.0),
        Submit(at=3.0, request="refused"),
    )
    return simulate(Scenario(stages=CUT, ops=ops, seed=seed))


@cache
def unconfirmed() -> History:
    """An engine that never confirms: abort and leaving give up after ``abort_s``."""
    ops = (
        Submit(at=0.1, request="a"),
        Submit(at=0.1, request="b", leave_after=1),
        Abort(at=0.12, id="a"),
        Abort(at=0.5, id="a"),
    )
    return simulate(Scenario(stages=STUCK, ops=ops, abort_s=0.5))


@cache
def hung() -> History:
    """An engine stands still while its requests are left: they get out when it is found dead."""
    ops = (Submit(at=0.1, request="a", leave_after=1), Stall(at=0.11, stage="t"), Leave(at=0.2, request="a"))
    return simulate(Scenario(stages=ONE, ops=ops, abort_s=10.0))


@cache
def stopped() -> History:
    """Stop strings end leases before their engines do, also those that feed another stage."""
    ops = tuple(Submit(at=0.1, request=letter, params={"t": {"stop": [letter]}}) for letter in "abcdefgh")
    return simulate(Scenario(stages=CHAIN, ops=ops))


@pytest.mark.parametrize("run", [busy, unconfirmed, hung, stopped], ids=lambda run: run.__name__)
@pytest.mark.parametrize("name", NAMES)
def test_a_right_run_shows_no_violation(name, run):
    assert list(INVARIANTS[name](Facts(run()))) == []


@pytest.mark.parametrize("seed", range(12))
def test_it_shows_none_under_other_schedules(seed):
    assert found(busy(seed)) == []


def test_the_right_runs_show_what_the_invariants_speak_of():
    facts = Facts(busy())
    kinds = {name: facts.event(request.terminals[0]).kind for name, request in facts.requests.items() if request.key}
    assert [kinds[name] for name in ("whole", "slow", "twice", "text", "gone", "late", "killed")] == (
        ["finished"] * 4 + ["aborted", "timed out", "failed"]
    )
    assert {kinds[name] for name in ("aborted", "again", "broke", "raised", "cancelled")} == {"aborted"}
    assert [event.error for event in busy().of(Refused)] == ["ShuttingDown"]
    assert [(event.id, event.known) for event in busy().of(AbortReturned)][-1] == ("whole", False)
    assert any("-p2" in key for key in facts.leases)
    assert any("-s1" in key for key in facts.leases)
    assert any(event.unconfirmed for event in unconfirmed().of(AbortReturned))
    late = Facts(stopped())
    assert any(lease.aborts and lease.request.got for lease in late.leases.values()), "a stop string struck"
    assert any(event.verdict == "hang" for event in hung().of(StageSaid))


def test_i7_alone_a_request_gets_the_same():
    scenario = busy().scenario
    gone = [name for name, request in Facts(busy()).requests.items() if not finished_in(busy(), request)]
    assert list(interferes(busy(), simulate(scenario.without(gone)))) == []
    assert len(gone) < len(Facts(busy()).requests) - 2


def finished_in(history, request):
    return bool(request.terminals) and history.events[request.terminals[0]].kind == "finished"


def test_the_hand_written_ones_are_right_as_they_stand():
    seen(finished())
    seen(aborted())
    seen([*finished(), *aborted("b", "2-sim")])


# ---------------------------------------------------------------------- I0


def test_i0_a_crash_a_deadlock_and_an_unexplained_end():
    assert "b crashed: KeyError" in str(seen([Crashed(at=0, where="b", error="KeyError: 1")], "I0"))
    assert "t waits" in str(seen([Deadlocked(at=1e6, tasks="t waits")], "I0"))
    assert "OmniError" in str(seen([Closed(at=0, opened=True, error="OmniError")], "I0"))
    assert "StartupFailed" in str(seen([Closed(at=0, opened=False, error="StartupFailed")], "I0"))
    seen([Closed(at=0, opened=True, error="StartupFailed")], "I0")


def test_i0_a_start_may_fail_for_a_reason():
    closed = Closed(at=0, opened=False, error="StartupFailed")
    seen([Faulted(at=0, op="kill", stage="t", replica=0, generation=1), closed])
    seen([Faulted(at=0, op="kill", stage="t", replica=0, done=False), closed], "I0")
    for told_so in ({"handshake": "silent"}, {"handshake": "exit"}, {"start_s": 30.0}):
        seen([closed], stages=(Stage(name="t", output="text", behaviour=told_so),))
    for told_so in ({"silent_at_start": True}, {"exit_at_start": 0}):
        seen([closed], stages=(Stage(name="v", wire="omni", output="audio", behaviour=told_so),))


# ---------------------------------------------------------------------- I1


def test_i1_no_terminal():
    events = changed(without(finished(), TerminalSeen), Ended, how="break")
    assert names_a(violation := seen(events, "I1"))
    assert "never ended" in violation.message


def test_i1_two_terminals():
    assert names_a(seen(after(finished(), TerminalSeen, terminal("finished", 1, 2)), "I1"))


def test_i1_a_refused_request_leaves_nothing():
    refused = [Submitting(at=0, request="a", id="a"), Refused(at=0, request="a", error="Overloaded")]
    seen(refused)
    assert names_a(seen([*refused, terminal("aborted")], "I1"))
    assert names_a(seen([*refused, got("a", 1)], "I1"))
    assert names_a(seen(refused[:1], "I1"))


def test_i1_accepted_and_refused():
    assert names_a(seen(after(finished(), Accepted, Refused(at=0, request="a", error="Cancelled")), "I1"))


def test_i1_i8_work_of_nobody():
    assert "9-sim-0" in str(seen([*finished(), wire("sent", "add", "9-sim-0")], "I1", "I8"))


# ---------------------------------------------------------------------- I2


def test_i2_an_output_after_the_terminal():
    late = after(changed(aborted(), TerminalSeen, made=(("t", 0, 0, (1, 2)),)), TerminalSeen, got("a", 2))
    events = before(late, TerminalSeen, wire("heard", "output", "1-sim-0", 2))
    assert names_a(seen(events, "I2"))


def test_i2_an_output_after_the_end_of_the_iteration():
    events = finished()
    last = next(number for number, event in enumerate(events) if isinstance(event, Got) and event.data == (2,))
    moved = [*events[:last], *events[last + 1 :]]
    assert names_a(seen(after(moved, Ended, events[last]), "I2"))
    violation = seen(after(moved, Left, events[last]), "I2")
    assert names_a(violation)


def test_i2_a_terminal_after_the_block_was_left():
    events = aborted(returned=False)
    late = after(without(changed(events, Ended, how="break"), TerminalSeen | AbortCalled), Left, terminal("aborted", 1))
    assert names_a(violation := seen(late, "I2"))
    assert "TerminalSeen" in violation.message


def test_i2_an_iteration_that_ends_by_itself_too_early():
    events = finished()
    events.insert(index(events, TerminalSeen), events.pop(index(events, Ended)))
    assert names_a(seen(events, "I2"))


def test_i2_what_a_finish_left_unread_may_still_be_read():
    events = finished()
    read = events.pop(index(events, Got) + 2)
    assert isinstance(read, Got)
    seen(before(events, Ended, read))


# ---------------------------------------------------------------------- I3


def test_i3_no_terminal_when_abort_returns():
    events = aborted()
    events.append(events.pop(index(events, TerminalSeen)))
    for last in (Ended, Left):
        events.append(events.pop(index(events, last)))
    assert names_a(seen(events, "I3"))


def test_i3_one_that_was_still_being_submitted_ends_as_soon_as_it_is_seen():
    call = [AbortCalled(at=0, call=1, id="a"), AbortReturned(at=0, call=1, id="a", known=True, kinds=("aborted",))]
    start = [begun()[0], *call, begun()[2]]
    gone = [Ended(at=0, request="a", how="end"), Left(at=0, request="a")]
    seen([*start, terminal("aborted", reason="aborted"), *gone])
    assert names_a(seen([*start, Process(at=0, what="spawned", stage="t", replica=0, generation=1, pid=1),
                         terminal("aborted", reason="aborted"), *gone], "I3"))  # fmt: skip


def test_i3_i2_an_output_after_abort_has_returned():
    late = after(changed(aborted(), TerminalSeen, made=(("t", 0, 0, (1, 2)),)), AbortReturned, got("a", 2))
    assert names_a(seen(before(late, TerminalSeen, wire("heard", "output", "1-sim-0", 2)), "I3", "I2"))


def test_i3_abort_waits_until_engines_have_let_go():
    events = [event for event in aborted() if event != RELEASED]
    assert names_a(violation := seen(events[:-2], "I3"))
    assert "had not let go" in violation.message
    seen(changed(events, AbortReturned, at=2.1)[:-2])
    events = [event for event in events if event != ABORT]
    assert "been told" in str(seen(changed(events, AbortReturned, at=2.1)[:-2], "I3"))


def test_i3_a_finish_that_was_faster_may_be_read_to_its_end():
    events = finished()
    read = events.pop(index(events, Got) + 2)
    events = before(events, TerminalSeen, AbortCalled(at=0, call=1, id="a", live=("a",)))
    report = AbortReturned(at=0, call=1, id="a", known=True, kinds=("finished",))
    seen(after(events, TerminalSeen, report, read))


# ---------------------------------------------------------------------- I4


def test_i4_a_live_request_must_be_known():
    events = changed(aborted(), AbortReturned, known=False, kinds=())
    assert names_a(seen(events, "I4", "I5"))


def test_i4_nobody_must_be_unknown():
    call = [AbortCalled(at=0, call=1, id="a"), AbortReturned(at=0, call=1, id="a", known=True)]
    assert "abort of a" in str(seen(call, "I4"))
    seen([call[0], AbortReturned(at=0, call=1, id="a")])


def test_i4_what_was_released_long_ago_must_be_unknown():
    call = [AbortCalled(at=5, call=1, id="a"), AbortReturned(at=5, call=1, id="a", known=True)]
    assert "abort of a" in str(seen([*finished(), *call], "I4"))


def test_i4_what_has_ended_and_is_not_released_is_known():
    events = finished()
    released = events.pop(index(events, TerminalSeen) - 1)
    assert released.what == "released"
    events += [AbortCalled(at=5, call=1, id="a"), msgspec.structs.replace(released, at=5.1)]
    seen([*events, AbortReturned(at=5.1, call=1, id="a", known=True, kinds=("finished",))])
    assert names_a(seen([*events, AbortReturned(at=5.1, call=1, id="a")], "I4", "I5"))


def test_i4_it_returns_and_does_not_raise():
    assert "never returned" in str(seen([AbortCalled(at=0, call=1, id="a")], "I4"))
    raised = [AbortCalled(at=0, call=1, id="a"), AbortReturned(at=0, call=1, id="a", error="KeyError")]
    assert "raised KeyError" in str(seen(raised, "I4"))


# ---------------------------------------------------------------------- I5


def test_i5_abort_reports_what_was():
    assert names_a(seen(changed(aborted(), AbortReturned, kinds=("finished",)), "I5"))
    assert names_a(seen(changed(aborted(), AbortReturned, kinds=()), "I5"))
    assert names_a(seen(changed(aborted(), AbortReturned, kinds=("aborted", "aborted")), "I5"))


def test_i5_i1_a_second_settle_changes_nothing():
    events = after(finished(), TerminalSeen, terminal("aborted", 1, 2))
    assert names_a(seen(events, "I5", "I1"))


# ---------------------------------------------------------------------- I10


def leaving(how="break", *between, kind="aborted", left_at=0.0):
    """A reader goes after its first token."""
    end = terminal(kind, 1, reason="the client left")
    gone = [Ended(at=0, request="a", how=how), end, *between, Left(at=left_at, request="a")]
    return [*begun(), *token(1), *gone]


ABORT = wire("sent", "abort", "1-sim-0")
RELEASED = wire("heard", "released", "1-sim-0")


def test_i10_leaving_waits_for_the_release():
    seen(leaving("break", ABORT, RELEASED))
    assert names_a(violation := seen(leaving("break", ABORT), "I10"))
    assert "had not let go" in violation.message
    assert "had not been told" in str(seen(leaving("break"), "I10"))


def test_i10_it_may_give_up_after_abort_s():
    seen(leaving("raise", ABORT, left_at=2.2))
    assert names_a(seen(leaving("raise", left_at=2.2), "I10")), "but it has to tell the engine"
    finish = [wire("heard", "finished", "1-sim-0")]
    seen(leaving("raise", *finish, left_at=2.2))


def test_i10_a_dead_engine_holds_nothing():
    place = {"stage": "t", "replica": 0, "generation": 1}
    dead = Process(at=0, what="exited", code=-9, pid=1, **place)
    seen(leaving("Cancelled", dead))
    seen(leaving("Cancelled", StageSaid(at=0, kind="exited", **place)))
    killed = Process(at=0, what="signalled", code=9, pid=1, by="us", **place)
    seen(leaving("Cancelled", killed))
    assert names_a(seen(leaving("Cancelled", msgspec.structs.replace(killed, by="fate")), "I10"))


@pytest.mark.parametrize("how", ["break", "raise", "cancel", "Cancelled"])
def test_i10_leaving_is_the_abort(how):
    events = changed(leaving(how, RELEASED, kind="failed"), TerminalSeen, reason=None)
    assert names_a(violation := seen(events, "I10"))
    assert how in violation.message


def test_i10_but_what_had_ended_before_stays():
    events = leaving("break", RELEASED, kind="failed")
    events.insert(index(events, Ended), events.pop(index(events, TerminalSeen)))
    seen(events)


def test_i10_a_reader_who_never_gets_out():
    assert names_a(violation := seen(without(leaving("break", ABORT, RELEASED), Left), "I10"))
    assert "never got out" in violation.message
