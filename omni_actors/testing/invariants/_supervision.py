"""Invariants of supervision: whom a death concerns, the order of lives, the books, fencing, asks (I17 to I21)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from omni_actors.testing.sim._history import (
    Answered,
    Asked,
    Closed,
    Got,
    Opened,
    Process,
    ShutdownCalled,
    StageSaid,
    TerminalSeen,
    Wire,
)

from ._deaths import i17
from ._facts import Facts, in_words
from ._violation import Violation

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from omni_actors.testing.sim._history import Place

    from ._facts import Generation, Lease, Request
    from ._violation import Checker

__all__ = ["SUPERVISION", "i17", "i18", "i19", "i20", "i21"]

MAX_FAILURES = 3
"""Failures that are answered by a restart; the next one marks the replica down."""

Said = tuple[int, StageSaid]
"""A word of a supervisor and its position."""


def _replicas(facts: Facts) -> Mapping[tuple[str, int], list[Said]]:
    """What was said of each replica, in order."""
    found: dict[tuple[str, int], list[Said]] = {}
    for number, event in facts.history.numbered(StageSaid):
        found.setdefault((event.stage, event.replica), []).append((number, event))
    return found


# ---------------------------------------------------------------------- I18

_NEXT: Mapping[str, frozenset[str]] = {
    "": frozenset({"starting"}),
    "starting": frozenset({"ready", "exited", "stopping"}),
    "ready": frozenset({"exited", "stopping"}),
    "exited": frozenset({"backing_off", "starting", "down"}),
    "backing_off": frozenset({"starting"}),
    "stopping": frozenset({"stopped", "overdue"}),
    "overdue": frozenset({"stopped"}),
    "stopped": frozenset(),
    "down": frozenset(),
}
"""What may follow what, for one replica of a stage. "exited" is its own end; "stopped" the one that was asked for.
Whether it starts again at once or backs off is I19's.
"""

_ENDS = frozenset({"", "exited", "backing_off", "stopped", "down"})
"""Where a replica may be when its runtime is closed."""


def i18(facts: Facts) -> Iterator[Violation]:
    """Start and stop events equal the reference model; never two generations alive."""
    for (stage, replica), said in _replicas(facts).items():
        yield from _follows(facts, f"stage {stage}, replica {replica}", said)
    yield from _two_alive(facts)


def _follows(facts: Facts, who: str, said: Sequence[Said]) -> Iterator[Violation]:
    state, generation, been_ready, before = "", 0, False, -1
    for number, event in said:
        expected = generation + 1 if event.kind == "starting" else generation
        never = state == "exited" and not been_ready
        if event.kind not in _NEXT.get(state, ()) or event.generation != expected or never:
            text = (
                f"{who}: {event.kind} of generation {event.generation} at {event.at:g} s cannot follow "
                f"{state or 'nothing'} of generation {generation}"
            )
            yield Violation(invariant="I18", message=text, events=(before, number) if state else (number,))
        state, generation, before = event.kind, event.generation, number
        been_ready = been_ready or event.kind == "ready"
    closed = next((number for number, _ in facts.history.numbered(Closed)), None)
    if closed is not None and state not in _ENDS:
        text = f"{who}, generation {generation} was {state} when its runtime was closed at {facts.at(closed):g} s"
        yield Violation(invariant="I18", message=text, events=(before, closed))


def _two_alive(facts: Facts) -> Iterator[Violation]:
    alive: dict[tuple[str, int], tuple[int, Process]] = {}
    for number, event in facts.history.numbered(Process):
        replica = (event.stage, event.replica)
        if event.what == "spawned":
            if replica in alive:
                before, other = alive[replica]
                text = (
                    f"{in_words(event.place)} was spawned (pid {event.pid}) at {event.at:g} s while generation "
                    f"{other.generation} (pid {other.pid}) was alive"
                )
                yield Violation(invariant="I18", message=text, events=(before, number))
            alive[replica] = (number, event)
        elif event.what == "exited" and replica in alive and alive[replica][1].pid == event.pid:
            del alive[replica]


# ---------------------------------------------------------------------- I19


def i19(facts: Facts) -> Iterator[Violation]:
    """The fourth failure since ``stable_s`` marks the replica down, none before does; nothing escalates."""
    for said in _replicas(facts).values():
        yield from _counted(facts, said)
    for number, closed in facts.history.numbered(Closed):
        if closed.error == "GaveUp":
            text = f"a stage's failures ended the whole runtime at {closed.at:g} s: {closed.error}"
            yield Violation(invariant="I19", message=text, events=(number,))


def _counted(facts: Facts, said: Sequence[Said]) -> Iterator[Violation]:
    failures, ready_at, been_ready = 0, math.inf, False
    limits = facts.history.pipeline.stage(said[0][1].stage).deadlines
    for index, (number, event) in enumerate(said):
        if event.kind == "ready":
            ready_at, been_ready = event.at, True
        elif event.kind == "exited" and been_ready:
            failures = 1 if event.at >= ready_at + limits.stable_s else failures + 1
            ready_at = math.inf
            following = said[index + 1] if index + 1 < len(said) else None
            answer = "backing_off" if limits.backoff_first_s and limits.backoff_max_s else "starting"
            due = "down" if failures > MAX_FAILURES else answer
            yield from _answer(facts, failures, due, (number, event), following)
        elif event.kind == "backing_off" and index + 1 < len(said):
            delay_s = min(limits.backoff_max_s, limits.backoff_first_s * 2 ** (failures - 1))
            yield from _restarted_in_time(facts, delay_s, failures, (number, event), said[index + 1])


def _answer(facts: Facts, failures: int, due: str, failed: Said, following: Said | None) -> Iterator[Violation]:
    number, event = failed
    who = f"{in_words((event.stage, event.replica, event.generation))} failed at {event.at:g} s"
    text = f"{who}, failure number {failures} since it was last stable: it should be {due}"
    if following is None:
        if not _is_closing(facts, number):
            yield Violation(invariant="I19", message=f"{text}, and nothing followed", events=(number,))
    elif following[1].kind != due:
        yield Violation(invariant="I19", message=f"{text}, not {following[1].kind}", events=(number, following[0]))


def _is_closing(facts: Facts, number: int) -> bool:
    """Whether the runtime was being closed (or had never been open) when this happened: nothing is restarted then."""
    opened = next((n for n, _ in facts.history.numbered(Opened)), None)
    closing = next((n for n, _ in facts.history.numbered(ShutdownCalled, Closed)), None)
    return opened is None or closing is None or closing < number or facts.at(closing) <= facts.at(number)


def _restarted_in_time(
    facts: Facts, delay_s: float, failures: int, failed: Said, following: Said
) -> Iterator[Violation]:
    waited_s = following[1].at - failed[1].at
    if following[1].kind == "starting" and abs(waited_s - delay_s) > facts.history.slack_s:
        place = in_words((failed[1].stage, failed[1].replica, failed[1].generation))
        text = (
            f"{place} was replaced {waited_s:g} s after its end at {failed[1].at:g} s; after {failures} failures the "
            f"back-off is {delay_s:g} s"
        )
        yield Violation(invariant="I19", message=text, events=(failed[0], following[0]))


# ---------------------------------------------------------------------- I20


def i20(facts: Facts) -> Iterator[Violation]:
    """Fencing: no message of generation g is acted on after g was declared dead."""
    declared = _declared_dead(facts)
    for number, event in facts.history.numbered(Wire):
        life = facts.generations.get(event.place)
        # What had been settled in the very moment of the death may still leave; nothing is heard any more.
        dead = declared.get(event.place) if event.way == "heard" else life.dead if life is not None else None
        if dead is not None and number > dead:
            what = f"{event.what} {event.key}".rstrip()
            text = (
                f"{in_words(event.place)} was dead at {facts.at(dead):g} s, and at {event.at:g} s {what} was "
                f"{event.way} on its socket"
            )
            yield Violation(invariant="I20", message=text, events=(dead, number), request=_owner(facts, event.key))
    for lease in facts.leases.values():
        yield from _bound_to_nobody(facts, lease)
    for request in facts.requests.values():
        yield from _more_than_heard(facts, request)


def _declared_dead(facts: Facts) -> Mapping[Place, int]:
    """Where each generation was first said to be dead: by its supervisor, or by the error of a request that it took."""
    found = {place: life.dead for place, life in facts.generations.items() if life.dead is not None}
    for number, end in facts.history.numbered(TerminalSeen):
        if end.error == "StageFailed" and end.stage is not None and end.generation is not None:
            place = (end.stage, end.replica or 0, end.generation)
            found[place] = min(number, found.get(place, number))
    return found


def _owner(facts: Facts, key: str) -> str | None:
    lease = facts.leases.get(key)
    return lease.request.name if lease is not None and lease.request is not None else None


def _bound_to_nobody(facts: Facts, lease: Lease) -> Iterator[Violation]:
    """Work goes to a generation between its readiness and its end. The supervisor says either a moment later."""
    life, added_at, slack_s = facts.generations.get(lease.place), facts.at(lease.added), facts.history.slack_s
    owner = lease.request.name if lease.request is not None else None
    said = f"lease {lease.key} was added to {in_words(lease.place)} at {added_at:g} s"
    if life is None or life.ready is None or added_at < facts.at(life.ready) - slack_s:
        yield Violation(invariant="I20", message=f"{said}, before that was ready", events=(lease.added,), request=owner)
    elif life.exited is not None and added_at > facts.at(life.exited) + slack_s:
        text = f"{said}, after its process had ended at {facts.at(life.exited):g} s"
        yield Violation(invariant="I20", message=text, events=(life.exited, lease.added), request=owner)


def _more_than_heard(facts: Facts, request: Request) -> Iterator[Violation]:
    """What a reader got from a stage whose generation is dead had been heard while it lived."""
    for stage in {lease.place[0] for lease in request.leases}:
        here = [lease for lease in request.leases if lease.place[0] == stage]
        lives = [facts.generations.get(lease.place) for lease in here]
        deaths = [life.dead for life in lives if life is not None and life.dead is not None]
        if len(deaths) < len(here):
            continue
        heard = sum(_size(facts, number) for lease in here for number in lease.outputs)
        got = [number for number in request.got if _from(facts, number, stage)]
        if (size := sum(_size(facts, number) for number in got)) > heard and got[-1] > max(deaths):
            text = (
                f"request {request.name} got {size} items of stage {stage}, the last at {facts.at(got[-1]):g} s; "
                f"{in_words(here[-1].place)}, dead since {facts.at(max(deaths)):g} s, had made {heard}"
            )
            yield Violation(invariant="I20", message=text, events=(max(deaths), got[-1]), request=request.name)


def _from(facts: Facts, number: int, stage: str) -> bool:
    event = facts.event(number)
    return isinstance(event, Got) and event.stage == stage


def _size(facts: Facts, number: int) -> int:
    event = facts.event(number)
    return len(event.data) if isinstance(event, Got | Wire) else 0


# ---------------------------------------------------------------------- I21


def i21(facts: Facts) -> Iterator[Violation]:
    """An ask ends exactly once: reply, the engine's death or deadline."""
    answers: dict[int, list[tuple[int, Answered]]] = {}
    for number, event in facts.history.numbered(Answered):
        answers.setdefault(event.call, []).append((number, event))
    for number, ask in facts.history.numbered(Asked):
        own = answers.get(ask.call, [])
        who = f"call {ask.call} of {ask.method} of stage {ask.stage}, made at {ask.at:g} s,"
        if len(own) != 1:
            ends = (number, *(answer for answer, _ in own))
            yield Violation(invariant="I21", message=f"{who} ended {len(own)} times instead of once", events=ends)
            continue
        answered, answer = own[0]
        for words in _untimely(facts, number, ask, answer):
            yield Violation(invariant="I21", message=f"{who} {words}", events=(number, answered))


def _untimely(facts: Facts, number: int, ask: Asked, answer: Answered) -> Iterator[str]:
    due, slack_s = ask.at + ask.timeout_s, facts.history.slack_s
    ended = f"ended at {answer.at:g} s with {answer.error or 'answers'}"
    if answer.at > due + slack_s:
        yield f"{ended}, after its {ask.timeout_s:g} s"
    elif answer.error == "TooSlowError" and answer.at < due - slack_s:
        yield f"{ended}, before its {ask.timeout_s:g} s"
    asked = [life for life in facts.generations.values() if life.place[0] == ask.stage and _serves(life, number)]
    deaths = [facts.at(life.dead) for life in asked if life.dead is not None]
    if asked and len(deaths) == len(asked) and answer.at > max(deaths) + slack_s:
        places = ", ".join(in_words(life.place) for life in asked)
        yield f"{ended}; the last it had asked was dead at {max(deaths):g} s: {places}"


def _serves(life: Generation, number: int) -> bool:
    return life.ready is not None and life.ready < number and (life.dead is None or life.dead > number)


SUPERVISION: Mapping[str, Checker] = {"I17": i17, "I18": i18, "I19": i19, "I20": i20, "I21": i21}
