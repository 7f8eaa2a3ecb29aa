"""JSON bodies: strict, bounded, and refused in words that name the field."""

from __future__ import annotations

import json
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from ._refusals import HttpError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ._limits import HttpLimits

__all__ = ["decoded", "objects", "plain", "strict"]

T = TypeVar("T")
_INT64 = range(-(2**63), 2**63)


def strict(body: bytes, limits: HttpLimits) -> Any:
    """JSON that every parser behind us reads alike, and that no parser can choke on.

    Raises HttpError (400) for what ``plain`` refuses, and for more values or levels than are allowed, for a key that
    is there twice (which one counts?), and for whole numbers that do not fit into 64 bits.
    """
    if body.count(b",") >= limits.json_values:
        raise HttpError(400, f"the body holds more than the {limits.json_values} values that are allowed")
    document = plain(body)
    for _ in _levels(document, limits.json_depth):
        pass
    json.loads(body, object_pairs_hook=_unique)
    return document


def objects(document: Any, depth: int) -> Iterator[dict[str, Any]]:
    """Every object in it, outermost first."""
    return (each for level in _levels(document, depth) for each in level if isinstance(each, dict))


def _levels(document: Any, depth: int) -> Iterator[list[Any]]:
    """Its containers, level by level. Raises HttpError (400) where there are too many levels, or huge numbers."""
    level = [document] if isinstance(document, dict | list) else []
    for _ in range(depth):
        if not level:
            return
        yield level
        values = list(chain.from_iterable(each.values() if isinstance(each, dict) else each for each in level))
        if any(type(value) is int and value not in _INT64 for value in values):
            raise HttpError(400, "whole numbers have 64 bits at most")
        level = [value for value in values if isinstance(value, dict | list)]
    if level:
        raise HttpError(400, f"the body is nested more than {depth} levels deep")


def _unique(pairs: list[tuple[str, Any]]) -> None:
    names = [name for name, _ in pairs]
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise HttpError(400, f"the key {twice[:200]!r} is there twice", param=twice[:200])


def plain(body: bytes) -> Any:
    """Any JSON. Raises HttpError (400) for what is none: NaN, lone surrogates, ten thousand brackets."""
    return decoded(body, Any)


def decoded(body: bytes, kind: type[T] | Any) -> T:
    """A body of this shape. Raises HttpError (400)."""
    try:
        made: T = msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        raise HttpError(400, str(error), param=_field(str(error))) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise HttpError(400, f"the body is not JSON: {error}") from error
    return made


def _field(words: str) -> str | None:
    """msgspec ends its words with "at `$.name`"."""
    place = words.rpartition("`$.")[2]
    return place.rstrip("`") if "`$." in words else None
