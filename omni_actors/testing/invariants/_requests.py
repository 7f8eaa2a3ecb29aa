"""Invariants I0 to I2 and I10: that a run does not fail, and that a request ends, once, also when its reader goes.

Abort (I3 to I5) is in ``_aborts``, what the user gets (I6 to I9) in ``_outputs``; ``REQUESTS`` has all of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from omni_actors.testing.sim._history import Closed, Crashed, Deadlocked, Ended, TerminalSeen, Wire

from ._aborts import EPS_S, held_back, i3, i4, i5
from ._facts import roomy
from ._outputs import i6, i7, i8, i9
from ._violation import Violation
from ._words import about, kind_at, when

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ._facts import Facts, Request
    from ._violation import Checker

__all__ = ["REQUESTS"]

_LEFT_BY_READER = ("break", "raise", "cancel", "Cancelled")


# ---------------------------------------------------------------------- the run


def i0(facts: Facts) -> Iterator[Violation]:
    """Nothing crashes and nothing hangs for good; a start that fails does so for a reason, and as StartupFailed."""
    for number, event in facts.history.numbered(Crashed, Deadlocked, Closed):
        match event:
            case Crashed(where=where, error=error):
                yield Violation(invariant="I0", message=f"{where} crashed: {error}", events=(number,))
            case Deadlocked(tasks=tasks):
                yield Violation(invariant="I0", message=f"the run hung for good; who waited: {tasks}", events=(number,))
            case Closed(error=str() as error, opened=opened):
                if error != "StartupFailed" or opened or not _start_may_fail(facts, number):
                    state = "after it had opened" if opened else "before it had opened, with no fault that explains it"
                    text = f"the runtime was left by {error} {when(facts, number)}, {state}"
                    yield Violation(invariant="I0", message=text, events=(number,))


def _start_may_fail(facts: Facts, closed: int) -> bool:
    """Whether a fault was done, or some stage's fake is told never to be ready (in time)."""
    if any(number < closed for life in facts.generations.values() for number in life.faults):
        return True
    for stage in facts.history.pipeline.stages:
        told = stage.engine_args
        if told.get("silent_at_start") or told.get("exit_at_start") is not None:
            return True
        if told.get("handshake", "speak") != "speak" or told.get("start_s", 0) >= stage.deadlines.start_s:
            return True
    return False


# ---------------------------------------------------------------------- one terminal, the last of all


def i1(facts: Facts) -> Iterator[Violation]:
    """Exactly one terminal per accepted request, which says whose fault it is; a refused submit leaves nothing: no
    event, no work at an engine.
    """
    cut = any(event.where == "the run" for event in facts.history.of(Crashed))
    for request in facts.requests.values():
        if request.accepted is not None:
            yield from _one_terminal(facts, request)
            yield from _misblamed(facts, request)
        elif request.refused is not None:
            for number in (*request.terminals, *request.got):
                text = f"it was refused, and yet something of it came {when(facts, number)}"
                yield about(request, "I1", text, request.refused, number)
        elif not cut:
            text = f"it was submitted {when(facts, request.submitted)} and neither accepted nor refused"
            yield about(request, "I1", text, request.submitted)
    for lease in facts.leases.values():
        if lease.request is None and lease.over is None:
            text = f"lease {lease.key} belongs to no accepted request, and stage {lease.place[0]} never let go of it"
            yield Violation(invariant="I1", message=text, events=(lease.added,))


def _one_terminal(facts: Facts, request: Request) -> Iterator[Violation]:
    assert request.accepted is not None
    if request.refused is not None:
        text = f"it was accepted, and then refused {when(facts, request.refused)}"
        yield about(request, "I1", text, request.accepted, request.refused)
    if not request.terminals:
        text = f"it was accepted {when(facts, request.accepted)} and never ended"
        yield about(request, "I1", text, request.accepted)
    elif len(request.terminals) > 1:
        ends = ", then ".join(f"{kind_at(facts, number)} {when(facts, number)}" for number in request.terminals)
        yield about(request, "I1", f"it ended more than once: {ends}", *request.terminals)


