"""Strict YAML: a document becomes a tree that knows the line and column of every key and value.

PyYAML's parser finds the events; everything above it is ours, because its loaders accept what a deploy file must not
contain: duplicate keys, anchors and aliases, tags, several documents. Scalars follow YAML 1.2: ``yes`` and ``on`` are
refused as ambiguous, ``012`` too, dates stay text. Keys are always text. The composer holds a stack, so no input can
exhaust Python's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

import attrs

from omni_actors._errors import ConfigError
from omni_actors.config._problems import Problems, error_at
from omni_actors.config._tree import Node, Place, child_path, short

__all__ = ["MAX_BYTES", "MAX_DEPTH", "parse_value", "parse_yaml"]

MAX_BYTES = 1 << 20
MAX_DEPTH = 32

_INT = re.compile(r"[-+]?(0|[1-9][0-9]*(_[0-9]+)*|0x[0-9a-fA-F]+|0o[0-7]+)\Z")
_OCTAL = re.compile(r"[-+]?0[0-9_]+\Z")
_FLOAT = re.compile(r"[-+]?((\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|\.(inf|Inf|INF))\Z|\.(nan|NaN|NAN)\Z")
_WORDS: dict[str, bool | None] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_AMBIGUOUS = frozenset({"yes", "no", "on", "off"})
_UNPRINTABLE = re.compile("[^\\t\\n\\r\\x20-\\x7e\\x85\\xa0-\\ud7ff\\ue000-\\ufffd\\U00010000-\\U0010ffff]")
_SURROGATE = re.compile("[\\ud800-\\udfff]")


def parse_yaml(data: bytes, file: str, problems: Problems) -> Node:
    """The one document in ``data``; what is wrong but leaves a tree is noted in ``problems``.

    Raises ConfigError with file, line and path where nothing can be made of it.
    """
    if len(data) > MAX_BYTES:
        raise ConfigError(f"the file is larger than {MAX_BYTES >> 20} MiB", file=file)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError("the file is not UTF-8 text", file=file, line=line) from None
    return _parse(text, lambda line, column, path: Place(file, line, column, path), problems)


def parse_value(text: str, place: Place) -> Node:
    """One value in YAML's notation (``256``, ``[a, b]``, ``{a: 1}``), all of it at ``place``. Raises ConfigError."""
    if len(text) > MAX_BYTES:
        raise error_at(place, f"the value is larger than {MAX_BYTES >> 20} MiB")
    problems = Problems()
    node = _parse(text, lambda _line, _column, _path: place, problems)
    problems.raise_any()
    return node


PlaceOf = Callable[[int | None, int | None, str], Place]


def _parse(text: str, place_of: PlaceOf, problems: Problems) -> Node:
    import yaml

    if bad := _UNPRINTABLE.search(text):
        line = text.count("\n", 0, bad.start()) + 1
        raise error_at(place_of(line, None, "$"), f"the character {bad.group()!r} is not allowed in YAML")
    composer = _Composer(place_of, problems)
    try:
        composer.feed(yaml.parse(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader)))
    except yaml.YAMLError as error:
        raise _syntax_error(error, place_of) from None
    return composer.root or Node(None, place_of(1, 1, "$"))


def _syntax_error(error: Any, place_of: PlaceOf) -> ConfigError:
    """YAML's own words, without its picture of the text: what it saw, and what it was reading."""
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    line, column = (mark.line + 1, mark.column + 1) if mark else (None, None)
    words = getattr(error, "problem", None) or str(error).splitlines()[0]
    where = f" (column {column})" if column else ""
    context = getattr(error, "context", None)
    return error_at(place_of(line, column, "$"), f"not valid YAML: {words}{where}", hint=context or None)


@attrs.define
class _Frame:
    """A list or mapping that is still open. ``pending`` is a mapping's key that waits for its value."""

    place: Place
    key: Place | None
    items: list[Node] | dict[str, Node]
    pending: tuple[str, Place] | None = None


