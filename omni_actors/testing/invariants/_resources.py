"""Invariants of resources: leases, credits, bounds, deadlocks, and control under pressure (I11 to I16)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from omni_actors.testing.sim._history import (
    AbortCalled,
    AbortReturned,
    Accepted,
    Closed,
    Deadlocked,
    Exceeded,
    Faulted,
    Noted,
    ShutdownCalled,
    ShutdownReturned,
    State,
    TerminalSeen,
    Wire,
)

from ._facts import Facts, in_words, roomy
from ._lifecycle import cut_off, rungs
from ._violation import Violation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from ._facts import Lease, Request
    from ._violation import Checker

    Pressed = Callable[[int], bool]
    """Whether a call that was made at this position is to be judged."""

__all__ = ["RESOURCES", "i11", "i12", "i13", "i14", "i15", "i16"]


# ---------------------------------------------------------------------- I11


def i11(facts: Facts) -> Iterator[Violation]:
    """Each lease ends exactly once: finished and released, abort confirmed, never sent, or its generation's death."""
    if next(facts.history.of(Closed), None) is None or cut_off(facts.history):
        return
    for lease in facts.leases.values():
        for events, words in (*_ends(facts, lease), *_outlives(facts, lease)):
            name = lease.request.name if lease.request is not None else None
            owner = "of no accepted request" if name is None else f"of request {name}"
            added = f"added to {in_words(lease.place)} at {facts.at(lease.added):g} s"
            text = f"lease {lease.key} {owner}, {added}, {words}"
            yield Violation(invariant="I11", message=text, events=(lease.added, *events), request=name)


def _ends(facts: Facts, lease: Lease) -> Iterator[tuple[tuple[int, ...], str]]:
    if lease.adds != 1:
        yield (), f"was sent {lease.adds} times"
    if lease.over is None:
        yield (), "never ended"
        return
    # What an engine says of an ended lease is late: ignored. Taking it back is ours alone, and not a second end.
    for late in lease.more_ends:
        event = facts.event(late)
        if isinstance(event, Wire) and event.way == "unsent":
            yield (lease.over, late), f"was taken back at {event.at:g} s, though it had ended: {lease.how}"
    own = facts.generations.get(lease.place)
    if lease.how == "unsent" and lease.outputs and not (own is not None and own.faults):
        yield (lease.over, lease.outputs[-1]), "was taken back, and yet its engine worked on it"


def _outlives(facts: Facts, lease: Lease) -> Iterator[tuple[tuple[int, ...], str]]:
    """What is live when its request ends has nobody left who wants it: its engine must be told."""
    if lease.request is None or not lease.request.terminals or not roomy(facts):
        return
    settled = lease.request.terminals[0]
    if lease.added > settled:
        yield (settled,), f"was sent after its request had ended at {facts.at(settled):g} s"
        return
    ends = [number for number in (lease.finished, lease.over) if number is not None]
    ended_at = min(map(facts.at, ends), default=float("inf"))
    told = lease.aborts or lease.how in ("unsent", "died")
    if not told and ended_at > facts.at(settled) + facts.history.slack_s:
        yield (settled, *ends[:1]), f"was not aborted when its request ended at {facts.at(settled):g} s"


# ---------------------------------------------------------------------- I12, I13, I14


def i12(facts: Facts) -> Iterator[Violation]:
    """With no live request: ledgers zero, maps and mailboxes empty, credits at their start."""
    for number, event in facts.history.numbered(State):
        if event.when == "quiet" and (held := {name: count for name, count in event.counts.items() if count}):
            listed = ", ".join(f"{name} {count}" for name, count in held.items())
            text = f"no request was live at {event.at:g} s, but the runtime held: {listed}"
            yield Violation(invariant="I12", message=text, events=(number,))


def i13(facts: Facts) -> Iterator[Violation]:
    """Bounds hold at every event: in flight ≤ credits, buffers ≤ capacity."""
    for number, event in facts.history.numbered(Exceeded):
        text = f"{event.bound}: {event.value} at {event.at:g} s, over the bound of {event.limit}"
        yield Violation(invariant="I13", message=text, events=(number,))
    yield from _too_many_requests(facts)
    yield from _too_many_at_the_roots(facts)
    yield from _too_many_parts(facts)


