"""``bench peer``: the same models and deploy files on our runtime and on vLLM-Omni's own AsyncOmni, in turns.

Chains of one, two and three Qwen3 stages, and Qwen2.5-Omni, at 1, 8 and 64 concurrent; vLLM-Omni with its default loop
and with its event-driven one, and each ratio against the better of the two. Then what an idle host costs, how fast
three stages stop, and whether a request is answered after a stage was killed or stopped.
"""

from __future__ import annotations

import math
import signal
import statistics
from collections.abc import Mapping
from typing import TYPE_CHECKING

import attrs
import trio

from omni_actors.cli._bench import BenchOptions, BenchResult, Bound
from omni_actors.cli.benches._pairs import Measured, Pair, measure, require_modules
from omni_actors.cli.benches._peer_sides import LOOPS, Closing, Fault, broken, idle_cpu_s, loops_at_once, open_sides
from omni_actors.cli.benches._peer_work import CHAINS, QWEN, QWEN_STAGES
from omni_actors.cli.benches._ratio import few_pairs_note, interval
from omni_actors.cli.benches._verdicts import compared

if TYPE_CHECKING:
    from collections.abc import Sequence

    from omni_actors.cli.benches._peer_sides import Sides

__all__ = ["PARTS", "Found", "closing_summary", "fault_summary", "idle_summary", "load_summary", "run", "run_parts"]

_CHAIN_LOADS: Mapping[int, int] = {1: 8, 8: 48, 64: 192}
_QWEN_LOADS: Mapping[int, int] = {1: 2, 8: 16, 64: 64}
"""Concurrency to requests per round: each one to two seconds, and up to ten of Qwen2.5-Omni at 64."""
_FAULTS: Mapping[str, signal.Signals] = {"sigkill": signal.SIGKILL, "sigstop": signal.SIGSTOP}
_STAGE, _FAULT_S = 1, 60.0
_PERIODS, _PERIOD_S = 3, 10.0

PARTS = (*CHAINS, QWEN, "faults")
_LONGEST = max(CHAINS)

_BOUNDS: Mapping[str, Bound] = {
    "e2e": Bound(high=1.0),
    "ttft": Bound(high=1.0),
    "rps": Bound(low=1.0),
    "cpu": Bound(high=0.5),
}
_UNITS = ("e2e_ms", "ttft_ms", "req_per_s", "cpu_us_per_req")


@attrs.define(kw_only=True)
class Found:
    """What a run has found so far. ``loads``: by workload and loop; ``closings``: pairs (ours, theirs)."""

    loads: dict[str, dict[str, dict[int, Measured]]] = attrs.field(factory=dict)
    idle: list[Mapping[str, float]] = attrs.field(factory=list)
    closings: list[tuple[Closing, Closing]] = attrs.field(factory=list)
    faults: dict[str, dict[str, Fault]] = attrs.field(factory=dict)


async def run(options: BenchOptions) -> BenchResult:
    """All of PARTS, or ``options.only``: about 25 minutes with 15 pairs. Raises Missing without vLLM-Omni or uvloop."""
    how = "make setup-omni, then .venv-omni/bin/omni-actors bench peer"
    require_modules({"vllm_omni": how, "uvloop": how, "omni_actors_asyncio": how})
    return summary(await run_parts(options.only or PARTS, options))


async def run_parts(parts: Sequence[str], options: BenchOptions) -> Found:
    """What these parts find. Raises OmniError if a side did not start, failed at a load, or answered differently."""
    found = Found()
    for part in parts:
        if part == "faults":
            await _faults(options, found)
        else:
            await _load(part, options, found)
    return found


# ---------------------------------------------------------------------- loads, idle, closings


async def _load(workload: str, options: BenchOptions, found: Found) -> None:
    stages = CHAINS.get(workload, QWEN_STAGES)
    loads = _CHAIN_LOADS if workload in CHAINS else _QWEN_LOADS
    into = found.loads.setdefault(workload, {})
    for loops in loops_at_once(stages):
        options.progress(f"{workload}: starting ours, and vLLM-Omni with its loops: {', '.join(loops)}")
        async with open_sides(workload, loops) as sides:
            into |= await _measured(sides, loads, options)
            if workload == _LONGEST:
                for _ in range(_PERIODS):
                    options.progress(f"{workload}: {_PERIOD_S:.0f} s without a request")
                    found.idle.append(await idle_cpu_s(sides, _PERIOD_S))
            if stages == CHAINS[_LONGEST]:
                found.closings.append(await _closed(sides, options))