class _Composer:
    """Owns the stack of open collections and the finished root."""

    def __init__(self, place_of: PlaceOf, problems: Problems) -> None:
        self.problems = problems
        self.root: Node | None = None
        self._place_of = place_of
        self._stack: list[_Frame] = []
        self._documents = 0

    def feed(self, events: Iterable[Any]) -> None:
        """Take the parser's events to the end. Raises ConfigError where going on makes no sense."""
        for event in events:
            match type(event).__name__:
                case "ScalarEvent":
                    self._scalar(event)
                case "SequenceStartEvent":
                    self._open(event, [])
                case "MappingStartEvent":
                    self._open(event, {})
                case "SequenceEndEvent" | "MappingEndEvent":
                    self._close()
                case "AliasEvent":
                    self._alias(event)
                case "DocumentStartEvent":
                    self._document(event)

    def _place(self, event: Any) -> Place:
        mark = event.start_mark
        return self._place_of(mark.line + 1, mark.column + 1, self._path())

    def _path(self) -> str:
        if not self._stack:
            return "$"
        frame = self._stack[-1]
        if isinstance(frame.items, list):
            return child_path(frame.place.path, len(frame.items))
        return child_path(frame.place.path, frame.pending[0]) if frame.pending else frame.place.path

    def _expects_key(self) -> bool:
        return bool(self._stack) and isinstance(self._stack[-1].items, dict) and self._stack[-1].pending is None

    def _document(self, event: Any) -> None:
        self._documents += 1
        if self._documents > 1:
            raise error_at(self._place(event), "a second document begins here", hint="one file holds one document")

    def _alias(self, event: Any) -> None:
        raise error_at(self._place(event), f"aliases (*{event.anchor}) are not allowed", hint="write the value out")

    def _decorations(self, event: Any, place: Place) -> None:
        if event.anchor is not None:
            self.problems.add(place, f"anchors (&{event.anchor}) are not allowed", hint="write the value out")
        if event.tag is not None:
            self.problems.add(place, f"tags ({event.tag}) are not allowed", hint="write the plain value")

    def _scalar(self, event: Any) -> None:
        place, text = self._place(event), event.value
        self._decorations(event, place)
        if _SURROGATE.search(text):
            self.problems.add(place, "half of a surrogate pair is not text")
            text = ""
        if self._expects_key():
            self._key(text, place)
            return
        value: Any = text
        if event.implicit[0] and not event.style:
            value, complaint = _resolve(text)
            if complaint:
                self.problems.add(place, complaint, hint="put it in quotes if it is text")
        self._add(Node(value, place, text=text))

    def _key(self, text: str, place: Place) -> None:
        frame = self._stack[-1]
        assert isinstance(frame.items, dict)
        place = attrs.evolve(place, path=child_path(place.path, text)) if place.path.startswith("$") else place
        if text == "<<":
            self.problems.add(place, "merge keys (<<) are not allowed", hint="write the values out")
        elif text in frame.items:
            first = frame.items[text].key
            self.problems.add(
                place, f"duplicate key {short(text)}", hint=f"first given on line {first.line if first else 0}"
            )
        frame.pending = (text, place)

    def _open(self, event: Any, items: list[Node] | dict[str, Node]) -> None:
        place = self._place(event)
        if self._expects_key():
            raise error_at(place, "a key must be text, not a list or a mapping")
        if len(self._stack) >= MAX_DEPTH:
            raise error_at(attrs.evolve(place, path=place.path[:80]), f"nested deeper than {MAX_DEPTH} levels")
        self._decorations(event, place)
        frame = self._stack[-1] if self._stack else None
        self._stack.append(_Frame(place, frame.pending[1] if frame and frame.pending else None, items))

    def _close(self) -> None:
        frame = self._stack.pop()
        value = tuple(frame.items) if isinstance(frame.items, list) else frame.items
        self._add(Node(value, frame.place, key=frame.key))

    def _add(self, node: Node) -> None:
        if not self._stack:
            self.root = node
            return
        frame = self._stack[-1]
        if isinstance(frame.items, list):
            frame.items.append(node)
            return
        assert frame.pending is not None
        key, place = frame.pending
        frame.pending = None
        frame.items.setdefault(key, attrs.evolve(node, key=place))


def _resolve(text: str) -> tuple[Any, str | None]:
    """A plain scalar's value, and what is wrong with it."""
    if text in _WORDS:
        return _WORDS[text], None
    if text.lower() in _AMBIGUOUS:
        return text, f"{text!r} is ambiguous: write true or false"
    if _OCTAL.match(text):
        return text, f"{short(text)} is ambiguous: a number has no leading zero"
    if _INT.match(text):
        value = int(text, 0) if len(text) <= 64 else 1 << 64
        return (value, None) if -(1 << 63) <= value < 1 << 63 else (0, f"the number {short(text)} is too large")
    if _FLOAT.match(text):
        return float(text.lower().replace(".inf", "inf").replace(".nan", "nan")), None
    return text, None
