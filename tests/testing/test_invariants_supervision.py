"""I17 to I21: each checker is silent about a run that shows the thing done right, and speaks about one done wrong."""

from __future__ import annotations

from functools import cache

import attrs
import msgspec
import pytest

from omni_actors.testing.invariants import INVARIANTS, Facts
from omni_actors.testing.sim._history import (
    Accepted,
    Answered,
    Asked,
    Closed,
    Got,
    History,
    Opened,
    Process,
    ShutdownCalled,
    StageSaid,
    Submitting,
    TerminalSeen,
    Wire,
)
from omni_actors.testing.sim._scenario import Call, Exit, Inject, Kill, Scenario, Stage, Stall, Submit
from omni_actors.testing.sim._simulate import simulate

TEXT = Stage(name="t", output="text", replicas=2, behaviour={"tokens": 10})
CHAIN = (TEXT, Stage(name="v", wire="omni", inputs=("t",), output="audio", behaviour={"chunks": 20}))


@cache
def deaths() -> History:
    """Engines that are killed, break their wire and fall silent, each with work; one replica four times."""
    ops = (
        *(Submit(at=0.1, request=name, modalities=("text",)) for name in "ab"),
        Kill(at=0.15, stage="t"),
        Submit(at=1.0, request="c"),
        Inject(at=1.2, stage="v", what="garbage"),
        Submit(at=2.0, request="d", modalities=("text",)),
        Stall(at=2.05, stage="t", replica=1),
        Stall(at=2.05, stage="t"),
        *(Exit(at=20 + 9 * n, stage="t", replica=1) for n in range(4)),
        Submit(at=60.0, request="e"),
    )
    return simulate(Scenario(stages=CHAIN, ops=ops, buggify=False))


@cache
def stage_down() -> History:
    """Every replica fails until it is down; a request waits, another comes too late."""
    stage = Stage(name="t", output="text", behaviour={"start_s": 9.0})
    waits = Submit(at=9.6, request="waits")
    ops = (Exit(at=9.5, stage="t"), waits, *(Exit(at=20 + n * 0.5, stage="t") for n in range(20)))
    return simulate(Scenario(stages=(stage,), ops=(*ops, Submit(at=31.0, request="late")), buggify=False))


def found(history: History, name: str) -> str:
    """What the checker says, one violation per line."""
    return "\n".join(map(str, INVARIANTS[name](Facts(history))))


def edited(history: History, change) -> History:
    """The same history with ``change(event)``, a list, in the place of each event."""
    return attrs.evolve(history, events=[new for event in history.events for new in change(event)])


def told(*events, stages: tuple[Stage, ...] = CHAIN) -> History:
    """A history written by hand."""
    return History(Scenario(stages=stages).pipeline(), None, list(events))


def said(at: float, kind: str, generation: int = 1, verdict: str | None = None) -> StageSaid:
    return StageSaid(at=at, stage="t", replica=0, generation=generation, kind=kind, verdict=verdict)


def process(at: float, what: str, generation: int = 1) -> Process:
    return Process(at=at, what=what, stage="t", replica=0, generation=generation, pid=100 + generation)


def wire(at: float, way: str, what: str, key: str = "1-x-0", data: tuple[int, ...] = ()) -> Wire:
    return Wire(at=at, way=way, stage="t", replica=0, generation=1, what=what, key=key, data=data)


def request(at: float, name: str = "a") -> list:
    return [Submitting(at=at, request=name, id=name), Accepted(at=at, request=name, key="1-x")]


def failed(at: float, error: str = "StageFailed", generation: int | None = 1) -> TerminalSeen:
    where = {"stage": "t", "replica": 0, "generation": generation}
    return TerminalSeen(at=at, request="a", kind="failed", error=error, **where)


ALIVE = [said(0.0, "starting"), process(0.0, "spawned"), said(0.0, "ready"), Opened(at=0.0)]
WORKING = [*ALIVE, *request(0.1), wire(0.1, "sent", "add")]
DEAD = [process(1.0, "exited"), said(1.0, "exited", verdict="exit"), said(1.0, "backing_off")]


# ---------------------------------------------------------------------- I17


