"""Invariants of the lifecycle: admission, the shutdown ladder, what is left, and replay (I22 to I25)."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING

import attrs

from omni_actors.testing.sim._history import (
    Accepted,
    Closed,
    Crashed,
    Deadlocked,
    Opened,
    Process,
    ShutdownCalled,
    ShutdownReturned,
    StageSaid,
    State,
)

from ._facts import Facts, in_words
from ._violation import Violation

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from omni_actors.testing.sim._history import AnyEvent, History

    from ._violation import Checker

__all__ = ["LIFECYCLE", "Rungs", "cut_off", "i22", "i23", "i24", "i25", "replays", "rungs"]


def cut_off(history: History) -> bool:
    """Whether the run did not reach its end: then nothing can be asked of what comes at an end."""
    failed = any(event.where == "the run" for event in history.of(Crashed))
    return failed or next(history.of(Deadlocked), None) is not None


# ---------------------------------------------------------------------- I22


def i22(facts: Facts) -> Iterator[Violation]:
    """Admission closes first; every request is terminal before the first process is stopped."""
    yield from _admitted_late(facts)
    yield from _stopped_early(facts)


def _admitted_late(facts: Facts) -> Iterator[Violation]:
    closing = next((number for number, _ in facts.history.numbered(ShutdownCalled)), None)
    if closing is None:
        return
    for number, event in facts.history.numbered(Accepted):
        request = facts.requests[event.request]
        if request.submitted > closing:
            text = (
                f"request {request.name} was submitted at {facts.at(request.submitted):g} s and accepted, although "
                f"shutdown had been called at {facts.at(closing):g} s"
            )
            yield Violation(invariant="I22", message=text, events=(closing, number), request=request.name)


def _stopped_early(facts: Facts) -> Iterator[Violation]:
    stops = enumerate(facts.history.events)
    first = next(((n, event) for n, event in stops if isinstance(event, StageSaid | Process) and _is_stop(event)), None)
    if first is None:
        return
    number, event = first
    for request in facts.requests.values():
        if request.accepted is None or (request.terminals and request.terminals[0] < number):
            continue
        place = in_words((event.stage, event.replica, event.generation))
        text = (
            f"{place} was told to stop at {event.at:g} s, while request {request.name}, accepted at "
            f"{facts.at(request.accepted):g} s, had no terminal"
        )
        yield Violation(invariant="I22", message=text, events=(request.accepted, number), request=request.name)


def _is_stop(event: StageSaid | Process) -> bool:
    """The supervisor's word, or our SIGTERM: nothing but a stop sends one."""
    if isinstance(event, StageSaid):
        return event.kind == "stopping"
    return event.what == "signalled" and event.by == "us" and event.code == 15


# ---------------------------------------------------------------------- I23


@attrs.frozen
class Rungs:
    """When each rung of the shutdown ladder is over at the latest, by all calls of shutdown together."""

    drained: float
    stopping: float
    closed: float


def rungs(facts: Facts) -> Rungs | None:
    """None without a call. Each call may shorten the limits, none lengthens one.

    A limit counts from the rung's beginning, or from a call that is made during the rung.
    """
    spec = facts.history.pipeline
    drain_s, abort_s, stop_s = spec.drain_s, spec.abort_s, math.inf
    limits = []
    for call in facts.history.of(ShutdownCalled):
        drain_s, abort_s = _shorter(drain_s, call.drain_s), _shorter(abort_s, call.abort_s)
        stop_s = _shorter(stop_s, call.stop_s)
        limits.append((call.at, drain_s, abort_s, _stopped_in(facts, stop_s)))
    if not limits:
        return None
    drained = min(at + drain for at, drain, _, _ in limits)
    stopping = min(max(at, drained) + abort for at, _, abort, _ in limits)
    return Rungs(drained, stopping, min(max(at, stopping) + stop for at, _, _, stop in limits))


def _shorter(limit_s: float, asked_s: float | None) -> float:
    return limit_s if asked_s is None else min(limit_s, asked_s)


def _stopped_in(facts: Facts, limit_s: float) -> float:
    """The longest that stopping the engines may take, if each is given ``limit_s`` to stop by itself."""
    each = (stage.deadlines for stage in facts.history.pipeline.stages)
    return max((min(limit_s, limits.stop_s) + 2 * limits.kill_s for limits in each), default=0.0)


def i23(facts: Facts) -> Iterator[Violation]:
    """Shutdown is bounded, ordered, idempotent, callable at any moment; every call gets the same report."""
    due = rungs(facts)
    if due is None:
        return
    returned = _returns(facts)
    for number, call in facts.history.numbered(ShutdownCalled):
        if call.by == "call":
            yield from _answered(facts, number, call, returned.get(call.call, []), due.closed)
    yield from _drained_in_time(facts, due.drained)
    yield from _stopping_in_time(facts, due.stopping)
    yield from _left_in_time(facts, due.closed)
    yield from _one_report(facts)


def _returns(facts: Facts) -> Mapping[int, list[int]]:
    found: dict[int, list[int]] = {}
    for number, event in facts.history.numbered(ShutdownReturned):
        found.setdefault(event.call, []).append(number)
    return found


def _answered(
    facts: Facts, number: int, call: ShutdownCalled, returns: list[int], closed: float
) -> Iterator[Violation]:
    who = f"shutdown call {call.call}, made at {call.at:g} s,"
    if len(returns) != 1:
        text = f"{who} returned {len(returns)} times instead of once"
        yield Violation(invariant="I23", message=text, events=(number, *returns))
    elif facts.at(returns[0]) > (due := max(call.at, closed)) + facts.history.slack_s:
        text = f"{who} returned at {facts.at(returns[0]):g} s; its deadlines allow {due:g} s"
        yield Violation(invariant="I23", message=text, events=(number, returns[0]))