def _too_many_requests(facts: Facts) -> Iterator[Violation]:
    limit, live = facts.history.pipeline.limits.max_requests, set[str]()
    for number, event in enumerate(facts.history.events):
        if isinstance(event, TerminalSeen):
            live.discard(event.request)
        if not isinstance(event, Accepted):
            continue
        live.add(event.request)
        if len(live) > limit:
            text = f"request {event.request} was accepted at {event.at:g} s as number {len(live)} of at most {limit}"
            yield Violation(invariant="I13", message=text, events=(number,), request=event.request)


def _too_many_at_the_roots(facts: Facts) -> Iterator[Violation]:
    """Samples and companions at work where prompts go: each has a slot. The runtime may know of more of them."""
    limit = facts.history.pipeline.limits.max_requests
    roots = {stage.name for stage in facts.history.pipeline.stages if not stage.inputs}
    here = [lease for lease in facts.leases.values() if lease.place[0] in roots]
    for lease in here if len(here) > limit else ():
        if (live := sum(_at_work(other, lease.added) for other in here)) > limit:
            text = f"lease {lease.key} was sent at {facts.at(lease.added):g} s as number {live} of {limit} slots"
            yield Violation(invariant="I13", message=text, events=(lease.added,))
            break


def _too_many_parts(facts: Facts) -> Iterator[Violation]:
    """Parts at work, per request and stage. Counted by what was heard: the runtime may know of more of them."""
    for request in facts.requests.values():
        for stage in facts.history.pipeline.stages:
            limit = max((edge.parts_in_flight for edge in stage.inputs), default=1)
            here = [lease for lease in request.leases if lease.place[0] == stage.name]
            for lease in here:
                live = {_part(other) for other in here if _at_work(other, lease.added)}
                if len(live) > limit:
                    text = (
                        f"request {request.name} had {len(live)} parts at work in stage {stage.name} at "
                        f"{facts.at(lease.added):g} s; its window is {limit}"
                    )
                    yield Violation(invariant="I13", message=text, events=(lease.added,), request=request.name)
                    break


def _part(lease: Lease) -> str:
    """The lease's key without its sample: several samples, and companions, are one part."""
    return re.sub(r"-[sc]\d+$", "", lease.key)


def _at_work(lease: Lease, number: int) -> bool:
    ends = [end for end in (lease.finished, lease.over) if end is not None]
    return lease.added <= number and all(end > number for end in ends)


def i14(facts: Facts) -> Iterator[Violation]:
    """No silent deadlock: if every task is blocked and work is live, some deadline or external wait is pending."""
    for number, event in facts.history.numbered(Deadlocked):
        open_now = ", ".join(
            request.name for request in facts.requests.values() if request.accepted is not None and request.left is None
        )
        text = f"nothing could ever run again; requests in their blocks: {open_now or 'none'}; tasks: {event.tasks}"
        yield Violation(invariant="I14", message=text, events=(number,))


# ---------------------------------------------------------------------- I15


def i15(facts: Facts) -> Iterator[Violation]:
    """Control is never stuck: with queues full and engines stalled, abort and shutdown still meet their deadlines."""
    stalls = _stalls(facts)
    tight = not roomy(facts) or bool(facts.history.sites & {"inbox.capacity", "inbox.queue"})

    def pressed(number: int) -> bool:
        return tight or any(begun < number < ended for begun, ended in stalls)

    yield from _aborts_in_time(facts, "I15", pressed)
    yield from _shutdowns_in_time(facts, pressed)
    yield from _aborts_overtake(facts, pressed)