def test_a_death_fails_its_own_requests_and_no_others() -> None:
    history = deaths()
    kinds = {event.request: (event.kind, event.error) for event in history.of(TerminalSeen)}

    assert kinds["a"] == kinds["c"] == kinds["d"] == ("failed", "StageFailed")
    assert kinds["b"] == kinds["e"] == ("finished", None)
    assert {event.verdict for event in history.of(StageSaid) if event.verdict} == {"exit", "protocol", "hang"}
    assert found(history, "I17") == ""
    assert found(told(*WORKING, *DEAD[:1], failed(1.0), *DEAD[1:]), "I17") == ""


def test_a_request_that_survives_the_death_of_its_work_is_found() -> None:
    died = "request a had lease 1-x-0 at stage t, replica 0, generation 1, which died at 1 s; it "

    assert died + "has no terminal" in found(told(*WORKING, *DEAD), "I17")
    assert died + "ended only at 3 s: failed (RequestTimeout)" in found(
        told(*WORKING, *DEAD, failed(3.0, "RequestTimeout", None)), "I17"
    )


def test_work_that_was_over_or_told_to_end_does_not_concern_a_death() -> None:
    done = [wire(0.5, "heard", "finished"), wire(0.5, "heard", "released")]
    aborted = [failed(0.5, "RequestTimeout", None), wire(0.5, "sent", "abort")]

    assert found(told(*WORKING, *done, *DEAD), "I17") == ""
    assert found(told(*WORKING, *aborted, *DEAD), "I17") == ""
    assert "on which it had no unfinished work" in found(told(*WORKING, *done, *DEAD[1:], failed(1.0)), "I17")


def test_a_request_that_fails_by_the_death_of_a_living_engine_is_found() -> None:
    assert "request a failed at 0.5 s by the death of stage t, replica 0, generation 1, which was alive" in found(
        told(*WORKING, failed(0.5), *DEAD), "I17"
    )
    assert "generation 2, which was alive" in found(told(*WORKING, *DEAD, failed(1.0, generation=2)), "I17")
    assert "names no generation" in found(told(*WORKING, *DEAD, failed(1.0, generation=None)), "I17")


def test_killing_a_healthy_silent_engine_is_found() -> None:
    hung = [wire(0.2, "heard", "released"), said(9.0, "exited", verdict="hang")]

    assert "generation 1 was killed as hung at 9 s, and nothing had been done to it" in found(
        told(*WORKING, failed(0.2, "RequestTimeout", None), *hung), "I17"
    )
    assert "and owed nobody an answer" in found(told(*WORKING, *hung), "I17")


def test_killing_an_engine_that_has_just_spoken_is_found() -> None:
    hung = [wire(7.0, "heard", "heartbeat", key=""), said(9.0, "exited", verdict="hang")]

    assert "was killed as hung at 9 s; it had spoken at 7 s" in found(told(*WORKING, *hung, failed(9.0)), "I17")


def test_an_engine_that_hangs_unnoticed_is_found() -> None:
    late = [said(9.0, "exited", verdict="hang"), failed(9.0)]
    called = Asked(at=0.1, call=1, stage="t", method="echo", timeout_s=9.0)

    assert "held lease 1-x-0 and was silent from 0.1 s to 9 s; it should have been found hung" in found(
        told(*WORKING, *late), "I17"
    )
    assert "it should have been found" not in found(told(*WORKING, called, *late), "I17"), "a call excuses silence"


def test_an_unbound_request_waits_for_its_placement() -> None:
    history = stage_down()
    late = [(event.at, event.error) for event in history.of(TerminalSeen)]

    assert late[0] == (pytest.approx(14.6), "StageUnavailable"), "5 s after it was submitted"
    assert late[-1] == (31.0, "StageUnavailable"), "at once: the stage is down"
    assert found(history, "I17") == ""


def test_an_unbound_request_that_gives_up_too_early_is_found() -> None:
    gone = [*ALIVE, *DEAD, *request(2.0)]
    back = [said(1.5, "starting", 2), said(1.5, "ready", 2)]

    assert "less than placement_s = 5 s after it was submitted" in found(
        told(*gone, failed(4.0, "StageUnavailable", None)), "I17"
    )
    assert "but stage t, replica 0, generation 2 was, for 5 s of its waiting" in found(
        told(*gone, *back, failed(7.0, "StageUnavailable", None)), "I17"
    )


# ---------------------------------------------------------------------- I18


