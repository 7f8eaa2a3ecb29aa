"""Invariant I17: whom the end of one generation concerns, and which engine may be called hung.

When a generation died is known to the second of its history, not to the step: the runtime decides, tells the requests,
destroys the group, and only then says so. So what happened in the same moment may be on either side of the death.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from omni_actors.testing.sim._history import Asked, Process, StageSaid, TerminalSeen, Wire

from ._facts import Facts, in_words
from ._violation import Violation

if TYPE_CHECKING:
    from collections.abc import Iterator

    from omni_actors.config import StageSpec
    from omni_actors.testing.sim._history import Place

    from ._facts import Generation, Lease, Request

__all__ = ["i17"]

_MISBEHAVIOUR = frozenset({
    "die_at", "stall_at_chunk", "stuck_at_chunk", "die_at_chunk", "release", "release_s", "silent_at_start",
    "handshake", "start_s", "token_s", "chunk_s",
})  # fmt: skip
"""Engine arguments by which a fake may fall silent of its own."""

_LONGEST_HANG_S = 60.0
_SHORTEST_HANG_S = 10.0
_LONGEST_STEP_S = 300.0
"""What the engine kinds have for a stage that does not say."""


def i17(facts: Facts) -> Iterator[Violation]:
    """A crash or hang fails exactly the requests with a live lease on it; a healthy silent engine is never killed.
    A hang is silence where something is owed, or a step that does not end; either is found.
    """
    for life in facts.generations.values():
        if _died(facts, life):
            yield from _spared(facts, life)
        if life.verdict == "hang":
            yield from _unjustified(facts, life)
        yield from _overlooked(facts, life)
        yield from _stuck(facts, life)
    for request in facts.requests.values():
        for number in request.terminals[:1]:
            event = facts.event(number)
            assert isinstance(event, TerminalSeen)
            if event.error == "StageFailed":
                yield from _wrongly_failed(facts, request, number, event)
            elif event.error == "StageUnavailable":
                yield from _impatient(facts, request, number, event)


def _died(facts: Facts, life: Generation) -> bool:
    """By itself, or by a verdict: not because it was stopped."""
    said = facts.event(life.dead) if life.dead is not None else None
    return isinstance(said, StageSaid) and said.kind == "exited"


def _live_at_death(facts: Facts, lease: Lease) -> bool:
    """Whether its work was cut off: all that its engine had still said was not its end, nor had it been told to end."""
    return lease.how == "died" and lease.finished is None and not lease.aborts


# ---------------------------------------------------------------------- whom a death concerns


def _spared(facts: Facts, life: Generation) -> Iterator[Violation]:
    """A request whose work ended with a generation ends with it too, unless it was ended in that very moment."""
    assert life.dead is not None
    died_at = facts.at(life.dead)
    for lease in facts.leases_at(life.place):
        request = lease.request
        if request is None or not _live_at_death(facts, lease):
            continue
        ended = request.terminals[0] if request.terminals else None
        if ended is None or facts.at(ended) > died_at + facts.history.slack_s:
            how = "has no terminal" if ended is None else f"ended only at {facts.at(ended):g} s: {_how(facts, ended)}"
            text = (
                f"request {request.name} had lease {lease.key} at {in_words(life.place)}, which died at "
                f"{died_at:g} s; it {how}"
            )
            events = (lease.added, life.dead, *([] if ended is None else [ended]))
            yield Violation(invariant="I17", message=text, events=events, request=request.name)


def _how(facts: Facts, number: int) -> str:
    event = facts.event(number)
    assert isinstance(event, TerminalSeen)
    return f"{event.kind} ({event.error})" if event.error else event.kind


def _wrongly_failed(facts: Facts, request: Request, number: int, event: TerminalSeen) -> Iterator[Violation]:
    """``StageFailed`` names a generation that died, and on which this request had unfinished work."""
    if event.stage is None or event.replica is None or event.generation is None:
        text = f"request {request.name} failed at {event.at:g} s by a death that names no generation"
        yield Violation(invariant="I17", message=text, events=(number,), request=request.name)
        return
    place = (event.stage, event.replica, event.generation)
    life = facts.generations.get(place)
    who = f"request {request.name} failed at {event.at:g} s by the death of {in_words(place)}"
    ends = [] if life is None else [end for end in (life.exited, life.dead) if end is not None]
    if not ends or min(map(facts.at, ends)) > event.at + facts.history.slack_s:
        text = f"{who}, which was alive"
        yield Violation(invariant="I17", message=text, events=(number,), request=request.name)
    elif not _had_work(facts, request, place, life, event.at):
        text = f"{who}, on which it had no unfinished work"
        yield Violation(invariant="I17", message=text, events=(*ends[:1], number), request=request.name)


def _had_work(facts: Facts, request: Request, place: Place, life: Generation | None, at: float) -> bool:
    slack_s = facts.history.slack_s
    for lease in request.leases:
        ends = [end for end in (lease.finished, lease.over) if end is not None]
        if lease.place == place and all(facts.at(end) >= at - slack_s for end in ends):
            return True
    return life is not None and life.exited is not None and _just_bound(facts, request, life.exited, at)


def _just_bound(facts: Facts, request: Request, exited: int, at: float) -> bool:
    """Work for an engine that has gone in this very moment is bound to it and cannot be sent any more.

    Then its input was made in this moment too, or a replica that it had waited for became ready.
    """
    slack_s, stage = facts.history.slack_s, facts.event(exited)
    if not isinstance(stage, Process) or abs(stage.at - at) > slack_s:
        return False
    heard = [number for lease in request.leases for number in (*lease.outputs, lease.finished) if number is not None]
    ready = [life.ready for life in facts.generations.values() if life.place[0] == stage.stage]
    moments = [request.submitted, request.accepted, *heard, *ready]
    return any(abs(facts.at(number) - at) <= slack_s for number in moments if number is not None)


# ---------------------------------------------------------------------- placement


def _impatient(facts: Facts, request: Request, number: int, event: TerminalSeen) -> Iterator[Violation]:
    """Work that is not bound yet waits up to ``placement_s`` for a replica, and no longer than until one is ready."""
    if event.stage is None:
        return
    stage, slack_s = facts.history.pipeline.stage(event.stage), facts.history.slack_s
    since = event.at - stage.deadlines.placement_s
    who = f"request {request.name} failed at {event.at:g} s because no replica of stage {stage.name} was ready"
    if since < facts.at(request.submitted) - slack_s and not _all_down(facts, stage, event.at):
        text = f"{who}, less than placement_s = {stage.deadlines.placement_s:g} s after it was submitted"
        yield Violation(invariant="I17", message=text, events=(request.submitted, number), request=request.name)
    for life in facts.generations.values():
        if life.place[0] == stage.name and life.ready is not None and not _all_down(facts, stage, event.at):
            ends = [facts.at(end) for end in (life.exited, life.dead, life.stopping) if end is not None]
            overlap_s = min([*ends, event.at]) - max(facts.at(life.ready), since)
            if overlap_s > slack_s:
                text = f"{who}, but {in_words(life.place)} was, for {overlap_s:g} s of its waiting"
                yield Violation(invariant="I17", message=text, events=(life.ready, number), request=request.name)


def _all_down(facts: Facts, stage: StageSpec, at: float) -> bool:
    """Whether every replica had been given up or stopped by then: nobody waits for those."""
    gone = {
        event.replica
        for event in facts.history.of(StageSaid)
        if event.stage == stage.name and event.kind in ("down", "stopping") and event.at <= at + facts.history.slack_s
    }
    return len(gone) == stage.replicas


# ---------------------------------------------------------------------- hangs


def _unjustified(facts: Facts, life: Generation) -> Iterator[Violation]:
    """An engine is hung that owes an answer and says nothing for ``hang_s``, or is not ready within ``start_s``."""
    assert life.dead is not None
    stage = facts.history.pipeline.stage(life.place[0])
    died_at, place = facts.at(life.dead), in_words(life.place)
    if not life.faults and not _MISBEHAVIOUR & set(stage.engine_args):
        text = f"{place} was killed as hung at {died_at:g} s, and nothing had been done to it"
        yield Violation(invariant="I17", message=text, events=(life.dead,))
    if _in_one_step(facts, life, stage):
        return
    since, limit_s = _silent_since(facts, life, stage)
    if died_at - facts.at(since) < limit_s - facts.history.slack_s:
        text = f"{place} was killed as hung at {died_at:g} s; it had spoken at {facts.at(since):g} s"
        yield Violation(invariant="I17", message=text, events=(since, life.dead))
    elif life.ready is not None and not _owes(facts, life, since):
        text = f"{place} was killed as hung at {died_at:g} s, and owed nobody an answer"
        yield Violation(invariant="I17", message=text, events=(life.dead,))


def _in_one_step(facts: Facts, life: Generation, stage: StageSpec) -> bool:
    """Whether the last word about it was that it had been inside one step for longer than ``step_s``."""
    beats = [event for event in facts.history.of(Wire) if event.place == life.place and event.what == "heartbeat"]
    return bool(beats) and _over_ms(beats[-1], stage) >= 0


def _over_ms(beat: Wire, stage: StageSpec) -> float:
    """By how many whole milliseconds its step had lasted longer than ``step_s``. At 0 it may be a part of one."""
    step_s = stage.deadlines.step_s
    return (beat.data[0] if beat.data else -1) - 1000 * (_LONGEST_STEP_S if step_s is None else step_s)


def _stuck(facts: Facts, life: Generation) -> Iterator[Violation]:
    """An engine that says that its step does not end is dead within ``silence_s``; a call excuses it until its end."""
    stage, place = facts.history.pipeline.stage(life.place[0]), in_words(life.place)
    calls = [ask.at + ask.timeout_s for ask in facts.history.of(Asked) if ask.stage == life.place[0]]
    ends = [end for end in (life.exited, life.dead, life.stopping) if end is not None]
    ended_at = facts.at(min(ends)) if ends else facts.history.events[-1].at
    since: int | None = None
    for number, event in facts.history.numbered(Wire):
        if event.place != life.place or event.what != "heartbeat" or event.way != "heard":
            continue
        if _over_ms(event, stage) <= 0:
            since = None
        elif since is None:
            since = number
    if since is None:
        return
    said_at = facts.at(since)
    if ended_at > max([said_at, *calls]) + stage.deadlines.silence_s + facts.history.slack_s:
        text = f"{place} said at {said_at:g} s that its step does not end, and was not found hung until {ended_at:g} s"
        yield Violation(invariant="I17", message=text, events=(since,))


def _silent_since(facts: Facts, life: Generation, stage: StageSpec) -> tuple[int, float]:
    """The last word of a ready engine, or its start; and how long it may be silent after that."""
    begun = life.starting if life.starting is not None else 0
    if life.ready is None:
        return begun, stage.deadlines.start_s
    hang_s = stage.deadlines.hang_s
    return max(_heard(facts, life), default=begun), _SHORTEST_HANG_S if hang_s is None else hang_s


def _heard(facts: Facts, life: Generation) -> Iterator[int]:
    wire = facts.history.numbered(Wire)
    return (number for number, event in wire if event.place == life.place and event.way == "heard")


def _owes(facts: Facts, life: Generation, since: int) -> bool:
    """Whether something was asked of it since it last spoke, or it held a lease or an unanswered call all the time."""
    assert life.dead is not None
    for _, event in _between(facts, since, life.dead):
        if event.place == life.place and event.way == "sent":
            return True
    spoke_at = facts.at(since)
    calls = (ask for ask in facts.history.of(Asked) if ask.stage == life.place[0])
    if any(ask.at <= spoke_at < ask.at + ask.timeout_s for ask in calls):
        return True
    return any(lease.over is None or lease.over > since for lease in facts.leases_at(life.place))


def _between(facts: Facts, begin: int, end: int) -> Iterator[tuple[int, Wire]]:
    return ((number, event) for number, event in facts.history.numbered(Wire) if begin < number < end)


def _overlooked(facts: Facts, life: Generation) -> Iterator[Violation]:
    """No engine holds a lease and says nothing for longer than ``hang_s`` without being found out."""
    if life.ready is None:
        return
    heard = sorted({facts.at(number) for number in _heard(facts, life)})
    asked = sorted((ask.at, ask.at + ask.timeout_s) for ask in facts.history.of(Asked) if ask.stage == life.place[0])
    for lease in facts.leases_at(life.place):
        begun, over = facts.at(lease.added), _over_at(facts, life, lease)
        words = [begun, *(at for at in heard if begun < at < over), over]
        for before, after in itertools.pairwise(words):
            if after > _found_out_by(facts, life, before, asked) + facts.history.slack_s:
                text = (
                    f"{in_words(life.place)} held lease {lease.key} and was silent from {before:g} s to {after:g} s; "
                    f"it should have been found hung"
                )
                name = lease.request.name if lease.request is not None else None
                yield Violation(invariant="I17", message=text, events=(lease.added,), request=name)


def _found_out_by(facts: Facts, life: Generation, silent_since: float, asked: list[tuple[float, float]]) -> float:
    """A call with a deadline of its own excuses silence until then."""
    hang_s = facts.history.pipeline.stage(life.place[0]).deadlines.hang_s
    due = silent_since + (_LONGEST_HANG_S if hang_s is None else hang_s)
    for asked_at, until in asked:
        if asked_at <= due:
            due = max(due, until)
    return due


def _over_at(facts: Facts, life: Generation, lease: Lease) -> float:
    """When it was over at the latest: a stop, too, is an end of owing."""
    ends = [end for end in (lease.over, life.dead, life.stopping) if end is not None]
    return min([facts.at(len(facts.history.events) - 1), *map(facts.at, ends)])
