"""A config as a tree whose every node knows its place: what a file, an override or a pipeline said, and where.

Files, overrides and pipelines' own defaults all become trees; precedence is ``merge``, and the source of an effective
value is the place of the node that survived. Nodes are frozen: merging and assigning make new trees.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from omni_actors._errors import ConfigError

__all__ = ["Node", "Path", "Place", "assign", "child_path", "find", "merge", "plain", "short", "wrap"]

Path = tuple[str | int, ...]
"""A way down the tree: keys of mappings, indices of lists."""

_WORD = re.compile(r"[A-Za-z_][\w-]*\Z")


@attrs.frozen
class Place:
    """Where something was written. ``path`` is the way to it *in its own document*: ``$.stages[1].model``.

    Lines and columns count from 1; both are None where there is no text to point at.
    """

    file: str | None = None
    line: int | None = None
    column: int | None = None
    path: str = "$"

    @property
    def source(self) -> str:
        """How a table of values names it: ``deploy.yaml:12``, ``--set``, ``pipeline tiny-omni``."""
        if self.line is None:
            return self.file or "python"
        return f"{os.path.basename(self.file or '')}:{self.line}"


@attrs.frozen
class Node:
    """A scalar, a tuple of nodes or a mapping of nodes.

    ``key`` is the place of its key, ``text`` a scalar as it was written.
    """

    value: Any
    place: Place
    key: Place | None = None
    text: str | None = None

    @property
    def is_mapping(self) -> bool:
        """Whether ``value`` maps keys to nodes."""
        return isinstance(self.value, Mapping)

    @property
    def is_list(self) -> bool:
        """Whether ``value`` is a tuple of nodes."""
        return isinstance(self.value, tuple)


def short(value: object, limit: int = 48) -> str:
    """``repr`` cut to ``limit`` characters, for messages."""
    text = repr(value[: limit + 1] if isinstance(value, str) else value)
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def child_path(path: str, key: str | int) -> str:
    """``$.stages`` and ``talker`` make ``$.stages.talker``; unusual keys are quoted, long ones cut."""
    if isinstance(key, int):
        return f"{path}[{key}]"
    return f"{path}.{key}" if len(key) <= 64 and _WORD.match(key) else f"{path}[{short(key)}]"


def wrap(value: Any, place: Place) -> Node:
    """Plain data (mappings, sequences, scalars) as a tree, every node at ``place`` with its own path."""

    def below(key: object) -> Place:
        key = key if isinstance(key, int) else str(key)
        return attrs.evolve(place, path=child_path(place.path, key))

    if isinstance(value, Mapping):
        return Node({key: wrap(item, below(key)) for key, item in value.items()}, place)
    if isinstance(value, list | tuple):
        return Node(tuple(wrap(item, below(i)) for i, item in enumerate(value)), place)
    return Node(value, place)


def plain(node: Node) -> Any:
    """The tree's data without places: dicts, lists and scalars."""
    if node.is_mapping:
        return {key: plain(item) for key, item in node.value.items()}
    if node.is_list:
        return [plain(item) for item in node.value]
    return node.value


def merge(base: Node | None, over: Node) -> Node:
    """``over`` on top of ``base``: mappings key by key, anything else (lists too) as a whole."""
    if base is None or not (base.is_mapping and over.is_mapping):
        return over
    merged = dict(base.value)
    for key, item in over.value.items():
        merged[key] = merge(merged.get(key), item)
    return attrs.evolve(over, value=merged)


def find(node: Node, path: Sequence[str | int]) -> tuple[Node, int]:
    """The deepest node that exists on ``path``, and how many of its steps lead there."""
    for taken, step in enumerate(path):
        below = step in node.value if node.is_mapping else node.is_list and step in range(len(node.value))
        if not below:
            return node, taken
        node = node.value[step]
    return node, len(path)


def assign(node: Node | None, path: Sequence[str | int], leaf: Node) -> Node:
    """``leaf`` put at ``path``, mappings on the way made where missing. Raises ConfigError, at the leaf's place."""
    if not path:
        return merge(node, leaf)
    step, rest = path[0], path[1:]
    if isinstance(step, int):
        return _assign_item(node, step, rest, leaf)
    if node is None or node.value is None:
        node = Node({}, leaf.place, key=leaf.key)
    if not node.is_mapping:
        kind = "a list: write [0], [1], …" if node.is_list else f"{short(node.value)}, not a mapping"
        raise _unassignable(leaf, f"cannot set '{step}' here: this is {kind}")
    return attrs.evolve(node, value={**node.value, step: assign(node.value.get(step), rest, leaf)})


def _assign_item(node: Node | None, index: int, rest: Sequence[str | int], leaf: Node) -> Node:
    items = node.value if node is not None and node.is_list else None
    if node is None or items is None:
        raise _unassignable(leaf, f"cannot set item [{index}]: there is no list here")
    if index >= len(items):
        raise _unassignable(leaf, f"cannot set item [{index}]: the list has {len(items)} items")
    return attrs.evolve(node, value=(*items[:index], assign(items[index], rest, leaf), *items[index + 1 :]))


def _unassignable(leaf: Node, problem: str) -> ConfigError:
    place = leaf.place
    return ConfigError(problem, file=place.file, line=place.line, path=place.path)
