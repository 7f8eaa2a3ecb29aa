"""``bench startup``: our three engines against the same three, bare, started together by a script.

Both from the creation of the host's process to its word that everything is ready, in alternating order. Ours is ready
when every stage can serve: its engines, its front-ends (tokenizer, input processing) and its reaper.
"""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from omni_actors.cli._bench import BenchResult, Bound
from omni_actors.cli._demo import require

from ._cycle import Cycle, pairs
from ._ratio import few_pairs_note, pair_ratio

if TYPE_CHECKING:
    from collections.abc import Sequence

    from omni_actors.cli._bench import BenchOptions

__all__ = ["run", "summary"]

_BOUND = 1.1


async def run(options: BenchOptions) -> BenchResult:
    """``options.pairs`` pairs, 15 to 60 seconds per start. Raises Missing without the engines or the vocoder."""
    require()
    return summary(await pairs(options))


def summary(taken: Sequence[tuple[Cycle, Cycle]]) -> BenchResult:
    """The metrics of pairs (ours, reference)."""
    ours, reference = [mine for mine, _ in taken], [other for _, other in taken]
    samples = {
        "startup_s": [one.start_s for one in ours],
        "reference_s": [one.start_s for one in reference],
        "slowest_stage_s": [max(one.ready["stages"].values()) for one in ours],
    }
    ratio = pair_ratio(samples["startup_s"], samples["reference_s"])
    samples["startup_ratio"] = [a / b for a, b in zip(samples["startup_s"], samples["reference_s"], strict=True)]
    medians = {name: statistics.median(samples[name]) for name in ("startup_s", "slowest_stage_s", "reference_s")}
    return BenchResult(
        metrics={**ratio.metrics("startup_ratio"), **medians},
        samples=samples,
        notes=(
            "from the creation of the host's process until it said ready; the reference is vLLM's launch_core_engines "
            "for both LLM engines in one script, without any front-end, and a process that loads the vocoder",
            "slowest_stage_s counts from open_omni's begin: the rest is the interpreter's start and our imports",
            *few_pairs_note(len(taken)),
        ),
        bounds={"startup_ratio": Bound(high=_BOUND)},
    )
