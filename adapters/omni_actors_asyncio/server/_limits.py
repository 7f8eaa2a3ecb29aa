"""What a client may ask for, checked before anything is allocated for it."""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING

import attrs

from omni_actors import UsageError

from ._refusals import HttpError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["HttpLimits", "Keys"]


@attrs.frozen(kw_only=True)
class HttpLimits:
    """Bytes of a body, characters of a speech's input, stop strings, seconds of one request.

    ``requests_per_key``: how many omni requests one API key (without one: one address) may have running; 0: any.
    """

    body_bytes: int = 32 << 20
    input_chars: int = 4096
    stop_strings: int = 16
    request_s: float = 600.0
    requests_per_key: int = 0

    @classmethod
    def of(cls, given: Sequence[str]) -> HttpLimits:
        """Of ``name=value`` texts. Raises UsageError."""
        values = {}
        for each in given:
            name, _, value = each.partition("=")
            if name not in attrs.fields_dict(cls):
                raise UsageError(f"there is no limit {name!r}; there are {', '.join(attrs.fields_dict(cls))}")
            try:
                values[name] = type(getattr(cls(), name))(value)
            except ValueError as error:
                raise UsageError(f"the limit {name} is a number, not {value!r}") from error
        return cls(**values)


class Keys:
    """Who has how many requests running. Owned by one server, used in its loop."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._running: Counter[str] = Counter()

    @contextmanager
    def one(self, key: str) -> Iterator[None]:
        """Count one for the length of the block. Raises HttpError (429) past the limit."""
        if self._limit and self._running[key] >= self._limit:
            words = f"this key has {self._running[key]} requests running, which is its limit"
            raise HttpError(429, words, retry_after_s=1)
        self._running[key] += 1
        try:
            yield
        finally:
            self._running[key] -= 1
            if not self._running[key]:
                del self._running[key]
