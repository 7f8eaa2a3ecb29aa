"""From a history to the lanes of its timeline: the runtime, calls, faults, a lane per request, one per replica."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from omni_actors.testing.invariants import Facts, Violation
from omni_actors.testing.sim import _history as seen

from ._timeline_axis import Axis, seconds
from ._timeline_story import MARKS, Item, Lane, Mark, Note, Span, Story
from ._timeline_words import lease_name, timed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from omni_actors.testing.invariants._facts import Lease, Request

__all__ = ["MOST_REQUESTS", "tell"]

MOST_REQUESTS = 24
"""Lanes of requests in one picture: those of the violation first, then in order of their coming."""
_SAID = {"starting": "starting", "ready": "ready", "stopping": "stopping", "backing_off": "backing off", "down": "down"}
_OfReplica = seen.Wire | seen.Process | seen.StageSaid | seen.Faulted
_Alarm = seen.Crashed | seen.Exceeded | seen.Deadlocked
_Begin = seen.AbortCalled | seen.ShutdownCalled | seen.Asked
_OVER = {"released": "released", "failed": "lease failed", "unsent": "unsent", "died": "died"}


def tell(history: seen.History, violation: Violation | None = None) -> Story:
    """The whole picture as data."""
    teller = _Teller(history, violation)
    requests, hidden = teller.requests()
    lanes = [teller.runtime(), teller.calls(), teller.faults(), *requests, *teller.replicas()]
    drawn = tuple(lane for lane in lanes if lane.spans or lane.marks or lane.items)
    title = f"{violation}" if violation is not None else "no violation"
    notes = tuple(teller.notes())
    bare = Story(
        title=title, violated=violation is not None, lanes=drawn, notes=notes, axis=Axis(()), hidden=tuple(hidden)
    )
    return attrs.evolve(bare, axis=Axis((number, teller.at(number)) for number in _shown(bare)))


def _shown(story: Story) -> Iterator[int]:
    for span in story.spans():
        yield from (span.first, span.last)
    yield from (mark.number for mark in story.marks())
    yield from (note.number for note in story.notes)


class _Teller:
    """Owns nothing but the reading of one history."""

    def __init__(self, history: seen.History, violation: Violation | None) -> None:
        self.history, self.facts = history, Facts(history)
        self.last = max(0, len(history.events) - 1)
        events = () if violation is None else violation.events
        self.decisive = tuple(dict.fromkeys(n for n in events if 0 <= n < len(history.events)))
        self.concerned = {violation.request} if violation is not None else set()
        self.concerned |= {getattr(history.events[n], "request", None) for n in self.decisive}

    def at(self, number: int) -> float:
        """When it happened."""
        return self.history.events[number].at if self.history.events else 0.0

    def mark(self, number: int, kind: str) -> Mark:
        """A mark whose title is the event's."""
        return Mark(number, kind, timed(self.history.events[number], self.facts))

    def span(self, first: int, last: int | None, kind: str, what: str) -> Span:
        """A span with its times in the title; to the end where it never ended."""
        end = self.last if last is None else last
        until = "the end" if last is None else f"{seconds(self.at(end))} s"
        return Span(first, end, kind, f"{what}: {seconds(self.at(first))} s to {until}")

    def notes(self) -> Iterator[Note]:
        """The violation's events, numbered in their order of time."""
        for index, number in enumerate(sorted(self.decisive), start=1):
            yield Note(index, number, timed(self.history.events[number], self.facts))

    # ------------------------------------------------------------------ runtime, calls, faults

    def runtime(self) -> Lane:
        """Opening, open, closing; and what nobody should see."""
        spans, since, kind, closed = list[Span](), 0, "opening", False
        for number, event in self.history.numbered(seen.Opened, seen.ShutdownCalled, seen.Closed):
            if closed or (isinstance(event, seen.ShutdownCalled) and kind == "closing"):
                continue
            spans.append(self.span(since, number, kind, kind))
            since, kind = number, "open" if isinstance(event, seen.Opened) else "closing"
            closed = isinstance(event, seen.Closed)
        if not closed and self.history.events:
            spans.append(self.span(since, None, kind, kind))
        marks = tuple(self.mark(number, what) for number, what in self._alarms())
        own = seen.Opened | seen.Closed | seen.State | seen.HealthSeen | _Alarm
        numbers = frozenset(n for n, event in enumerate(self.history.events) if isinstance(event, own))
        note = ", ".join(dict.fromkeys(MARKS[mark.kind] for mark in marks))
        return Lane(kind="runtime", name="runtime", spans=tuple(spans), marks=marks, note=note, numbers=numbers)

    def _alarms(self) -> Iterator[tuple[int, str]]:
        for number, event in enumerate(self.history.events):
            if isinstance(event, _Alarm):
                yield number, type(event).__name__.lower()

    def calls(self) -> Lane:
        """Every abort, shutdown and call, from its beginning to its end."""
        begins, ends = list[tuple[int, _Begin]](), dict[int, int]()
        for number, event in enumerate(self.history.events):
            if isinstance(event, seen.AbortReturned | seen.ShutdownReturned | seen.Answered):
                ends[event.call] = number
            elif isinstance(event, _Begin) and not (isinstance(event, seen.ShutdownCalled) and event.by == "leave"):
                begins.append((number, event))
        items = tuple(self._call(number, ends.get(event.call), event) for number, event in begins)
        numbers = {item.first for item in items} | set(ends.values())
        return Lane(kind="calls", name="calls", items=items, numbers=frozenset(numbers))

    def _call(self, number: int, end: int | None, event: _Begin) -> Item:
        match event:
            case seen.AbortCalled(id=user_id):
                label = f"abort {user_id}"
            case seen.Asked(stage=stage, method=method):
                label = f"{method} {stage}"
            case _:
                label = "shutdown"
        marks = () if end is None else (self.mark(end, "returned"),)
        first = self.span(number, end, "call", label)
        title = timed(event, self.facts)
        return Item(number, first.last, label, title, (attrs.evolve(first, title=title),), marks)

    def faults(self) -> Lane:
        """What the scenario did to the engines."""
        items = []
        for number, event in self.history.numbered(seen.Faulted):
            mark = self.mark(number, "fault" if event.done else "no fault")
            who = f"{event.stage}/{event.replica}"
            label = f"{event.op} {who}" if event.done else f"({event.op} {who}: nobody)"
            items.append(Item(number, number, label, mark.title, (), (mark,)))
        numbers = frozenset(item.first for item in items)
        return Lane(kind="faults", name="faults", items=tuple(items), numbers=numbers)

    # ------------------------------------------------------------------ requests

    def requests(self) -> tuple[list[Lane], list[str]]:
        """A lane each, and words for those that are too many."""
        everyone = list(self.facts.requests.values())
        concerned = [request for request in everyone if request.name in self.concerned]
        others = [request for request in everyone if request.name not in self.concerned]
        chosen = {request.name for request in (concerned + others)[:MOST_REQUESTS]}
        lanes = [self._request(request) for request in everyone if request.name in chosen]
        more = len(everyone) - len(lanes)
        return lanes, [f"{more} more requests"] if more else []

    def _request(self, request: Request) -> Lane:
        settled = request.terminals[0] if request.terminals else None
        end = request.left if request.left is not None else request.refused
        name, begun = request.name, request.submitted
        waited = request.accepted if request.accepted is not None else request.refused
        spans = [self.span(begun, waited, "waiting", f"{name} waits to be accepted")]
        if request.accepted is not None:
            spans.append(self.span(request.accepted, settled if settled is not None else end, "live", f"{name} lives"))
        if settled is not None and end != settled:
            spans.append(self.span(settled, end, "leaving", f"{name} is over, its block not yet left"))
        events = self.history.events
        marks = [self.mark(begun, "submitted"), *(self.mark(number, "got") for number in request.got)]
        for number in request.terminals:
            event = events[number]
            assert isinstance(event, seen.TerminalSeen)
            marks.append(self.mark(number, event.kind if event.kind in MARKS else "failed"))
        marks += [self.mark(number, "refused") for number in [request.refused] if number is not None]
        marks += [self.mark(number, "left") for number in [request.left] if number is not None]
        more = (request.accepted, request.ended)
        numbers = {mark.number for mark in marks} | {number for number in more if number is not None}
        return Lane(
            kind="request",
            name=name,
            spans=tuple(spans),
            marks=tuple(marks),
            note=self._outcome(request),
            numbers=frozenset(numbers),
        )

    def _outcome(self, request: Request) -> str:
        if request.refused is not None:
            event = self.history.events[request.refused]
            return f"refused: {event.error}" if isinstance(event, seen.Refused) else "refused"
        if not request.terminals:
            return "never over"
        event = self.history.events[request.terminals[0]]
        assert isinstance(event, seen.TerminalSeen)
        where = "" if event.stage is None or event.kind != "failed" else f" at {event.stage}"
        twice = "" if len(request.terminals) == 1 else f", {len(request.terminals)} times"
        return f"{event.kind}{where}{twice}"

    # ------------------------------------------------------------------ replicas

    def replicas(self) -> Iterator[Lane]:
        """A lane for every replica that was ever heard of, in the pipeline's order."""
        order = {stage.name: number for number, stage in enumerate(self.history.pipeline.stages)}
        known = {place[:2] for place in (*self.facts.generations, *(x.place for x in self.facts.leases.values()))}
        for stage, replica in sorted(known, key=lambda place: (order.get(place[0], len(order)), place)):
            yield self._replica(stage, replica)

    def _replica(self, stage: str, replica: int) -> Lane:
        numbered = [(n, e) for n, e in self._of(stage, replica) if not isinstance(e, seen.Faulted)]
        said = [(n, e) for n, e in numbered if isinstance(e, seen.StageSaid)]
        spans = tuple(self._lives(said)) + tuple(self._stalls(stage, replica))
        marks = [self.mark(n, "exit" if died else "ended") for n, died in self._exits(numbered)]
        marks += [self.mark(n, "down") for n, e in said if e.kind == "down"]
        leases = [lease for lease in self.facts.leases.values() if lease.place[:2] == (stage, replica)]
        leases.sort(key=lambda lease: lease.added)
        generations = {event.generation for _, event in said}
        note = f"{len(generations)} generations" if len(generations) > 1 else ""
        note = "down" if any(event.kind == "down" for _, event in said) else note
        return Lane(
            kind="replica",
            name=f"{stage}/{replica}",
            spans=spans,
            marks=tuple(marks),
            items=tuple(self._lease(lease) for lease in leases),
            note=note,
            numbers=frozenset(n for n, _ in numbered),
        )

    def _of(self, stage: str, replica: int) -> Iterator[tuple[int, _OfReplica]]:
        for number, event in enumerate(self.history.events):
            if isinstance(event, _OfReplica) and (event.stage, event.replica) == (stage, replica):
                yield number, event

    def _exits(self, numbered: Iterable[tuple[int, seen.Event]]) -> Iterator[tuple[int, bool]]:
        """Where its processes ended, and whether that was a death: nobody had told the replica to stop."""
        told = False
        for number, event in numbered:
            if isinstance(event, seen.StageSaid):
                told = event.kind == "stopping" or (told and event.kind != "starting")
            elif isinstance(event, seen.Process) and event.what == "exited":
                yield number, not told

    def _lives(self, said: list[tuple[int, seen.StageSaid]]) -> Iterator[Span]:
        """What the runtime said of the replica, each word until the next."""
        for index, (number, event) in enumerate(said):
            kind = _SAID.get(event.kind)
            until = said[index + 1][0] if index + 1 < len(said) else None
            if kind is not None:
                who = f"{event.stage}/{event.replica}#{event.generation}"
                yield self.span(number, until, kind, f"{who} {kind}")

    def _stalls(self, stage: str, replica: int) -> Iterator[Span]:
        since: int | None = None
        for number, event in self._of(stage, replica):
            match event:
                case seen.Faulted(op="stall", done=True) if since is None:
                    since = number
                case seen.Faulted(op="resume") | seen.Process(what="exited") if since is not None:
                    yield self.span(since, number, "stalled", f"{stage}/{replica} stalled")
                    since = None
                case _:
                    pass
        if since is not None:
            yield self.span(since, None, "stalled", f"{stage}/{replica} stalled")

    def _lease(self, lease: Lease) -> Item:
        name = lease_name(lease.key, lease)
        busy = lease.over if lease.finished is None or self._at_once(lease.finished, lease.over) else lease.finished
        spans = [self.span(lease.added, busy, "lease", f"lease {name} ({lease.key})")]
        if busy is not None and busy != lease.over:
            spans.append(self.span(busy, lease.over, "unreleased", f"lease {name} finished, not yet released"))
        marks = [self.mark(number, "output") for number in lease.outputs]
        marks += [self.mark(number, "abort sent") for number in lease.aborts]
        marks += [self.mark(lease.over, _OVER[lease.how])] if lease.over is not None and lease.how is not None else []
        return Item(lease.added, spans[-1].last, name, spans[0].title, tuple(spans), tuple(marks))

    def _at_once(self, finished: int, over: int | None) -> bool:
        """Whether a lease was released with its last output: its last moments are then no stretch of their own."""
        return over is not None and self.at(over) - self.at(finished) < 1e-9