def _stalls(facts: Facts) -> list[tuple[int, float]]:
    """From where to where an engine was stopped."""
    begun: dict[tuple[str, int, int], int] = {}
    found: list[tuple[int, float]] = []
    for number, event in facts.history.numbered(Faulted):
        place = (event.stage, event.replica, event.generation)
        if event.done and event.op == "stall":
            begun.setdefault(place, number)
        elif event.done and event.op == "resume" and place in begun:
            found.append((begun.pop(place), number))
    for place, number in begun.items():
        dead = facts.generations[place].dead
        found.append((number, float("inf") if dead is None else dead))
    return found


def _aborts_in_time(facts: Facts, invariant: str, judged: Pressed) -> Iterator[Violation]:
    returns = {event.call: (number, event) for number, event in facts.history.numbered(AbortReturned)}
    abort_s = facts.history.pipeline.abort_s
    for number, call in facts.history.numbered(AbortCalled):
        if not judged(number):
            continue
        who = f"abort call {call.call} of request id {call.id!r}, made at {call.at:g} s,"
        if call.call not in returns:
            yield Violation(invariant=invariant, message=f"{who} never returned", events=(number,))
            continue
        returned, event = returns[call.call]
        if event.at - call.at > abort_s + facts.history.slack_s:
            text = f"{who} returned at {event.at:g} s, after more than abort_s = {abort_s:g} s"
            yield Violation(invariant=invariant, message=text, events=(number, returned))


def _shutdowns_in_time(facts: Facts, pressed: Pressed) -> Iterator[Violation]:
    returns = {event.call: number for number, event in facts.history.numbered(ShutdownReturned)}
    due = rungs(facts)
    for number, call in facts.history.numbered(ShutdownCalled):
        if due is None or call.by != "call" or not pressed(number):
            continue
        who = f"shutdown call {call.call}, made at {call.at:g} s with full queues or stalled engines,"
        returned = returns.get(call.call)
        if returned is None:
            yield Violation(invariant="I15", message=f"{who} never returned", events=(number,))
        elif facts.at(returned) > max(call.at, due.closed) + facts.history.slack_s:
            text = f"{who} returned at {facts.at(returned):g} s; its deadlines allow {max(call.at, due.closed):g} s"
            yield Violation(invariant="I15", message=text, events=(number, returned))


def _aborts_overtake(facts: Facts, pressed: Pressed) -> Iterator[Violation]:
    """The word to the engine leaves in the moment in which the request ends, whatever else waits to leave."""
    if not roomy(facts):
        return
    for lease in facts.leases.values():
        request = lease.request
        if request is None or not request.terminals or not lease.aborts:
            continue
        settled, told = request.terminals[0], lease.aborts[0]
        if pressed(settled) and facts.at(told) > facts.at(settled) + facts.history.slack_s:
            text = (
                f"request {request.name} ended at {facts.at(settled):g} s, but {in_words(lease.place)} was told to "
                f"abort its lease {lease.key} only at {facts.at(told):g} s"
            )
            yield Violation(invariant="I15", message=text, events=(settled, told), request=request.name)


# ---------------------------------------------------------------------- I16


def i16(facts: Facts) -> Iterator[Violation]:
    """Abort is prompt: it returns within ``abort_s`` even if a stage never answers, and names what is unconfirmed. An
    engine that has heard of it begins no step for it any more.
    """
    yield from _aborts_in_time(facts, "I16", lambda number: True)
    yield from _leaves_in_time(facts)
    yield from _steps_for_nobody(facts)
    calls = {event.call: (number, event) for number, event in facts.history.numbered(AbortCalled)}
    for number, event in facts.history.numbered(AbortReturned):
        if event.call in calls and event.error is None:
            yield from _unconfirmed(facts, *calls[event.call], number, event)


def _steps_for_nobody(facts: Facts) -> Iterator[Violation]:
    told: dict[tuple[str, int, int, str], int] = {}
    for number, event in facts.history.numbered(Noted):
        place = (event.stage, event.replica, event.generation)
        lease = (*place, event.key)
        if event.what == "abort":
            told.setdefault(lease, number)
        elif lease in told:
            text = (
                f"{in_words(place)} began a step for lease {event.key} at {event.at:g} s; it had been told to "
                f"forget it at {facts.at(told.pop(lease)):g} s"
            )
            owner = facts.leases[event.key].request if event.key in facts.leases else None
            name = owner.name if owner is not None else None
            yield Violation(invariant="I16", message=text, events=(number,), request=name)


