"""A tree becomes attrs objects, driven by the annotations alone: a new field in ``specs.py`` needs no code here.

Every mismatch is noted with the place it was written at, and conversion goes on with the field's default, so that one
run finds everything. ``MISSING`` stands for what could not be made.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from typing import Any, Final, Literal, Union, get_args, get_origin

import attrs

from omni_actors.config._hints import did_you_mean, field_types, key_hint
from omni_actors.config._problems import Problems
from omni_actors.config._tree import Node, plain, short

__all__ = ["MISSING", "convert"]


class _Missing:
    """The type of ``MISSING``."""

    def __repr__(self) -> str:
        return "MISSING"


MISSING: Final = _Missing()

_NAMES: Mapping[Any, str] = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}


def convert(node: Node, kind: Any, problems: Problems) -> Any:
    """``node`` as a ``kind``; MISSING, with what is wrong noted in ``problems``, where that cannot be.

    A number where text is wanted is taken as it was written (``1.10`` is "1.10"). Nothing is raised.
    """
    origin = get_origin(kind)
    if kind is Any:
        return plain(node)
    if isinstance(kind, type) and attrs.has(kind):
        return _record(node, kind, problems)
    if origin in (Union, types.UnionType):
        return _union(node, get_args(kind), problems)
    if origin is Literal:
        return _literal(node, get_args(kind), problems)
    if origin is tuple:
        return _items(node, get_args(kind)[0], problems)
    if origin is not None and issubclass(origin, Mapping):
        return _mapping(node, get_args(kind)[1], problems)
    return _scalar(node, kind, problems)


def _got(node: Node) -> str:
    if node.is_mapping:
        return "a mapping"
    if node.is_list:
        return "a list"
    match node.value:
        case None:
            return "nothing"
        case bool():
            return "true" if node.value else "false"
        case str():
            return f"the text {short(node.value)}"
    return f"the number {short(node.value)}"


def _wrong(node: Node, expected: str, problems: Problems, hint: str | None = None) -> _Missing:
    problems.add(node.place, f"expected {expected}, got {_got(node)}", hint=hint)
    return MISSING


def _scalar(node: Node, kind: type, problems: Problems) -> Any:
    value = node.value
    if kind is bool and isinstance(value, bool):
        return value
    if isinstance(value, bool) or value is None:
        hint = f'write "{node.text}" in quotes if it is text' if kind is str and node.text else None
        return _wrong(node, _NAMES.get(kind, kind.__name__), problems, hint)
    if kind is str and isinstance(value, str | int | float):
        return value if isinstance(value, str) else node.text or str(value)
    if kind is float and isinstance(value, int | float):
        return float(value)
    if isinstance(value, kind):
        return value
    return _wrong(node, _NAMES.get(kind, kind.__name__), problems)


def _literal(node: Node, words: tuple[Any, ...], problems: Problems) -> Any:
    if not (node.is_mapping or node.is_list) and node.value in words:
        return node.value
    hint = did_you_mean(node.value, map(str, words)) if isinstance(node.value, str) else None
    return _wrong(node, "one of " + ", ".join(map(str, words)), problems, hint)


def _union(node: Node, kinds: tuple[Any, ...], problems: Problems) -> Any:
    if node.value is None and type(None) in kinds:
        return None
    first = Problems()
    for kind in (kind for kind in kinds if kind is not type(None)):
        attempt = Problems()
        value = convert(node, kind, attempt)
        if not attempt:
            return value
        first = first or attempt
    for error in first:
        problems.append(error)
    return MISSING


def _mapping(node: Node, kind: Any, problems: Problems) -> Any:
    if not node.is_mapping:
        hint = "write {} for an empty one, or leave the key out" if node.value is None else None
        return _wrong(node, "a mapping", problems, hint)
    made = {key: convert(item, kind, problems) for key, item in node.value.items()}
    return {key: value for key, value in made.items() if value is not MISSING}


def _items(node: Node, kind: Any, problems: Problems) -> Any:
    named = isinstance(kind, type) and attrs.has(kind) and "name" in field_types(kind)
    if named and node.is_mapping:
        made = [_named_item(name, item, kind, problems) for name, item in node.value.items()]
    elif node.is_list:
        made = [convert(item, kind, problems) for item in node.value]
    else:
        return _wrong(node, "a mapping by name" if named else "a list", problems)
    return MISSING if MISSING in made else tuple(made)


def _named_item(name: str, node: Node, kind: type, problems: Problems) -> Any:
    """One item of a mapping by name: the key is its ``name``."""
    with problems.within(name):
        if not node.is_mapping:
            return _wrong(node, "a mapping", problems)
        inner = node.value.get("name")
        if inner is not None and inner.value != name:
            problems.add(inner.place, f"the name {_got(inner)} differs from the key {short(name)}", hint="leave it out")
        key = Node(name, node.key or node.place, text=name)
        return _record(attrs.evolve(node, value={**node.value, "name": key}), kind, problems)


def _record(node: Node, cls: type, problems: Problems) -> Any:
    if not node.is_mapping:
        return _wrong(node, "a mapping", problems)
    known = field_types(cls)
    for key, item in node.value.items():
        if key not in known:
            problems.add(item.key or item.place, f"unknown key {short(key)}", hint=key_hint(key, cls))
    values: dict[str, Any] = {}
    for field in attrs.fields(cls):
        if field.name in node.value and field.init:
            value = convert(node.value[field.name], known[field.name], problems)
        else:
            value = MISSING
            if field.init and field.default is attrs.NOTHING:
                problems.add(node.key or node.place, f"the key '{field.name}' is missing")
        if value is not MISSING:
            values[field.name] = value
    required = {field.name for field in attrs.fields(cls) if field.init and field.default is attrs.NOTHING}
    return cls(**values) if required <= values.keys() else MISSING