def test_lives_follow_each_other() -> None:
    kinds = {event.kind for event in deaths().of(StageSaid)} | {event.kind for event in stage_down().of(StageSaid)}

    assert kinds >= {"starting", "ready", "exited", "backing_off", "down", "stopping", "stopped"}
    assert found(deaths(), "I18") == found(stage_down(), "I18") == ""


@pytest.mark.parametrize(
    ("events", "words"),
    [
        ([said(0.0, "ready")], "ready of generation 1 at 0 s cannot follow nothing"),
        ([*ALIVE, said(1.0, "starting", 2)], "starting of generation 2 at 1 s cannot follow ready of generation 1"),
        ([*ALIVE, *DEAD, said(2.0, "starting", 3)], "starting of generation 3 at 2 s cannot follow backing_off"),
        ([said(0.0, "starting"), *DEAD], "backing_off of generation 1 at 1 s cannot follow exited of generation 1"),
        ([*ALIVE, said(1.0, "stopping"), said(1.0, "stopped"), said(2.0, "starting", 2)], "cannot follow stopped"),
        ([*ALIVE, Closed(at=3.0, opened=True)], "generation 1 was ready when its runtime was closed at 3 s"),
        (
            [*ALIVE, *DEAD[1:], said(1.5, "starting", 2), process(1.5, "spawned", 2)],
            "generation 2 was spawned (pid 102) at 1.5 s while generation 1 (pid 101) was alive",
        ),
    ],
)
def test_lives_that_do_not_follow_are_found(events, words) -> None:
    text = found(told(*events), "I18")

    assert words in text
    assert "stage t, replica 0" in text


def test_an_order_that_is_all_right_is_not_blamed() -> None:
    again = [process(1.5, "spawned", 2), said(1.5, "starting", 2), said(1.5, "ready", 2)]
    end = [said(5.0, "stopping", 2), said(8.0, "overdue", 2), said(9.0, "stopped", 2), Closed(at=9.0, opened=True)]

    assert found(told(*ALIVE, *DEAD, *again, *end), "I18") == ""
    assert found(told(said(0.0, "starting"), said(1.0, "exited"), Closed(at=1.0, opened=False)), "I18") == ""


# ---------------------------------------------------------------------- I19


def life(generation: int, begin: float, end: float, then: str) -> list[StageSaid]:
    events = [said(begin, "starting", generation), said(begin, "ready", generation)]
    return [*events, said(end, "exited", generation), said(end, then, generation)]


def lives(*ends: str) -> list[StageSaid]:
    """Lives of one second each, each restarted when its back-off is over."""
    at, events = 0.0, []
    for number, then in enumerate(ends):
        events += life(number + 1, at, at + 1, then)
        at += 1 + 0.5 * 2**number
    return events


def test_the_fourth_failure_marks_a_replica_down() -> None:
    down = [event for event in deaths().of(StageSaid) if event.kind == "down"]

    assert [(event.stage, event.replica, event.generation) for event in down] == [("t", 1, 4)]
    assert found(deaths(), "I19") == found(stage_down(), "I19") == ""
    assert found(told(*lives("backing_off", "backing_off", "backing_off", "down")), "I19") == ""


def test_a_replica_that_is_given_up_too_early_or_too_late_is_found() -> None:
    early, late = lives("backing_off", "backing_off", "down"), lives(*["backing_off"] * 4)

    assert "generation 3 failed at 4.5 s, failure number 3 since it was last stable: it should be backing_off" in found(
        told(*early), "I19"
    )
    assert "generation 4 failed at 7.5 s, failure number 4 since it was last stable: it should be down" in found(
        told(*late), "I19"
    )


def test_having_been_stable_forgives_all_failures() -> None:
    forgiven = [*lives("backing_off", "backing_off", "backing_off"), *life(4, 6.5, 66.5, "backing_off")]

    assert found(told(*forgiven, *life(5, 67.0, 68.0, "backing_off")), "I19") == ""
    assert "failure number 1" in found(told(*forgiven[:-1], said(66.5, "down", 4)), "I19")


def test_a_failure_that_nobody_answers_is_found_unless_all_is_being_closed() -> None:
    unanswered = [*ALIVE, said(1.0, "exited"), ShutdownCalled(at=5.0, call=1)]
    closing = [*ALIVE, ShutdownCalled(at=0.5, call=1), said(1.0, "exited")]

    assert "it should be backing_off, and nothing followed" in found(told(*unanswered), "I19")
    assert found(told(*closing), "I19") == ""


