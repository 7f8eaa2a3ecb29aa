"""What a timeline shows, before it is drawn: lanes of spans and marks over the positions of a history.

Both drawings, in characters and as SVG, are made of this; neither looks at the history again. Nothing here judges: what
is marked as a violation's is what the violation says.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import attrs

from ._timeline_axis import Axis

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

__all__ = ["MARKS", "SPANS", "Item", "Lane", "Mark", "Note", "Span", "Story", "in_rows"]

LaneKind = Literal["runtime", "calls", "faults", "request", "replica"]

MARKS = {
    "submitted": "submitted",
    "got": "output read",
    "finished": "finished",
    "aborted": "aborted",
    "failed": "failed",
    "timed out": "timed out",
    "refused": "refused",
    "left": "left",
    "output": "output heard",
    "abort sent": "abort sent",
    "released": "lease over",
    "lease failed": "lease failed",
    "unsent": "never sent",
    "died": "died with its engine",
    "exit": "process died",
    "ended": "process ended",
    "fault": "fault",
    "no fault": "fault that met nobody",
    "down": "given up",
    "returned": "returned",
    "crashed": "crashed",
    "exceeded": "over a bound",
    "deadlocked": "deadlocked",
}
"""Every kind of mark, in words."""

SPANS = {
    "opening": "opening",
    "open": "open",
    "closing": "shutting down",
    "waiting": "waiting",
    "live": "live",
    "leaving": "not yet left",
    "starting": "starting",
    "ready": "ready",
    "stalled": "stalled",
    "stopping": "stopping",
    "backing off": "backing off",
    "down": "down",
    "lease": "lease",
    "unreleased": "not yet released",
    "call": "call",
}
"""Every kind of span, in words."""


@attrs.frozen
class Mark:
    """Something that happened at a position. ``kind``: of ``MARKS``; ``title`` says it exactly."""

    number: int
    kind: str
    title: str


@attrs.frozen
class Span:
    """Something that lasted from one position to another. ``kind``: of ``SPANS``."""

    first: int
    last: int
    kind: str
    title: str


@attrs.frozen
class Item:
    """Something with a name of its own, drawn where there is room: a lease, a call, a fault."""

    first: int
    last: int
    label: str
    title: str
    spans: tuple[Span, ...] = ()
    marks: tuple[Mark, ...] = ()

    def shows(self, number: int) -> bool:
        """Whether the event at this position is one of its marks, or where one of its spans begins or ends."""
        ends = (end for span in self.spans for end in (span.first, span.last))
        return number in ends or any(mark.number == number for mark in self.marks)


@attrs.frozen(kw_only=True)
class Lane:
    """One row with a name, and below it its items. ``numbers``: the positions of the history that belong to it.

    ``note``: how it ended, in a few words.
    """

    kind: LaneKind
    name: str
    spans: tuple[Span, ...] = ()
    marks: tuple[Mark, ...] = ()
    items: tuple[Item, ...] = ()
    note: str = ""
    numbers: frozenset[int] = frozenset()


@attrs.frozen
class Note:
    """One of the violation's events: ``index`` is its number in the legend, from 1."""

    index: int
    number: int
    words: str


@attrs.frozen(kw_only=True)
class Story:
    """``title``: the violation, or that there is none. ``hidden``: what was left out, in words."""

    title: str
    violated: bool
    lanes: tuple[Lane, ...]
    notes: tuple[Note, ...]
    axis: Axis
    hidden: tuple[str, ...] = ()

    def spans(self) -> Iterator[Span]:
        """All of them."""
        for lane in self.lanes:
            yield from lane.spans
            for item in lane.items:
                yield from item.spans

    def marks(self) -> Iterator[Mark]:
        """All of them."""
        for lane in self.lanes:
            yield from lane.marks
            for item in lane.items:
                yield from item.marks


def in_rows(
    items: Iterable[Item], reach: Callable[[Item], tuple[float, float]], decisive: Collection[int], *, most: int
) -> tuple[list[list[Item]], Sequence[Item]]:
    """The items in as few rows as they fit in without touching, at most ``most`` rows; and those that found no place.

    ``reach``: from where to where an item needs room. Those that show something ``decisive`` find theirs first.
    """
    items = sorted(items, key=lambda item: not any(item.shows(number) for number in decisive))
    rows: list[list[Item]] = []
    ends: list[list[tuple[float, float]]] = []
    left_out: list[Item] = []
    for item in items:
        begin, end = reach(item)
        free = (n for n, taken in enumerate(ends) if all(end < low or begin > high for low, high in taken))
        row = next(free, len(rows))
        if row == len(rows):
            if row == most:
                left_out.append(item)
                continue
            rows.append([])
            ends.append([])
        rows[row].append(item)
        ends[row].append((begin, end))
    return rows, left_out
