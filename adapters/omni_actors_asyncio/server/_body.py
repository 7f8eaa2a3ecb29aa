"""JSON bodies: strict, bounded, and refused in words that name the field."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from ._refusals import HttpError

__all__ = ["decoded", "plain"]

T = TypeVar("T")


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
