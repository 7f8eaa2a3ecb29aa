"""A timeline as SVG: one self-contained file. Text is set in a monospaced font, so that its width is known here.

Colours are classes of one style sheet with a light and a dark half; shapes differ as well, so that the picture reads
without colours. Everything exact is in hover titles.
"""

from __future__ import annotations

import re
import textwrap
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

from ._timeline_axis import seconds
from ._timeline_shapes import SHAPES, STYLE
from ._timeline_story import MARKS, SPANS, Item, Lane, Mark, Note, Span, Story, in_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["drawn"]

MOST_ROWS = 16
"""Rows of leases, calls or faults below one name; the rest is counted."""
_WIDTH, _LEFT, _RIGHT = 1280.0, 130.0, 210.0
_EDGE, _FONT, _LINE = 12.0, 11.0, 16.0
_CHAR = _FONT * 0.61
_BAR, _ROW, _GAP = 22.0, 16.0, 6.0
_ILLEGAL = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""What XML cannot hold."""


def drawn(story: Story) -> str:
    """The document."""
    return _Drawing(story).document()


class _Drawing:
    """``top`` is how far down the picture has grown. Used once."""

    def __init__(self, story: Story) -> None:
        self._story = story
        self._svg = ET.Element("svg", {"xmlns": "http://www.w3.org/2000/svg", "class": "timeline"})
        self._decisive = {note.number for note in story.notes}
        self.top = _EDGE

    def document(self) -> str:
        """Draw everything; return the text."""
        ET.SubElement(self._svg, "style").text = STYLE
        self._svg.append(_hatch())
        paper = self._add("rect", x=0, y=0, width=_WIDTH, class_="paper")
        self._heading()
        begin = self.top
        self._axis()
        behind = ET.SubElement(self._svg, "g")
        for number, lane in enumerate(self._story.lanes):
            self._lane(lane, number)
        self._grid(behind, begin)
        for note in self._story.notes:
            self._violation(note, begin)
        self._legend()
        height = self.top + _EDGE
        paper.set("height", f"{height:g}")
        self._svg.set("viewBox", f"0 0 {_WIDTH:g} {height:g}")
        self._svg.set("width", f"{_WIDTH:g}")
        self._svg.set("height", f"{height:g}")
        return ET.tostring(self._svg, encoding="unicode") + "\n"

    # ------------------------------------------------------------------ elements

    def _add(self, tag: str, parent: ET.Element | None = None, title: str = "", **how: float | str) -> ET.Element:
        named = {name.rstrip("_").replace("_", "-"): _said(value) for name, value in how.items()}
        element = ET.SubElement(self._svg if parent is None else parent, tag, named)
        if title:
            ET.SubElement(element, "title").text = _legal(title)
        return element

    def _text(self, x: float, y: float, words: str, class_: str = "", **how: float | str) -> ET.Element:
        element = self._add("text", None, "", x=x, y=y, class_=class_, **how)
        element.text = _legal(words)
        return element

    def _lines(self, words: str, class_: str = "", indent: str = "") -> None:
        room = int((_WIDTH - 2 * _EDGE) / _CHAR)
        for line in textwrap.wrap(words, room, subsequent_indent=indent) or [""]:
            self.top += _LINE
            self._text(_EDGE, self.top - 4, line, class_)

    def _x(self, number: int) -> float:
        return self._across(self._story.axis.place(number))

    def _across(self, place: float) -> float:
        return _LEFT + place * (_WIDTH - _LEFT - _RIGHT)

    # ------------------------------------------------------------------ above and behind the lanes

    def _heading(self) -> None:
        self._lines(self._story.title, "bad strong" if self._story.violated else "strong")
        self.top += _GAP

    def _axis(self) -> None:
        self.top += _LINE * (2 if self._story.notes else 1)
        self._text(_EDGE, self.top, "virtual seconds", "dim")
        for tick in self._story.axis.ticks(9 * _CHAR / (_WIDTH - _LEFT - _RIGHT)):
            self._text(self._across(tick.place), self.top, tick.label, "dim", text_anchor="middle")
        for cut in self._story.axis.cuts:
            words = f"+{seconds(round(cut.length, 1))} s"
            if self._across(cut.end) - self._across(cut.begin) > (len(words) + 10) * _CHAR:
                self._text(self._across((cut.begin + cut.end) / 2), self.top, words, "dim", text_anchor="middle")
        self.top += _GAP

    def _grid(self, behind: ET.Element, begin: float) -> None:
        top = begin + _LINE * (2 if self._story.notes else 1) + _GAP
        for tick in self._story.axis.ticks(9 * _CHAR / (_WIDTH - _LEFT - _RIGHT)):
            x = self._across(tick.place)
            self._add("line", behind, x1=x, x2=x, y1=top, y2=self.top, class_="grid")
        for cut in self._story.axis.cuts:
            left, right = self._across(cut.begin), self._across(cut.end)
            words = f"{seconds(round(cut.length, 4))} s, drawn short"
            self._add("rect", behind, words, x=left, y=top, width=right - left, height=self.top - top, fill="url(#cut)")

    # ------------------------------------------------------------------ lanes

    def _lane(self, lane: Lane, number: int) -> None:
        rows, left_out = in_rows(lane.items, self._reach, self._decisive, most=MOST_ROWS)
        bar = _BAR if lane.spans or lane.marks else 0.0
        height = bar + len(rows) * _ROW + (_ROW if left_out else 0.0)
        shade = "lane odd" if number % 2 else "lane"
        self._add("rect", x=0, y=self.top, width=_WIDTH, height=height, class_=shade)
        self._text(_EDGE, self.top + 15, _cut(lane.name, _LEFT - _EDGE), "strong")
        if lane.note:
            self._text(_WIDTH - _RIGHT + _EDGE, self.top + 15, _cut(lane.note, _RIGHT - 2 * _EDGE), "dim")
        for span in lane.spans:
            self._span(span, self.top + 5, _BAR - 10)
        for mark in lane.marks:
            self._mark(mark, self.top + _BAR / 2)
        for index, items in enumerate(rows):
            for item in items:
                self._item(item, self.top + bar + index * _ROW)
        if left_out:
            self._text(_LEFT, self.top + height - 4, f"… and {len(left_out)} more", "dim")
        self._ring(lane, rows, bar)
        self.top += height

    def _span(self, span: Span, y: float, height: float) -> None:
        left, right = self._x(span.first), self._x(span.last)
        class_ = span.kind.replace(" ", "-")
        self._add(
            "rect", title=span.title, x=left, y=y, width=max(1.0, right - left), height=height, rx=2, class_=class_
        )

    def _mark(self, mark: Mark, y: float) -> None:
        self._shape(mark.kind, self._x(mark.number), y, mark.title)

    def _shape(self, kind: str, x: float, y: float, title: str = "") -> None:
        path = SHAPES[kind]
        where = f"translate({x:.1f} {y:.1f})"
        self._add("path", title=title, d=path, transform=where, class_=f"m-{kind.replace(' ', '-')}")

    def _ring(self, lane: Lane, rows: Sequence[Sequence[Item]], bar: float) -> None:
        """Around each of the violation's events, on its own row."""
        for number in sorted(self._decisive & lane.numbers):
            found = [index for index, items in enumerate(rows) if any(item.shows(number) for item in items)]
            y = self.top + (bar + found[0] * _ROW + _ROW / 2 if found else _BAR / 2)
            self._add("circle", cx=self._x(number), cy=y, r=7, class_="ring")

    # ------------------------------------------------------------------ items

    def _reach(self, item: Item) -> tuple[float, float]:
        left, right = self._x(item.first), self._x(item.last)
        return min(left, self._label_at(item)) - 6, max(right, self._label_at(item) + len(item.label) * _CHAR) + 6

    def _label_at(self, item: Item) -> float:
        """Inside if it fits, else behind, else in front."""
        left, right, needed = self._x(item.first), self._x(item.last), len(item.label) * _CHAR
        if right - left > needed + 16:
            return left + 8
        return right + 9 if right + 9 + needed < _WIDTH - _RIGHT else max(_LEFT, left - 9 - needed)

    def _item(self, item: Item, y: float) -> None:
        for span in item.spans:
            self._span(span, y + 3, _ROW - 6)
        for mark in item.marks:
            self._mark(mark, y + _ROW / 2)
        room = _WIDTH - _EDGE - self._label_at(item)
        self._text(self._label_at(item), y + 12, _cut(item.label, room), "halo")

    # ------------------------------------------------------------------ the violation and the legend

    def _violation(self, note: Note, begin: float) -> None:
        x = self._x(note.number)
        y = begin + 7
        self._add("line", x1=x, x2=x, y1=y, y2=self.top, class_="here")
        self._add("circle", title=note.words, cx=x, cy=y, r=7, class_="badge")
        self._text(x, y + 4, str(note.index), "number", text_anchor="middle")

    def _legend(self) -> None:
        self.top += _GAP
        for note in self._story.notes:
            self._lines(f"{note.index}: {note.words}", "bad", "   ")
        self.top += _GAP + _LINE
        spans, marks = {span.kind for span in self._story.spans()}, {mark.kind for mark in self._story.marks()}
        entries = [(kind, words, True) for kind, words in SPANS.items() if kind in spans]
        entries += [(kind, words, False) for kind, words in MARKS.items() if kind in marks]
        x = _EDGE
        for kind, words, long in entries:
            if x + 30 + len(words) * _CHAR > _WIDTH - _EDGE:
                x, self.top = _EDGE, self.top + _LINE + 2
            if long:
                self._add("rect", x=x, y=self.top - 9, width=16, height=10, rx=2, class_=kind.replace(" ", "-"))
            else:
                self._shape(kind, x + 8, self.top - 4)
            self._text(x + 22, self.top, words, "dim")
            x += 38 + len(words) * _CHAR
        for hidden in self._story.hidden:
            self._lines(f"not shown: {hidden}", "dim")


def _hatch() -> ET.Element:
    defs = ET.Element("defs")
    how = {"id": "cut", "width": "6", "height": "6", "patternUnits": "userSpaceOnUse", "patternTransform": "rotate(45)"}
    pattern = ET.SubElement(defs, "pattern", how)
    ET.SubElement(pattern, "line", {"x1": "0", "x2": "0", "y1": "0", "y2": "6", "class": "hatch"})
    return defs


def _said(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.1f}".removesuffix(".0")


def _legal(words: str) -> str:
    return _ILLEGAL.sub("\ufffd", words)


def _cut(words: str, room: float) -> str:
    most = max(1, int(room / _CHAR))
    return words if len(words) <= most else words[: most - 1] + "…"
