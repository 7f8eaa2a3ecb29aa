"""``bench engine``: a one-stage pipeline through ``open_omni`` against vLLM's AsyncLLM on uvloop, on the same engine.

Each is a process of its own and a client of its own of the one engine; they take turns in random order. 16 tokens per
request, streamed as they come.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from omni_actors.cli._bench import BenchOptions, BenchResult, Bound
from omni_actors.cli.benches._pairs import measure, open_pair, require_engines
from omni_actors.cli.benches._verdicts import compared

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["BOUNDS", "run"]

_LOADS: Mapping[int, int] = {1: 30, 8: 160, 64: 640}
"""Concurrency to requests per round: each about a second."""

BOUNDS: Mapping[str, Bound | None] = {
    **{f"rps_ratio_{concurrent}": Bound(low=0.97) for concurrent in _LOADS},
    **{f"ttft_ratio_{concurrent}": None for concurrent in _LOADS},
    **{f"cpu_ratio_{concurrent}": Bound(high=1.03) for concurrent in _LOADS},
}


async def run(options: BenchOptions) -> BenchResult:
    """``options.pairs`` pairs, about 8 seconds each, after a start. Raises Missing without vLLM or uvloop."""
    require_engines()
    async with open_pair("engine") as pair:
        found = await measure(pair, _LOADS, options.pairs, options.progress)
    return compared(
        found,
        BOUNDS,
        (
            "ours: open_omni and its reaper; the reference: AsyncLLM on uvloop, its heap frozen, without statistics, "
            "prompts rendered as its documentation advises; both attached to one engine, answers equal",
        ),
    )
