"""Small drawings made of characters: sparklines of numbers and of sound. Pure."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["envelope", "sparkline"]

_LEVELS = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float], *, low: float | None = None, high: float | None = None) -> str:
    """One character per value, from ``low`` (default: the least) to ``high`` (default: the greatest)."""
    if not values:
        return ""
    bottom = min(values) if low is None else low
    top = max(values) if high is None else high
    span = top - bottom
    if not span > 0:
        return _LEVELS[0] * len(values)
    steps = (min(1.0, max(0.0, (value - bottom) / span)) for value in values)
    return "".join(_LEVELS[round(step * (len(_LEVELS) - 1))] for step in steps)


def envelope(samples: Sequence[float], buckets: int) -> list[float]:
    """The loudness of ``buckets`` equal slices: the mean magnitude of each, of at most 200 samples of it."""
    size = len(samples)
    if not size:
        return []
    bounds = [size * index // buckets for index in range(buckets + 1)]
    slices = (samples[begin : end : max(1, (end - begin) // 200)] for begin, end in itertools.pairwise(bounds))
    return [sum(abs(float(x)) for x in part) / len(part) for part in slices if len(part)]
