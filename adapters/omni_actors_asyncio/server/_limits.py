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
    """What one request may be. The numbers count what their names say.

    ``body_s``: seconds for a body to arrive. ``json_values``: as many values may a body hold (its commas are counted).
    ``items``: messages of a chat, parts of a message, prompts of a batch, tools. ``choices``: ``n``. ``base64_chars``:
    of one image, sound or embedding. ``image_pixels``: of one image in the body, and of all that are asked for.
    ``request_s``: seconds of one request, from its complete body on.
    ``requests_per_key``: how many requests one API key (without one: one address) may have running; 0: any number.
    """

    body_bytes: int = 32 << 20
    body_s: float = 30.0
    json_values: int = 1 << 20
    json_depth: int = 64
    items: int = 1024
    input_chars: int = 4096
    choices: int = 16
    stop_strings: int = 16
    base64_chars: int = 16 << 20
    image_pixels: int = 16 << 20
    audio_s: float = 600.0
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
