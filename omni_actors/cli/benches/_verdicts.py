"""Pairs of rounds to metrics, under the names of BENCH.md: ratios (``rps_ratio_8``) and what is added to a latency
(``ttft_added_ms_1``), of ours to the reference, or of the floor to it (``floor_rps_ratio_8``).
"""

from __future__ import annotations

import operator
import statistics
from typing import TYPE_CHECKING

from omni_actors.cli._bench import BenchResult
from omni_actors.cli.benches._ratio import few_pairs_note, interval

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from omni_actors.cli._bench import Bound
    from omni_actors.cli.benches._pairs import Measured
    from omni_actors.cli.benches._work import Round

__all__ = ["compared"]


def _requests_per_s(one: Round) -> float:
    return len(one.answers) / one.wall_s


def _ttft_ms(one: Round) -> float:
    return 1000 * statistics.median(answer.first_s for answer in one.answers)


def _e2e_ms(one: Round) -> float:
    return 1000 * statistics.median(answer.total_s for answer in one.answers)


def _cpu_us(one: Round) -> float:
    return 1e6 * one.cpu_s / len(one.answers)


_MEASURES: Mapping[str, tuple[str, Callable[[Round], float]]] = {
    "rps": ("req_per_s", _requests_per_s),
    "ttft": ("ttft_ms", _ttft_ms),
    "e2e": ("e2e_ms", _e2e_ms),
    "cpu": ("cpu_us_per_req", _cpu_us),
}


_COMPARISONS: Mapping[str, Callable[[float, float], float]] = {"ratio": operator.truediv, "added": operator.sub}


def compared(found: Mapping[int, Measured], bounds: Mapping[str, Bound | None], notes: tuple[str, ...]) -> BenchResult:
    """One comparison per name in ``bounds``, ``MEASURE_ratio_CONCURRENCY`` or ``MEASURE_added_ms_CONCURRENCY``, after
    ``floor_`` if it is the floor's; both sides' medians beside it.
    """
    metrics: dict[str, float] = {}
    samples: dict[str, list[float]] = {}
    for name in bounds:
        measure, how, *_, concurrent = name.removeprefix("floor_").split("_")
        unit, of = _MEASURES[measure]
        rounds, side = found[int(concurrent)], "floor" if name.startswith("floor_") else "ours"
        one, reference = ([of(each) for each in taken] for taken in (getattr(rounds, side), rounds.reference))
        samples[name] = list(map(_COMPARISONS[how], one, reference))
        metrics |= interval(samples[name]).metrics(name)
        for whose, values in ((side, one), ("reference", reference)):
            samples[f"{unit}_{concurrent}_{whose}"] = values
            metrics[f"{unit}_{concurrent}_{whose}"] = statistics.median(values)
    pairs = min(len(measured.ours) for measured in found.values())
    return BenchResult(
        metrics=metrics,
        samples=samples,
        notes=(*notes, *few_pairs_note(pairs)),
        bounds={name: bound for name, bound in bounds.items() if bound is not None},
    )
