"""Ratios and differences of expensive pairs: they may be asked for with fewer than the 15 pairs of BENCH.md."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from omni_actors.cli._bench import MIN_PAIRS, PairedRatio, median_interval, paired_ratio

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["few_pairs_note", "interval", "pair_ratio"]


def pair_ratio(ours: Sequence[float], reference: Sequence[float]) -> PairedRatio:
    """The median of the paired ratios, and its ``interval``."""
    if len(ours) >= MIN_PAIRS:
        return paired_ratio(ours, reference)
    return interval([mine / other for mine, other in zip(ours, reference, strict=True)])


def interval(values: Sequence[float]) -> PairedRatio:
    """The median of one value per pair. Its interval is all that was seen while there are fewer than 15 pairs."""
    if len(values) >= MIN_PAIRS:
        return median_interval(values)
    return PairedRatio(statistics.median(values), min(values), max(values))


def few_pairs_note(count: int) -> tuple[str, ...]:
    """What must be said about an interval of so few pairs; nothing if they are enough."""
    if count >= MIN_PAIRS:
        return ()
    coverage = 100 * (1 - 2 / 2**count)
    return (
        f"{count} pairs: the interval is the least and the greatest ratio and covers the true median with "
        f"{coverage:.1f} %; the {MIN_PAIRS} pairs that a published number takes: --pairs {MIN_PAIRS}",
    )