def _leaves_in_time(facts: Facts) -> Iterator[Violation]:
    abort_s = facts.history.pipeline.abort_s
    for request in facts.requests.values():
        if request.ended is None:
            continue
        if request.left is None:
            if not cut_off(facts.history):
                text = f"request {request.name}: its block, left at {facts.at(request.ended):g} s, was never over"
                yield Violation(invariant="I16", message=text, events=(request.ended,), request=request.name)
        elif facts.at(request.left) - facts.at(request.ended) > abort_s + facts.history.slack_s:
            text = (
                f"request {request.name}: its block, left at {facts.at(request.ended):g} s, was over at "
                f"{facts.at(request.left):g} s, after more than abort_s = {abort_s:g} s"
            )
            yield Violation(invariant="I16", message=text, events=(request.ended, request.left), request=request.name)


def _unconfirmed(
    facts: Facts, called: int, call: AbortCalled, returned: int, report: AbortReturned
) -> Iterator[Violation]:
    who = f"abort call {call.call} of request id {call.id!r}, returned at {report.at:g} s,"
    asked = [request for request in facts.requests.values() if request.id == call.id and request.submitted < called]
    of_it = {lease.key: lease for request in asked for lease in request.leases if lease.added < returned}
    where = (called, returned)

    def violation(words: str, *, request: Request | None = None) -> Violation:
        name = request.name if request is not None else None
        return Violation(invariant="I16", message=f"{who} {words}", events=where, request=name)

    if report.unconfirmed and report.at - call.at < facts.history.pipeline.abort_s - facts.history.slack_s:
        yield violation(f"names {', '.join(report.unconfirmed)} as unconfirmed, but has waited less than abort_s")
    for key in report.unconfirmed:
        lease = of_it.get(key)
        if lease is None:
            yield violation(f"names the lease {key}, which is none of this id's")
        elif lease.over is not None and _surely_over(facts, lease, report.at):
            words = f"names lease {key} of {in_words(lease.place)} as unconfirmed; it had ended: {lease.how}"
            yield violation(f"{words} at {facts.at(lease.over):g} s", request=lease.request)
        elif not _suspected(facts, lease, called, returned):
            words = f"has lease {key} unconfirmed, and nobody asked {in_words(lease.place)} for a sign of life"
            yield violation(words, request=lease.request)
    for key, lease in of_it.items():
        if key not in report.unconfirmed and not _over_by(facts, lease, report.at):
            words = f"does not name lease {key} of {in_words(lease.place)}, which had not ended"
            yield violation(words, request=lease.request)


def _over_by(facts: Facts, lease: Lease, at: float) -> bool:
    return lease.over is not None and facts.at(lease.over) <= at + facts.history.slack_s


def _surely_over(facts: Facts, lease: Lease, at: float) -> bool:
    """A lease that was told to end and then finished may still be awaited: for the answer behind its abort."""
    awaited = lease.finished is not None and bool(lease.aborts)
    return not awaited and lease.over is not None and facts.at(lease.over) < at - facts.history.slack_s


def _suspected(facts: Facts, lease: Lease, called: int, returned: int) -> bool:
    """Whether a ping is under way: sent because of the call, or because of the silence that it fell into."""
    life = facts.generations.get(lease.place)
    until = facts.at(returned) + facts.history.slack_s
    ends = () if life is None else (life.exited, life.dead, life.stopping)
    if life is None or not roomy(facts) or any(end is not None and facts.at(end) <= until for end in ends):
        return True
    wire = [(n, event) for n, event in facts.history.numbered(Wire) if event.place == lease.place and event.at <= until]
    heard = max((number for number, event in wire if event.way == "heard"), default=-1)
    return any(event.what == "ping" and number > min(called, heard) for number, event in wire)


RESOURCES: Mapping[str, Checker] = {"I11": i11, "I12": i12, "I13": i13, "I14": i14, "I15": i15, "I16": i16}