async def _measured(sides: Sides, loads: Mapping[int, int], options: BenchOptions) -> dict[str, dict[int, Measured]]:
    first, *rest = sides.peers.values()
    pair = Pair(sides.ours, first, rest[0] if rest else None)
    made = await measure(pair, loads, options.pairs, options.progress)
    rounds = [{c: Measured(ours=m.ours, reference=m.reference) for c, m in made.items()}]
    rounds.append({c: Measured(ours=m.ours, reference=m.floor) for c, m in made.items()})
    return dict(zip(sides.peers, rounds, strict=False))


async def _closed(sides: Sides, options: BenchOptions) -> tuple[Closing, Closing]:
    """Ours, and the faster one of theirs. One after the other: what stops has the machine for itself."""
    ours = await sides.ours.close()
    theirs = [await peer.close() for peer in sides.peers.values()]
    took = ", ".join(f"{closing.seconds:.1f}" for closing in theirs)
    options.progress(f"three stages stopped in {ours.seconds:.2f} s, vLLM-Omni's in {took} s")
    return ours, min(theirs, key=lambda closing: closing.seconds)


# ---------------------------------------------------------------------- faults


async def _faults(options: BenchOptions, found: Found) -> None:
    """The middle one of three stages is killed or stopped, on all sides at the same time."""
    for name, how in _FAULTS.items():
        into = found.faults.setdefault(name, {})
        for loops in loops_at_once(CHAINS[_LONGEST]):
            options.progress(f"{name}: starting three stages on each side")
            async with open_sides(_LONGEST, loops) as sides, trio.open_nursery() as nursery:
                for side in sides.by_name:
                    nursery.start_soon(_break, sides, side, how, into)
        into |= {side: into.pop(side) for side in ("ours", *LOOPS) if side in into}
        for side, fault in into.items():
            options.progress(f"{name}, {side}: {_told(fault)}")


async def _break(sides: Sides, name: str, how: signal.Signals, into: dict[str, Fault]) -> None:
    into[name] = await broken(sides.by_name[name], _STAGE, how, _FAULT_S)


# ---------------------------------------------------------------------- the result


def summary(found: Found) -> BenchResult:
    """Everything that was measured, as one result."""
    results = [load_summary(workload, loops) for workload, loops in found.loads.items()]
    results += [idle_summary(found.idle)] if found.idle else []
    results += [closing_summary(found.closings)] if found.closings else []
    results += [fault_summary(found.faults)] if found.faults else []
    notes = (
        "ours: open_omni(omni_actors.vllm_omni.pipeline(…)) and its reaper; vLLM-Omni: AsyncOmni on uvloop, its heap "
        "frozen, without statistics; the same models and deploy files, each side with engines of its own, all up at "
        "the same time; answers equal, sound sample by sample",
        "*_ratio: against that of vLLM-Omni's two loops whose median is the better one; both loops' medians beside it",
    )
    return BenchResult(
        metrics={name: value for result in results for name, value in result.metrics.items()},
        samples={name: values for result in results for name, values in result.samples.items()},
        notes=(*notes, *dict.fromkeys(note for result in results for note in result.notes)),
        bounds={name: bound for result in results for name, bound in result.bounds.items()},
    )


