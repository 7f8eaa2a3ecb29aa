"""A timeline in characters: plain, or as a ``rich`` text with colours. Every character of it is one cell wide."""

from __future__ import annotations

import textwrap
from collections import Counter
from typing import TYPE_CHECKING

from ._timeline_axis import seconds
from ._timeline_story import MARKS, SPANS, Item, Lane, Mark, Span, Story, in_rows

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from rich.text import Text

__all__ = ["MIN_WIDTH", "TextTimeline"]

MIN_WIDTH = 60
MOST_ROWS = 5
"""Rows of leases, calls or faults below one name; the rest is counted."""
_NAME, _NOTE = 18, 26

_FILL = {
    "opening": "░", "open": "▬", "closing": "▒", "waiting": "┄", "live": "─", "leaving": "┄", "starting": "░",
    "ready": "▬", "stalled": "≈", "stopping": "▒", "backing off": "·", "down": "_", "lease": "─", "unreleased": "┄",
    "call": "─",
}  # fmt: skip
_SIGN = {
    "submitted": "▷", "got": "·", "finished": "✓", "aborted": "■", "failed": "✗", "timed out": "◔", "refused": "⊘",
    "left": "┤", "output": "", "abort sent": "■", "released": "┤", "lease failed": "✗", "unsent": "○", "died": "†",
    "exit": "†", "ended": "┤", "fault": "▼", "no fault": "▽", "down": "▁", "returned": "┤", "crashed": "✗",
    "exceeded": "▲", "deadlocked": "∞",
}  # fmt: skip
_STYLE = {
    "opening": "yellow", "starting": "yellow", "open": "green", "ready": "green", "closing": "blue", "stopping": "blue",
    "stalled": "magenta", "backing off": "dim", "down": "red", "live": "cyan", "leaving": "dim", "waiting": "dim",
    "lease": "", "unreleased": "dim", "call": "blue", "got": "cyan", "submitted": "cyan", "finished": "green",
    "aborted": "yellow", "abort sent": "yellow", "failed": "red", "timed out": "red", "refused": "yellow",
    "lease failed": "red", "died": "red", "exit": "red", "fault": "red", "no fault": "dim", "crashed": "red",
    "exceeded": "red", "deadlocked": "red",
}  # fmt: skip
_CUT = "\u2571"
_MILD = ("submitted", "left", "released", "ended", "returned", "down")
_DENSITY = ((4, "●"), (2, "•"), (1, "·"))
"""At least so many outputs in one column, as this."""
_HARD = "\xa0"
"""A space at which no line is broken."""
_VIOLATED = "violation"
_VIOLATION = "bold white on red"


class _Row:
    """One line: characters with their styles. The last who writes a cell has it."""

    def __init__(self, width: int) -> None:
        self.cells = [(" ", "")] * width

    def put(self, column: int, words: str, style: str = "") -> None:
        """Write from ``column`` on; what does not fit is cut off."""
        for index, char in enumerate(words):
            if 0 <= column + index < len(self.cells):
                self.cells[column + index] = (char, style)

    def plain(self) -> str:
        """Without styles."""
        return "".join(char for char, _ in self.cells).rstrip()