def _drained_in_time(facts: Facts, due: float) -> Iterator[Violation]:
    """When draining is over, what still runs is aborted."""
    for request in facts.requests.values():
        if request.accepted is None or not request.terminals:
            continue  # one without a terminal is found by others
        ended = request.terminals[0]
        if facts.at(ended) > due + facts.history.slack_s:
            text = f"request {request.name} ended at {facts.at(ended):g} s; draining was to be over by {due:g} s"
            yield Violation(invariant="I23", message=text, events=(ended,), request=request.name)


def _stopping_in_time(facts: Facts, due: float) -> Iterator[Violation]:
    first = next(((n, said) for n, said in facts.history.numbered(StageSaid) if said.kind == "stopping"), None)
    if first is not None and first[1].at > due + facts.history.slack_s:
        number, said = first
        place = in_words((said.stage, said.replica, said.generation))
        text = f"{place}, the first of all, was told to stop at {said.at:g} s; stopping was due at {due:g} s"
        yield Violation(invariant="I23", message=text, events=(number,))


def _left_in_time(facts: Facts, closed_by: float) -> Iterator[Violation]:
    """Leaving the block is a call of shutdown, and its return."""
    leaving = next(((n, call) for n, call in facts.history.numbered(ShutdownCalled) if call.by == "leave"), None)
    closed = next(facts.history.numbered(Closed), None)
    if leaving is None or closed is None:
        return
    due = max(leaving[1].at, closed_by)
    if closed[1].at > due + facts.history.slack_s:
        text = f"the runtime's block, left at {leaving[1].at:g} s, was over at {closed[1].at:g} s instead of {due:g} s"
        yield Violation(invariant="I23", message=text, events=(leaving[0], closed[0]))


def _one_report(facts: Facts) -> Iterator[Violation]:
    returns = list(facts.history.numbered(ShutdownReturned))
    for number, event in returns[1:]:
        first_number, first = returns[0]
        if event.report != first.report:
            text = (
                f"shutdown calls {first.call} and {event.call} returned two reports: {first.report} at {first.at:g} s, "
                f"{event.report} at {event.at:g} s"
            )
            yield Violation(invariant="I23", message=text, events=(first_number, number))


# ---------------------------------------------------------------------- I24


def i24(facts: Facts) -> Iterator[Violation]:
    """Nothing survives: spawned = reaped, and no task, socket, file or name is left."""
    history = facts.history
    closed = next((number for number, _ in history.numbered(Closed)), None)
    yield from _unreaped(facts, closed)
    looks = [(number, event) for number, event in history.numbered(State) if event.when == "closed"]
    if not looks and not cut_off(history):
        text = "nobody looked at what was left when the runtime was closed"
        yield Violation(invariant="I24", message=text, events=() if closed is None else (closed,))
    for number, event in looks:
        if left := {name: count for name, count in event.counts.items() if count}:
            listed = ", ".join(f"{count} {name}" for name, count in left.items())
            yield Violation(invariant="I24", message=f"left behind at {event.at:g} s: {listed}", events=(number,))


def _unreaped(facts: Facts, closed: int | None) -> Iterator[Violation]:
    spawned: dict[int, tuple[int, Process]] = {}
    for number, event in facts.history.numbered(Process, Closed):
        if number == closed:
            for begun, process in spawned.values():
                text = (
                    f"process {process.pid} of {in_words(process.place)}, spawned at {process.at:g} s, was alive when "
                    f"the runtime was closed at {event.at:g} s"
                )
                yield Violation(invariant="I24", message=text, events=(begun, number))
        elif isinstance(event, Process) and event.what == "spawned":
            spawned[event.pid] = (number, event)
        elif isinstance(event, Process) and event.what == "exited" and spawned.pop(event.pid, None) is None:
            text = f"process {event.pid} of {in_words(event.place)} ended at {event.at:g} s without having been alive"
            yield Violation(invariant="I24", message=text, events=(number,))
    for number, returned in facts.history.numbered(ShutdownReturned):
        if returned.unreaped:
            text = f"shutdown call {returned.call} left the processes {returned.unreaped} at {returned.at:g} s"
            yield Violation(invariant="I24", message=text, events=(number,))


# ---------------------------------------------------------------------- I25


def i25(facts: Facts) -> Iterator[Violation]:
    """The history of a run is one order of events: time never goes back. See ``replays`` for two histories."""
    latest = -math.inf
    for number, event in enumerate(facts.history.events):
        if isinstance(event, Crashed) and event.where == "the run":
            continue  # its time is unknown
        if event.at < latest:
            text = f"event {number} ({_brief(event)}) is at {event.at:g} s, after one at {latest:g} s"
            yield Violation(invariant="I25", message=text, events=(number - 1, number))
        latest = max(latest, event.at)
    opened = [number for number, _ in facts.history.numbered(Opened)]
    if len(opened) > 1:
        yield Violation(invariant="I25", message="one run opened its runtime twice", events=tuple(opened))


def replays(first: History, second: History) -> Iterator[Violation]:
    """Same scenario and seed, same history: equal byte for byte. At most one violation, the first difference."""
    if first.to_json() == second.to_json():
        return
    pairs = enumerate(itertools.zip_longest(first.events, second.events))
    number, (one, other) = next((n, pair) for n, pair in pairs if pair[0] != pair[1])
    text = f"event {number} of the same run is once {_brief(one)} and once {_brief(other)}"
    yield Violation(invariant="I25", message=text, events=(number,))


def _brief(event: AnyEvent | None) -> str:
    return "missing" if event is None else repr(event)


LIFECYCLE: Mapping[str, Checker] = {"I22": i22, "I23": i23, "I24": i24, "I25": i25}
