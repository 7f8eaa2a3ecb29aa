"""Invariants I3 to I5: abort. It is final, total and idempotent, and it reports the truth.

What the runtime knows at one moment is split in two: what it *surely* held, and what it *may* have held where a release
was heard at that very moment and its table lags by a step.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import attrs

from omni_actors.testing.sim._history import AbortCalled, AbortReturned, Crashed, Deadlocked, Process, ShutdownCalled

from ._facts import Request, roomy
from ._violation import Violation
from ._words import about, kind_at, when

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ._facts import Facts, Lease

__all__ = ["EPS_S", "held_back", "i3", "i4", "i5"]

EPS_S = 1e-6

_LAG_S = 0.05
"""The runtime's table is as far as the wire after this long, on any clock."""


@attrs.frozen
class _Call:
    """One ``abort``: called and returned at these positions."""

    called: int
    id: str
    live: tuple[str, ...]
    returned: int
    report: AbortReturned


def _calls(facts: Facts) -> Iterator[_Call]:
    """The calls that returned without an error, in the order in which they did."""
    began = {event.call: (number, event) for number, event in facts.history.numbered(AbortCalled)}
    for number, event in facts.history.numbered(AbortReturned):
        if event.error is None and event.call in began:
            called, call = began[event.call]
            yield _Call(called, call.id, call.live, number, event)


def i3(facts: Facts) -> Iterator[Violation]:
    """Once an abort has returned, what it found has its terminal and engines have let go, or ``abort_s`` has passed; no
    output follows, but for a finish that was faster.
    """
    for call in _calls(facts):
        for request in facts.requests.values():
            if request.name in call.live or _under_way(request, call):
                yield from _final(facts, request, call)
            if _admitted(request, call):
                yield from _confirmed(facts, request, call)


def _under_way(request: Request, call: _Call) -> bool:
    """Whether the request had been submitted when abort was called, and had no terminal."""
    if request.id != call.id or request.accepted is None or request.submitted > call.called:
        return False
    return not request.terminals or request.terminals[0] > call.called


def _final(facts: Facts, request: Request, call: _Call) -> Iterator[Violation]:
    # One that was still being submitted has its terminal as soon as anybody can see it.
    by = call.returned if request.accepted is None else max(call.returned, request.accepted + 1)
    end = request.terminals[0] if request.terminals else None
    returned = f"the abort of {call.id} had returned ({when(facts, call.returned)})"
    if end is None or end > by:
        text = f"it had no terminal when {returned}"
        yield about(request, "I3", text, call.called, call.returned)
    if end is not None and kind_at(facts, end) == "finished":
        return
    for number in request.got:
        if number > call.returned:
            text = f"it got an output {when(facts, number)} after {returned}"
            yield about(request, "I3", text, call.returned, number)


def _confirmed(facts: Facts, request: Request, call: _Call) -> Iterator[Violation]:
    for lease, why in held_back(facts, request, call.called, call.returned):
        text = f"the abort of {call.id} had returned ({when(facts, call.returned)}) with lease {lease.key} at stage"
        yield about(request, "I3", f"{text} {lease.place[0]}, which {why}", lease.added, call.called, call.returned)


def held_back(facts: Facts, request: Request, since: int, until: int) -> Iterator[tuple[Lease, str]]:
    """The leases that engines still hold where somebody, waiting for their release, has stopped to; and why he should
    not have. He may give up ``abort_s`` after ``since``, but for leases that no engine was told to forget, unless there
    was no room to tell it.
    """
    waited = facts.at(until) - facts.at(since) >= facts.history.pipeline.abort_s - EPS_S
    for lease in request.leases:
        if lease.added > until or (lease.over is not None and lease.over < until) or _doomed(facts, lease, until):
            continue
        # One that had finished is told nothing: its release is on the way anyhow.
        told = any(number < until for number in (*lease.aborts, *([] if lease.finished is None else [lease.finished])))
        if not (waited and (told or not roomy(facts))):
            yield lease, "had not let go of it" if told else "had not been told to forget it"


def _doomed(facts: Facts, lease: Lease, until: int) -> bool:
    """Whether its generation was being buried: its leases are void before anybody says that it is dead."""
    if (life := facts.generations.get(lease.place)) is None:
        return False
    signs = [number for number in (life.dead, life.exited) if number is not None]
    signs += [
        number
        for number, event in facts.history.numbered(Process)
        if event.place == lease.place and event.what == "signalled" and event.by == "us"
    ]
    return any(facts.at(number) <= facts.at(until) + facts.history.slack_s for number in signs)


def i4(facts: Facts) -> Iterator[Violation]:
    """An abort always returns, never raises, and says that an id is unknown exactly when nothing of it was held."""
    yield from _no_answer(facts)
    for call in _calls(facts):
        held = _Held.at(facts, call)
        events = (call.called, call.returned)
        if not call.report.known and held.sure:
            names = ", ".join(request.name for request in held.sure)
            text = f"abort of {call.id} {when(facts, call.called)} did not know it, though {names} was still held"
            yield about(held.sure[0], "I4", text, *events)
        elif call.report.known and not held.maybe:
            text = f"abort of {call.id} {when(facts, call.called)} knew it, though no request of this id was held"
            yield Violation(invariant="I4", message=text, events=events)


