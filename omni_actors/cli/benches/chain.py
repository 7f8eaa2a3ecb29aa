"""``bench chain``: three LLM stages against three AsyncLLMs chained by hand, on the same three engines.

16 tokens per stage; each stage's tokens are the next one's prompt, as they are. The reference is written as one would
at one's best: intermediate stages answer once, at their end, and do not detokenize; the last one streams.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from omni_actors.cli._bench import BenchOptions, BenchResult, Bound
from omni_actors.cli.benches._pairs import measure, open_pair, require_engines
from omni_actors.cli.benches._verdicts import compared

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["BOUNDS", "run"]

_LOADS: Mapping[int, int] = {1: 15, 8: 96, 64: 384}
"""Concurrency to requests per round: each one to two seconds."""

BOUNDS: Mapping[str, Bound | None] = {
    "e2e_ratio_1": Bound(high=1.05),
    "ttft_ratio_1": Bound(high=1.05),
    "rps_ratio_8": Bound(low=0.97),
    "rps_ratio_64": Bound(low=0.97),
    "cpu_ratio_8": Bound(high=1.0),
    "cpu_ratio_64": Bound(high=1.0),
}


async def run(options: BenchOptions) -> BenchResult:
    """``options.pairs`` pairs, about 10 seconds each, after a start. Raises Missing without vLLM or uvloop."""
    require_engines()
    async with open_pair("chain") as pair:
        found = await measure(pair, _LOADS, options.pairs, options.progress)
    return compared(
        found,
        BOUNDS,
        (
            "ours: a pipeline of three stages without transforms; the reference: three AsyncLLMs on one uvloop, their "
            "heap frozen, without statistics, intermediate ones FINAL_ONLY and not detokenized; answers equal",
        ),
    )
