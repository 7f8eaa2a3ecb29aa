"""``bench asyncio``: AsyncOmni against vLLM's AsyncLLM, both on uvloop, on the same engine, with the same client code.

Each is a process of its own and a client of its own of the one engine; they take turns in random order. 16 tokens per
request, streamed as they come. The floor takes turns with them: AsyncLLM in a thread of its own, with the least code
that crosses to it. How far it stays behind AsyncLLM is what two threads cost here, whoever writes them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from omni_actors.cli._bench import BenchOptions, BenchResult, Bound
from omni_actors.cli.benches._pairs import measure, open_pair, require_engines
from omni_actors.cli.benches._verdicts import compared

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["BOUNDS", "run"]

_OURS, _FLOOR = "omni_actors_asyncio.benches.ours", "omni_actors_asyncio.benches.floor"
_LOADS: Mapping[int, int] = {1: 30, 8: 160, 64: 640}
"""Concurrency to requests per round: each about a second."""

BOUNDS: Mapping[str, Bound | None] = {
    **{f"rps_ratio_{concurrent}": Bound(low=0.97) for concurrent in _LOADS},
    "ttft_added_ms_1": Bound(high=1.0),
    "ttft_added_ms_8": None,
    "ttft_added_ms_64": None,
    **{f"cpu_ratio_{concurrent}": None for concurrent in _LOADS},
    **{f"floor_{measure}_ratio_{concurrent}": None for measure in ("rps", "cpu") for concurrent in _LOADS},
}


async def run(options: BenchOptions) -> BenchResult:
    """``options.pairs`` pairs, about 12 seconds each, after a start. Raises Missing without vLLM or uvloop."""
    require_engines()
    async with open_pair("engine", ours=_OURS, floor=_FLOOR) as pair:
        found = await measure(pair, _LOADS, options.pairs, options.progress)
    return compared(
        found,
        BOUNDS,
        (
            "ours: AsyncOmni, its trio thread and its reaper; the reference: AsyncLLM without statistics; the floor: "
            "AsyncLLM in a thread and a uvloop of its own; one client code on uvloop, heaps frozen, prompts rendered "
            "as vLLM advises; one engine, answers equal",
        ),
    )