class TextTimeline:
    """``width``: cells of one line, at least ``MIN_WIDTH``. ``plain`` and ``styled`` are two views of one drawing."""

    def __init__(self, story: Story, width: int) -> None:
        self._story, self._width = story, max(width, MIN_WIDTH)
        names = [len(lane.name) for lane in story.lanes] + [len(_VIOLATED) if story.notes else 0]
        self._left = min(_NAME, max(names, default=0)) + 2
        notes = max((len(lane.note) for lane in story.lanes), default=0)
        self._right = min(_NOTE, notes) + 1 if notes and width >= 80 else 0
        self._room = self._width - self._left - self._right
        self._circles = {note.number: _circle(note.index) for note in story.notes}
        self._rows: list[_Row] = []
        self._draw()

    def plain(self) -> str:
        """The whole of it, legend and all, as lines."""
        return "\n".join(row.plain() for row in self._rows)

    def styled(self) -> Text:
        """The same with colours."""
        from rich.text import Text

        text = Text(no_wrap=True, overflow="ignore")
        for number, row in enumerate(self._rows):
            text.append("\n" if number else "")
            for char, style in row.cells[: len(row.plain())]:
                text.append(char, style)
        return text

    # ------------------------------------------------------------------ rows

    def _draw(self) -> None:
        self._words(self._story.title, "bold red" if self._story.violated else "bold")
        self._row()
        self._axis()
        for lane in self._story.lanes:
            self._lane(lane)
        self._violation()
        self._row()
        self._legend()

    def _row(self, name: str = "", note: str = "") -> _Row:
        row = _Row(self._width)
        row.put(0, _cut(name, self._left - 1), "bold")
        if self._right:
            row.put(self._width - self._right + 1, _cut(note, self._right - 1), "dim")
        self._rows.append(row)
        return row

    def _words(self, words: str, style: str = "", indent: str = "") -> None:
        for line in textwrap.wrap(words, self._width, subsequent_indent=indent) or [""]:
            row = _Row(self._width)
            row.put(0, line.replace(_HARD, " "), style)
            self._rows.append(row)

    def _column(self, number: int) -> int:
        return self._left + round(self._story.axis.place(number) * (self._room - 1))

    def _axis(self) -> None:
        labels, line = self._row("seconds"), self._row()
        line.put(self._left, "─" * self._room, "dim")
        span = max(1, self._room - 1)
        for cut in self._story.axis.cuts:
            begin, end = self._left + round(cut.begin * span), self._left + round(cut.end * span)
            words = f"+{seconds(round(cut.length, 1))} s"
            line.put(begin + 1, _CUT * (end - begin - 1), "dim")
            if end - begin > len(words) + 1:
                line.put(begin + (end - begin - len(words)) // 2 + 1, words, "dim")
        for tick in self._story.axis.ticks(9 / span):
            column = self._left + round(tick.place * span)
            line.put(column, "┬", "dim")
            labels.put(min(column, self._left + self._room - len(tick.label)), tick.label)

    def _lane(self, lane: Lane) -> None:
        rows, left_out = in_rows(lane.items, self._reach, self._circles, most=MOST_ROWS)
        if lane.spans or lane.marks:
            row = self._row(lane.name, lane.note)
            self._spans(row, lane.spans)
            self._outputs(row, lane.marks)
            self._marks(row, lane.marks)
            shown = [item for items in rows for item in items]
            self._circled(row, [n for n in lane.numbers if not any(item.shows(n) for item in shown)])
        for index, items in enumerate(rows):
            row = self._row("" if lane.spans or index else lane.name)
            for item in items:
                self._item(row, item)
                self._circled(row, [number for number in self._circles if item.shows(number)])
        if left_out:
            self._row().put(self._left, f"… and {len(left_out)} more", "dim")

    def _circled(self, row: _Row, numbers: Collection[int]) -> None:
        """The violation's events among these, where they belong."""
        for number, circle in self._circles.items():
            if number in numbers:
                row.put(self._column(number), circle, _VIOLATION)

    def _spans(self, row: _Row, spans: tuple[Span, ...]) -> None:
        for span in spans:
            first, last = self._column(span.first), self._column(span.last)
            row.put(first, _FILL[span.kind] * (last - first + 1), _STYLE.get(span.kind, ""))
        generations = [span for span in spans if span.kind == "starting"]
        if len(generations) > 1:
            for index, span in enumerate(generations, start=1):
                row.put(self._column(span.first), str(index), "bold")

    def _outputs(self, row: _Row, marks: tuple[Mark, ...]) -> None:
        counts = Counter(self._column(mark.number) for mark in marks if mark.kind == "got")
        for column, count in counts.items():
            row.put(column, next(sign for least, sign in _DENSITY if count >= least), _STYLE["got"])

    def _marks(self, row: _Row, marks: tuple[Mark, ...]) -> None:
        # Where two fall on one cell, what became of it is more than that it was over.
        for mark in sorted(marks, key=lambda mark: mark.kind not in _MILD):
            if mark.kind not in ("got", "output"):
                row.put(self._column(mark.number), _SIGN[mark.kind], _STYLE.get(mark.kind, ""))

    # ------------------------------------------------------------------ items

    def _reach(self, item: Item) -> tuple[int, int]:
        """The columns that an item needs: its length, its name inside or behind it, one to spare."""
        first, last = self._column(item.first), self._column(item.last)
        if not self._inside(item):
            first, last = (first, last + 2 + len(item.label)) if not self._flips(item) else self._flipped(item)
        return first, last + 1

    def _inside(self, item: Item) -> bool:
        return self._column(item.last) - self._column(item.first) > len(item.label) + 1

    def _flips(self, item: Item) -> bool:
        """Whether there is no room behind it: then the name stands in front."""
        return self._column(item.last) + 1 + len(item.label) >= self._left + self._room

    def _flipped(self, item: Item) -> tuple[int, int]:
        return self._column(item.first) - 2 - len(item.label), self._column(item.last)

    def _item(self, row: _Row, item: Item) -> None:
        self._spans(row, item.spans)
        first, last = self._column(item.first), self._column(item.last)
        if last > first:
            row.put(first, "├", _STYLE.get(item.spans[0].kind, "") if item.spans else "")
        self._marks(row, item.marks)
        if self._inside(item):
            row.put(first + 1, item.label)
        else:
            row.put(max(self._left, first - 1 - len(item.label)) if self._flips(item) else last + 2, item.label)

    # ------------------------------------------------------------------ the violation and the legend

    def _violation(self) -> None:
        if not self._circles:
            return
        row, taken = self._row(_VIOLATED), set[int]()
        for number, circle in self._circles.items():
            column = self._column(number)
            if column in taken:
                row, taken = self._row(), set()
            row.put(column, circle, _VIOLATION)
            taken.add(column)
        for note in self._story.notes:
            self._words(f"{_circle(note.index)} {note.words}", indent="  ")

    def _legend(self) -> None:
        spans = dict.fromkeys(span.kind for span in self._story.spans())
        marks = dict.fromkeys(mark.kind for mark in self._story.marks())
        words: dict[str, list[str]] = {}
        for sign, meaning in self._meanings(list(spans), list(marks)):
            if meaning not in words.setdefault(sign, []):
                words[sign].append(meaning)
        entries = (f"{sign} {' or '.join(meant)}".replace(" ", _HARD) for sign, meant in words.items())
        self._words("   ".join(entries), "dim")
        for hidden in self._story.hidden:
            self._words(f"not shown: {hidden}", "dim")

    def _meanings(self, spans: list[str], marks: list[str]) -> Iterator[tuple[str, str]]:
        for kind in SPANS:
            if kind in spans:
                yield _FILL[kind], SPANS[kind]
        for kind in MARKS:
            if kind in marks and kind not in ("got", "output"):
                yield _SIGN[kind], MARKS[kind]
        if "got" in marks:
            yield "· • ●", "1, 2 or 3, more outputs"
        if self._story.axis.cuts:
            yield _CUT, "time drawn short"


def _circle(index: int) -> str:
    return chr(ord("①") + index - 1) if index <= 20 else "●"


def _cut(words: str, room: int) -> str:
    return words if len(words) <= room else words[: room - 1] + "…"
