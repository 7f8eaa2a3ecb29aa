"""A ratio of expensive pairs: as ``paired_ratio``, but it may be asked for with fewer than the 15 pairs of BENCH.md."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from omni_actors.cli._bench import MIN_PAIRS, PairedRatio, paired_ratio

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["few_pairs_note", "pair_ratio"]


def pair_ratio(ours: Sequence[float], reference: Sequence[float]) -> PairedRatio:
    """The median of the paired ratios. Its interval is all that was seen while there are fewer than 15 pairs."""
    if len(ours) >= MIN_PAIRS:
        return paired_ratio(ours, reference)
    ratios = [mine / other for mine, other in zip(ours, reference, strict=True)]
    return PairedRatio(statistics.median(ratios), min(ratios), max(ratios))


def few_pairs_note(count: int) -> tuple[str, ...]:
    """What must be said about an interval of so few pairs; nothing if they are enough."""
    if count >= MIN_PAIRS:
        return ()
    coverage = 100 * (1 - 2 / 2**count)
    return (
        f"{count} pairs: the interval is the least and the greatest ratio and covers the true median with "
        f"{coverage:.1f} %; the {MIN_PAIRS} pairs that a published number takes: --pairs {MIN_PAIRS}",
    )