def test_a_wrong_back_off_and_an_escalation_are_found() -> None:
    hasty = [*life(1, 0.0, 1.0, "backing_off"), said(1.1, "starting", 2)]

    assert "was replaced 0.1 s after its end at 1 s; after 1 failures the back-off is 0.5 s" in found(
        told(*hasty), "I19"
    )
    assert "a stage's failures ended the whole runtime at 9 s" in found(
        told(Closed(at=9.0, opened=True, error="GaveUp")), "I19"
    )


# ---------------------------------------------------------------------- I20


def test_the_dead_are_not_heard() -> None:
    assert len([event for event in deaths().of(StageSaid) if event.kind == "exited"]) >= 7
    assert found(deaths(), "I20") == ""


def test_a_message_of_the_dead_is_found() -> None:
    after = edited(
        deaths(),
        lambda e: (
            [e, wire(e.at, "heard", "output", "1-sim-0")] if isinstance(e, StageSaid) and e.kind == "down" else [e]
        ),
    )

    assert "stage t, replica 0, generation 1 was dead at 0.15 s, and at 47 s output 1-sim-0 was heard" in found(
        after, "I20"
    )
    assert next(iter(INVARIANTS["I20"](Facts(after)))).request == "a"


def test_work_for_the_dead_and_for_the_unborn_is_found() -> None:
    again = [said(1.5, "starting", 2), process(1.5, "spawned", 2)]
    unborn = msgspec.structs.replace(wire(2.0, "sent", "add"), generation=2)

    assert "lease 1-x-0 was added to stage t, replica 0, generation 1 at 0.9 s, after its process had ended" in found(
        told(*ALIVE, process(0.5, "exited"), *request(0.9), wire(0.9, "sent", "add"), said(1.0, "exited")), "I20"
    )
    assert "lease 1-x-0 was added to stage t, replica 0, generation 2 at 2 s, before that was ready" in found(
        told(*ALIVE, *request(0.1), *DEAD, *again, unborn), "I20"
    )


def test_an_output_that_was_never_heard_is_found() -> None:
    got = Got(at=1.1, request="a", stage="t", modality="text", data=(65, 66))
    heard = wire(0.5, "heard", "output", data=(65, 66))

    assert "request a got 2 items of stage t, the last at 1.1 s" in found(told(*WORKING, *DEAD, got), "I20")
    assert found(told(*WORKING, heard, *DEAD, got), "I20") == ""


# ---------------------------------------------------------------------- I21


def test_every_ask_is_answered_once_and_in_time() -> None:
    ops = (
        Call(at=0.1, stage="t"),
        Call(at=0.1, stage="v", method="nope"),
        Call(at=0.2, stage="v", method="hang", timeout_s=0.5),
        Call(at=2.0, stage="v", method="hang"),
        Kill(at=2.5, stage="v"),
    )
    history = simulate(Scenario(stages=CHAIN, ops=ops, buggify=False))

    assert sorted(str(event.error) for event in history.of(Answered)) == [
        "EngineRejected", "EngineRejected", "None", "TooSlowError",
    ]  # fmt: skip
    assert found(history, "I21") == ""


ASK = Asked(at=0.5, call=3, stage="t", method="echo", timeout_s=5.0)


@pytest.mark.parametrize(
    ("events", "words"),
    [
        ([], "ended 0 times instead of once"),
        ([Answered(at=0.6, call=3), Answered(at=0.7, call=3)], "ended 2 times instead of once"),
        ([Answered(at=6.0, call=3)], "ended at 6 s with answers, after its 5 s"),
        ([Answered(at=2.0, call=3, error="TooSlowError")], "ended at 2 s with TooSlowError, before its 5 s"),
        ([*DEAD, Answered(at=5.5, call=3, error="TooSlowError")], "the last it had asked was dead at 1 s"),
    ],
)
def test_an_ask_that_ends_wrongly_is_found(events, words) -> None:
    text = found(told(*ALIVE, ASK, *events), "I21")

    assert "call 3 of echo of stage t, made at 0.5 s," in text
    assert words in text