def _misblamed(facts: Facts, request: Request) -> Iterator[Violation]:
    """What an engine says is the caller's fault is told as that, and nothing else is. A full queue is nobody's word."""
    if not roomy(facts):
        return
    for number in request.terminals[:1]:
        end = facts.event(number)
        assert isinstance(end, TerminalSeen)
        if end.error not in ("EngineRejected", "InvalidRequest") or end.generation is None:
            continue
        place = (end.stage, end.replica, end.generation)
        failed = [lease.over for lease in request.leases if lease.place == place and lease.how == "failed"]
        words = [word for n in failed if n is not None and n < number and isinstance(word := facts.event(n), Wire)]
        callers = [word.data == (1,) for word in words]
        if callers and (end.error == "InvalidRequest") not in callers:
            whose = "its caller" if callers[0] else "its engine"
            text = (
                f"it ended as {end.error} {when(facts, number)}; stage {end.stage} had said that {whose} was to blame"
            )
            yield about(request, "I1", text, number)


def i2(facts: Facts) -> Iterator[Violation]:
    """The terminal is the last of a request: only a finished one's unread outputs may still be read, to their end."""
    for request in facts.requests.values():
        end = request.terminals[0] if request.terminals else None
        fence = None if end is None or kind_at(facts, end) == "finished" else end
        for number in request.got:
            for limit, why in ((fence, "its terminal"), (request.ended, "its iteration had ended")):
                if limit is not None and number > limit:
                    text = f"it got an output {when(facts, number)}, after {why}"
                    yield about(request, "I2", f"{text} ({when(facts, limit)})", limit, number)
        yield from _after_leaving(facts, request)
        if (how := _how(facts, request)) is not None and how not in _LEFT_BY_READER:
            assert request.ended is not None
            if end is None or end > request.ended:
                text = f"its iteration ended ({how}) {when(facts, request.ended)}"
                yield about(request, "I2", f"{text} before it had a terminal", request.ended)


def _after_leaving(facts: Facts, request: Request) -> Iterator[Violation]:
    if (left := request.left) is None:
        return
    for number in (*request.got, *request.terminals, *([] if request.ended is None else [request.ended])):
        if number > left:
            what = type(facts.event(number)).__name__
            text = f"{what} {when(facts, number)}, after its block had been left"
            yield about(request, "I2", text, left, number)


# ---------------------------------------------------------------------- the reader has gone


def i10(facts: Facts) -> Iterator[Violation]:
    """A reader who goes is an abort: the request ends so, and engines hold nothing when the block has been left."""
    for request in facts.requests.values():
        if request.accepted is None or request.ended is None:
            continue
        yield from _aborted_by_leaving(facts, request)
        if request.left is None:
            if not any(True for _ in facts.history.of(Crashed, Deadlocked)):
                text = f"its reader stopped {when(facts, request.ended)} and never got out"
                yield about(request, "I10", text, request.ended)
        elif request.terminals and kind_at(facts, request.terminals[0]) != "finished":
            for lease, why in held_back(facts, request, request.ended, request.left):
                text = f"its block was left {when(facts, request.left)}, with lease {lease.key} at stage"
                events = (lease.added, request.ended, request.left)
                yield about(request, "I10", f"{text} {lease.place[0]}, which {why}", *events)


def _aborted_by_leaving(facts: Facts, request: Request) -> Iterator[Violation]:
    how, end = _how(facts, request), request.terminals[0] if request.terminals else None
    if how not in _LEFT_BY_READER or end is None or request.ended is None or end < request.ended:
        return
    # "cancel" takes one pass of the scheduler to leave the block: another end may win the race.
    raced = how == "cancel" and facts.at(end) - facts.at(request.ended) <= EPS_S
    if (kind := kind_at(facts, end)) != "aborted" and not raced:
        text = f"its reader left ({how}) {when(facts, request.ended)}"
        yield about(request, "I10", f"{text}, and yet it ended as {kind} {when(facts, end)}", request.ended, end)


# ---------------------------------------------------------------------- small things


def _how(facts: Facts, request: Request) -> str | None:
    if request.ended is None:
        return None
    event = facts.event(request.ended)
    assert isinstance(event, Ended)
    return event.how


REQUESTS: Mapping[str, Checker] = {
    "I0": i0, "I1": i1, "I2": i2, "I3": i3, "I4": i4, "I5": i5, "I6": i6, "I7": i7, "I8": i8, "I9": i9, "I10": i10,
}  # fmt: skip