def _no_answer(facts: Facts) -> Iterator[Violation]:
    cut = any(True for _ in facts.history.of(Crashed, Deadlocked))
    returned = {event.call for event in facts.history.of(AbortReturned)}
    for number, call in facts.history.numbered(AbortCalled):
        if call.call not in returned and not cut:
            text = f"abort of {call.id}, called {when(facts, number)}, never returned"
            yield Violation(invariant="I4", message=text, events=(number,), request=next(iter(call.live), None))
    for number, event in facts.history.numbered(AbortReturned):
        if event.error is not None:
            text = f"abort of {event.id} raised {event.error} {when(facts, number)}"
            yield Violation(invariant="I4", message=text, events=(number,))


def i5(facts: Facts) -> Iterator[Violation]:
    """The first settle wins: a request keeps its kind, and what abort reports is how its requests did end."""
    for request in facts.requests.values():
        kinds = [kind_at(facts, number) for number in request.terminals]
        if len(set(kinds)) > 1:
            text = f"it was {kinds[0]} {when(facts, request.terminals[0])}, and {kinds[1]} later"
            yield about(request, "I5", text, *request.terminals)
    for call in _calls(facts):
        yield from _reported(facts, call, _Held.at(facts, call))


def _reported(facts: Facts, call: _Call, held: _Held) -> Iterator[Violation]:
    told = Counter(call.report.kinds)
    missing = Counter(_ending(facts, request) for request in held.sure) - told
    surplus = told - Counter(_ending(facts, request) for request in held.maybe)
    if not missing and not surplus:
        return
    ends = ", ".join(f"request {request.name} {_ending(facts, request)}" for request in held.maybe) or "nothing"
    kinds = ", ".join(call.report.kinds) or "nothing"
    text = f"abort of {call.id} reported {kinds} {when(facts, call.returned)}; what it found ended so: {ends}"
    name = held.maybe[0].name if held.maybe else None
    yield Violation(invariant="I5", message=text, events=(call.called, call.returned), request=name)


# ---------------------------------------------------------------------- what the runtime held at an abort


@attrs.frozen
class _Held:
    """The requests of the call's id that the runtime held when abort was called. ``sure`` is a part of ``maybe``."""

    sure: list[Request]
    maybe: list[Request]

    @classmethod
    def at(cls, facts: Facts, call: _Call) -> _Held:
        known = [request for request in facts.requests.values() if _admitted(request, call)]
        maybe = [request for request in known if not _surely_closed(facts, request, call.called)]
        return cls([request for request in maybe if _surely_open(facts, request, call)], maybe)


def _admitted(request: Request, call: _Call) -> bool:
    """Submitting takes the credits in the step in which it begins; what was refused before the call is gone."""
    submitted = request.id == call.id and request.submitted < call.called
    return submitted and (request.refused is None or request.refused > call.called)


def _surely_open(facts: Facts, request: Request, call: _Call) -> bool:
    if request.accepted is None or request.accepted > call.called:
        # An earlier abort closed it at once: it had no lease. It is seen only when its submit ends.
        return not any(request.submitted < number < call.called for number in _closings(facts, request.id))
    if not request.terminals:
        return False
    return request.terminals[0] > call.called or any(
        lease.added < call.called and lease.over is not None and lease.over > call.called and lease.how != "died"
        for lease in request.leases
    )


def _closings(facts: Facts, request_id: str) -> Iterator[int]:
    for number, event in facts.history.numbered(AbortCalled, ShutdownCalled):
        if isinstance(event, ShutdownCalled) or (isinstance(event, AbortCalled) and event.id == request_id):
            yield number


def _surely_closed(facts: Facts, request: Request, position: int) -> bool:
    if not request.terminals:
        return False
    ends = [request.terminals[0], *(_closed(facts, lease) for lease in request.leases if lease.added < position)]
    return all(end is not None and facts.at(position) - facts.at(end) > _LAG_S for end in ends)


def _closed(facts: Facts, lease: Lease) -> int | None:
    """From where on the runtime holds nothing for the lease. None: nobody can tell.

    A finish or a failure that crosses its abort does not count: the runtime waits for the answer to the abort.
    """
    died = facts.generations[lease.place].dead if lease.place in facts.generations else None
    crossed = lease.how == "failed" or (lease.finished is not None and lease.over == lease.finished + 1)
    if not (lease.aborts and crossed):
        return lease.over
    return min((end for end in (*lease.more_ends[:1], died) if end is not None), default=None)


def _ending(facts: Facts, request: Request) -> str:
    """How it ended; one that was refused while it was being aborted has the abort for its end."""
    return kind_at(facts, request.terminals[0]) if request.terminals else "aborted"
