"""Draws a DAG of boxes with characters, top down. Pure.

Boxes stand in layers (the longest way from a root). An edge that skips layers passes through them as a narrow
waypoint. Every edge leaves and enters its boxes at a column of its own and has a row of its own between two layers, so
that lines cross but do not run on top of each other.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Arrow", "Box", "draw"]

_GAP = 3
_UP, _DOWN, _LEFT, _RIGHT = 1, 2, 4, 8
_LINES = {
    _UP: "│", _DOWN: "│", _LEFT: "─", _RIGHT: "─", _UP | _DOWN: "│", _LEFT | _RIGHT: "─", _DOWN | _RIGHT: "┌",
    _DOWN | _LEFT: "┐", _UP | _RIGHT: "└", _UP | _LEFT: "┘", _UP | _DOWN | _RIGHT: "├", _UP | _DOWN | _LEFT: "┤",
    _DOWN | _LEFT | _RIGHT: "┬", _UP | _LEFT | _RIGHT: "┴", _UP | _DOWN | _LEFT | _RIGHT: "┼",
}  # fmt: skip


@attrs.frozen
class Box:
    """One node: lines of text, and what comes out of it at its foot."""

    name: str
    lines: tuple[str, ...]
    output: str | None = None


@attrs.frozen
class Arrow:
    """One edge and the word beside its head."""

    source: str
    target: str
    label: str


@attrs.define(eq=False)
class _Cell:
    """A box in its layer, or the waypoint of one long edge. ``ins`` and ``outs``: the columns of its lines."""

    layer: int
    box: Box | None = None
    left: int = 0
    width: int = 1
    before: list[_Cell] = attrs.field(factory=list)
    after: list[_Cell] = attrs.field(factory=list)
    labels: list[str] = attrs.field(factory=list)

    @property
    def center(self) -> int:
        return self.left + self.width // 2

    @property
    def reach(self) -> int:
        """The first column that is free to its right."""
        foot = self.left + self.width + (len(_output(self.box)) if self.box is not None else 0)
        head = self.port(len(self.before) - 1, len(self.before)) + 2 + self.longest if self.before else 0
        return max(foot, head) + _GAP

    @property
    def longest(self) -> int:
        """The longest label of its arrows."""
        return max(map(len, self.labels), default=0)

    def port(self, index: int, count: int) -> int:
        """The column of line ``index`` of ``count``."""
        return self.left + (self.width * (2 * index + 1)) // (2 * count)


class _Canvas:
    """Owns the characters: text in ``text``, line directions in ``lines``."""

    def __init__(self) -> None:
        self.text: dict[tuple[int, int], str] = {}
        self.lines: dict[tuple[int, int], int] = {}

    def write(self, row: int, column: int, words: str) -> None:
        self.text.update({(row, column + index): character for index, character in enumerate(words)})

    def line(self, row: int, column: int, directions: int) -> None:
        self.lines[row, column] = self.lines.get((row, column), 0) | directions

    def down(self, column: int, first: int, last: int) -> None:
        for row in range(first, last + 1):
            self.line(row, column, (_UP if row > first else 0) | (_DOWN if row < last else 0))

    def across(self, row: int, start: int, end: int) -> None:
        low, high = sorted((start, end))
        for column in range(low, high + 1):
            self.line(row, column, (_LEFT if column > low else 0) | (_RIGHT if column < high else 0))

    def render(self) -> str:
        cells = {at: _LINES[directions] for at, directions in self.lines.items() if directions} | self.text
        if not cells:
            return ""
        rows, columns = max(row for row, _ in cells) + 1, max(column for _, column in cells) + 1
        drawn = ("".join(cells.get((row, column), " ") for column in range(columns)) for row in range(rows))
        return "\n".join(line.rstrip() for line in drawn)


def draw(boxes: Sequence[Box], arrows: Sequence[Arrow]) -> str:
    """The picture. ``arrows`` must form a DAG over ``boxes``."""
    layers = _layers(boxes, arrows)
    _place(layers)
    canvas, row = _Canvas(), 0
    for number, layer in enumerate(layers):
        row = _draw_layer(canvas, layer, row)
        if number + 1 < len(layers):
            row = _draw_between(canvas, layer, row)
    return canvas.render()


def _layers(boxes: Sequence[Box], arrows: Sequence[Arrow]) -> list[list[_Cell]]:
    depth = _depths(boxes, arrows)
    cells = {box.name: _Cell(depth[box.name], box) for box in boxes}
    layers: list[list[_Cell]] = [[] for _ in range(max(depth.values(), default=-1) + 1)]
    for cell in cells.values():
        layers[cell.layer].append(cell)
    for arrow in arrows:
        last, target = cells[arrow.source], cells[arrow.target]
        for layer in range(last.layer + 1, target.layer):
            waypoint = _Cell(layer)
            layers[layer].append(waypoint)
            _join(last, waypoint, "")
            last = waypoint
        _join(last, target, arrow.label)
    return layers


def _join(source: _Cell, target: _Cell, label: str) -> None:
    source.after.append(target)
    target.before.append(source)
    target.labels.append(label)


def _depths(boxes: Sequence[Box], arrows: Sequence[Arrow]) -> dict[str, int]:
    depth = {box.name: 0 for box in boxes}
    for _ in boxes:
        for arrow in arrows:
            depth[arrow.target] = max(depth[arrow.target], depth[arrow.source] + 1)
    return depth


def _place(layers: list[list[_Cell]]) -> None:
    """Order each layer by the middle of its producers, then put it as near below them as there is room."""
    for layer in layers:
        wish = {cell: _wish(cell) for cell in layer}
        layer.sort(key=wish.__getitem__)
        free = -sys.maxsize
        for cell in layer:
            cell.width = _width(cell)
            cell.left = max(free, round(wish[cell]) - cell.width // 2)
            free = cell.reach
    cells = [cell for layer in layers for cell in layer]
    leftmost = min((cell.left for cell in cells), default=0)
    for cell in cells:
        cell.left -= leftmost
    for cell in cells:
        _sort_lines(cell)


def _wish(cell: _Cell) -> float:
    return sum(source.center for source in cell.before) / len(cell.before) if cell.before else 0.0


def _output(box: Box) -> str:
    return f" ══▶ {box.output}" if box.output else ""


def _width(cell: _Cell) -> int:
    if cell.box is None:
        return 1
    arrows = len(cell.before) * (cell.longest + 3) if len(cell.before) > 1 else 0
    return max(max(map(len, cell.box.lines)) + 4, arrows, 4 * len(cell.after))


def _sort_lines(cell: _Cell) -> None:
    """Lines leave and enter in the order of where they come from and go to: fewer crossings."""
    cell.after.sort(key=lambda target: target.center)
    pairs = sorted(zip(cell.before, cell.labels, strict=True), key=lambda pair: pair[0].center)
    cell.before, cell.labels = [source for source, _ in pairs], [label for _, label in pairs]


def _draw_layer(canvas: _Canvas, layer: list[_Cell], top: int) -> int:
    """Draw boxes (and waypoints as lines through) from row ``top``; returns the row below them."""
    boxes = [cell.box for cell in layer if cell.box is not None]
    height = max((len(box.lines) + 2 for box in boxes), default=1)
    for cell in layer:
        if cell.box is None:
            canvas.down(cell.left, top - 1, top + height)
            continue
        for index, line in enumerate(cell.box.lines):
            canvas.write(top + 1 + index, cell.left, f"│ {line:{cell.width - 4}} │")
        canvas.write(top, cell.left, f"┌{'─' * (cell.width - 2)}┐")
        canvas.write(top + height - 1, cell.left, f"└{'─' * (cell.width - 2)}┘")
        canvas.write(top + 1, cell.left + cell.width, _output(cell.box))
    return top + height


@attrs.frozen
class _Line:
    """One edge between two neighbouring layers: from column ``start`` to column ``end``."""

    source: _Cell
    target: _Cell
    start: int
    end: int
    label: str


def _draw_between(canvas: _Canvas, layer: list[_Cell], top: int) -> int:
    """One row per edge, then the arrow heads with their labels; returns the first row of the next layer."""
    lines = _in_rows(_lines_below(layer))
    head = top + len(lines) + 1
    for row, line in enumerate(lines, start=top):
        canvas.line(top, line.start, _UP)
        canvas.down(line.start, top, row)
        if line.start != line.end:
            canvas.across(row, line.start, line.end)
        canvas.down(line.end, row, head)
        if line.target.box is not None:
            canvas.write(head, line.end, f"▼ {line.label}")
    return head + 1


def _lines_below(layer: list[_Cell]) -> list[_Line]:
    lines = []
    for source in layer:
        for index, target in enumerate(source.after):
            entry = target.before.index(source)  # a pipeline has at most one edge between two stages
            start, end = source.port(index, len(source.after)), target.port(entry, len(target.before))
            lines.append(_Line(source, target, start, end, target.labels[entry]))
    return lines


def _in_rows(lines: list[_Line]) -> list[_Line]:
    """An order of rows in which no line comes down onto the column where another one still has to leave."""
    waiting, ordered = list(lines), list[_Line]()
    while waiting:
        starts = {line.start for line in waiting}
        free = [line for line in waiting if line.end == line.start or line.end not in starts]
        chosen = (free or waiting)[0]
        waiting.remove(chosen)
        ordered.append(chosen)
    return ordered