def load_summary(workload: str, loops: Mapping[str, Mapping[int, Measured]]) -> BenchResult:
    """Of one workload: ratios to the better loop, and every side's medians."""
    concurrents = sorted(next(iter(loops.values())))
    wanted = {f"{name}_ratio_{concurrent}": None for name in _BOUNDS for concurrent in concurrents}
    results = {loop: compared(found, wanted, ()) for loop, found in loops.items()}
    metrics: dict[str, float] = {}
    samples: dict[str, Sequence[float]] = {}
    bounds: dict[str, Bound] = {}
    for concurrent in concurrents:
        for name, bound in _BOUNDS.items():
            theirs, ours = f"{name}_ratio_{concurrent}", f"{workload}_{concurrent}_{name}_ratio"
            better = _better(results, theirs, least=bound.low > -math.inf)
            metrics |= {f"{ours}{end}": better.metrics[f"{theirs}{end}"] for end in ("", "_low", "_high")}
            samples[ours], bounds[ours] = better.samples[theirs], bound
        for unit in _UNITS:
            for side, values in _sides(results, f"{unit}_{concurrent}").items():
                samples[f"{workload}_{concurrent}_{unit}_{side}"] = values
                metrics[f"{workload}_{concurrent}_{unit}_{side}"] = statistics.median(values)
    notes = next(iter(results.values())).notes
    return BenchResult(metrics=metrics, samples=samples, notes=notes, bounds=bounds)


def _better(results: Mapping[str, BenchResult], name: str, *, least: bool) -> BenchResult:
    """The comparison with the loop that leaves us less."""
    return (min if least else max)(results.values(), key=lambda result: result.metrics[name])


def _sides(results: Mapping[str, BenchResult], name: str) -> dict[str, Sequence[float]]:
    ours = next(iter(results.values())).samples[f"{name}_ours"]
    return {"ours": ours, **{loop: result.samples[f"{name}_reference"] for loop, result in results.items()}}


def idle_summary(periods: Sequence[Mapping[str, float]]) -> BenchResult:
    """CPU seconds of the hosts in ten seconds."""
    names = dict.fromkeys(name for period in periods for name in period)
    samples = {f"idle_cpu_s_{name}": [period[name] for period in periods if name in period] for name in names}
    medians = {name: statistics.median(values) for name, values in samples.items()}
    theirs = min(medians[f"idle_cpu_s_{loop}"] for loop in LOOPS if f"idle_cpu_s_{loop}" in medians)
    metrics = {"idle_cpu_s": medians["idle_cpu_s_ours"], "peer_idle_cpu_s": theirs, **medians}
    return BenchResult(metrics=metrics, samples=samples, bounds={"idle_cpu_s": Bound(high=_PERIOD_S * 0.001)})


def closing_summary(closings: Sequence[tuple[Closing, Closing]]) -> BenchResult:
    """Shutdowns of three stages."""
    samples: dict[str, Sequence[float]] = {
        "shutdown_s": [ours.seconds for ours, _ in closings],
        "peer_shutdown_s": [theirs.seconds for _, theirs in closings],
        "killed": [float(ours.killed) for ours, _ in closings],
        "peer_killed": [float(theirs.killed) for _, theirs in closings],
        "shutdown_ratio": [ours.seconds / theirs.seconds for ours, theirs in closings],
    }
    metrics = {
        **interval(samples["shutdown_ratio"]).metrics("shutdown_ratio"),
        **{name: statistics.median(samples[name]) for name in ("shutdown_s", "peer_shutdown_s")},
        **{name: float(max(samples[name])) for name in ("killed", "peer_killed")},
    }
    return BenchResult(
        metrics=metrics,
        samples=samples,
        notes=tuple(f"shutdown: {note}" for note in few_pairs_note(len(closings))),
        bounds={"shutdown_ratio": Bound(high=1 / 3), "killed": Bound(high=0)},
    )


def fault_summary(faults: Mapping[str, Mapping[str, Fault]]) -> BenchResult:
    """Seconds until a request was answered again; infinite (null) if none was."""
    metrics = {
        f"{name}_answered_s_{side}": math.inf if fault.answered_s is None else fault.answered_s
        for name, sides in faults.items()
        for side, fault in sides.items()
    }
    notes = [
        f"{name} of a stage, {side}: {_told(fault)}" for name, sides in faults.items() for side, fault in sides.items()
    ]
    bounds = {f"{name}_answered_s_ours": Bound(high=_FAULT_S) for name in faults}
    return BenchResult(metrics=metrics, notes=tuple(notes), bounds=bounds)


def _told(fault: Fault) -> str:
    if fault.answered_s is None:
        return f"the first request: {fault.first}; none was answered in {_FAULT_S:.0f} s"
    return f"the first request: {fault.first}; one was answered {fault.answered_s:.1f} s after the signal"
