"""``bench abort``: how long an abort takes to return, and what is left of the request then.

On a one-stage pipeline (the thinker) and on the three stages that make speech; on quiet engines and with 32 other
requests running; by ``abort()``, by cancelling the consumer's scope, by leaving the block and by timeout; at a random
output. The bound is one engine step and 5 ms: the median against the median step, the 99th percentile against the
steps' 99th percentile.
"""

from __future__ import annotations

import random
import statistics
from typing import TYPE_CHECKING, Any

import attrs

from omni_actors.cli._bench import BenchResult, Bound
from omni_actors.cli._demo import PIPELINE, require
from omni_actors.config import resolve
from omni_actors.pipelines.tiny_omni._questions import BENCH_SEED, questions
from omni_actors.runtime import open_omni

from ._aborts import WAYS, Asker, Trial, load, trial

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from omni_actors.cli._bench import BenchOptions
    from omni_actors.config import PipelineSpec
    from omni_actors.runtime import OmniRuntime

__all__ = ["CONCURRENT", "Condition", "run", "summary"]

CONCURRENT = 32
_QUESTIONS = 64
_PARTS = 4
_WARM_UP = 5
_ALONE = 20
_MORE_S = 0.005
_LONG: Mapping[str, Any] = {"max_tokens": 60, "ignore_eos": True}
"""The thinker alone: every request as long as it gets, so that each moment is in the middle of one."""


@attrs.frozen(kw_only=True)
class Condition:
    """All trials of one pipeline, quiet or loaded, and the engine steps meanwhile, in seconds."""

    pipeline: str
    loaded: bool
    trials: tuple[Trial, ...]
    steps: tuple[float, ...]

    @property
    def name(self) -> str:
        """As in the metrics' names."""
        return f"{self.pipeline}_{'loaded' if self.loaded else 'idle'}"


async def run(options: BenchOptions) -> BenchResult:
    """``2 * options.pairs`` trials per way and condition. Raises Missing without the engines or the vocoder."""
    require()
    rng = random.Random(BENCH_SEED)
    conditions: list[Condition] = []
    for name, spec, sampling in _pipelines():
        options.progress(f"{name}: {', '.join(stage.name for stage in spec.stages)}")
        async with open_omni(spec) as omni:
            for loaded in (False, True):
                conditions.append(await _measure(omni, name, sampling, 2 * options.pairs, rng, loaded=loaded))
                options.progress(f"{conditions[-1].name}: {len(conditions[-1].trials)} requests aborted")
            omni.check()
    return summary(conditions)


def _pipelines() -> Iterable[tuple[str, PipelineSpec, Mapping[str, Any]]]:
    spec = resolve(PIPELINE).spec
    thinker = spec.stage("thinker")
    yield "one", attrs.evolve(spec, name="thinker-alone", stages=(thinker,)), {thinker.name: _LONG}
    yield "three", attrs.evolve(spec, stages=tuple(stage for stage in spec.stages if stage.output != "image")), {}


async def _measure(
    omni: OmniRuntime, name: str, sampling: Mapping[str, Any], count: int, rng: random.Random, *, loaded: bool
) -> Condition:
    prompts = [question.text for question in questions(_QUESTIONS, BENCH_SEED, _PARTS)]
    asker = Asker(omni, prompts, sampling)
    for _ in range(_WARM_UP):
        await asker.whole()
    if loaded:
        others = Asker(omni, prompts[::-1], sampling, name="other")
        async with load(others, CONCURRENT):
            trials = await _trials(asker, count, rng, quiet=())
        steps = others.pace.steps
    else:
        await _quiet_steps(asker)
        caches = [stage.name for stage in omni.spec.stages if stage.engine == "vllm"]
        trials = await _trials(asker, count, rng, quiet=caches)
        steps = asker.pace.steps
    return Condition(pipeline=name, loaded=loaded, trials=tuple(trials), steps=tuple(steps))


async def _quiet_steps(asker: Asker) -> None:
    """Sentences one at a time: on quiet engines two of them seldom overlap, so sound to sound would miss their step."""
    for _ in range(_ALONE):
        await asker.whole()
        assert asker.last is not None
        asker.pace.take_first_sound(asker.last)


async def _trials(asker: Asker, count: int, rng: random.Random, quiet: Sequence[str]) -> list[Trial]:
    whole = [await asker.whole() for _ in range(3)]
    usual = min(outputs for outputs, _ in whole), statistics.median(seconds for _, seconds in whole)
    return [await trial(asker, way, rng, usual, quiet) for _ in range(count) for way in WAYS]


# ---------------------------------------------------------------------- the result


def summary(conditions: Sequence[Condition]) -> BenchResult:
    """The metrics of all conditions; the plain ``idle_*`` and ``loaded_*`` are of both pipelines together."""
    metrics: dict[str, float] = {}
    samples: dict[str, list[float]] = {}
    bounds: dict[str, Bound] = {}
    for label, loaded in (("idle", False), ("loaded", True)):
        samples[f"{label}_ms"] = [_ms(one) for c in conditions if c.loaded is loaded for one in _seconds(c)]
        metrics |= _percentiles(f"{label}_ms", samples[f"{label}_ms"])
    for condition in conditions:
        returned, steps = [1000 * s for s in _seconds(condition)], [1000 * s for s in condition.steps]
        name, step_name = f"{condition.name}_ms", f"{condition.name}_step_ms"
        samples |= {name: returned, step_name: steps}
        metrics |= _percentiles(name, returned) | _percentiles(step_name, steps)
        for part in ("p50", "p99"):
            bounds[f"{name}_{part}"] = Bound(high=round(metrics[f"{step_name}_{part}"] + 1000 * _MORE_S, 3))
    metrics["step_ms"] = metrics["three_loaded_step_ms_p50"]
    trials = [one for condition in conditions for one in condition.trials]
    looked = [one.kv_free for one in trials if one.kv_free is not None]
    metrics["confirmed_fraction"] = statistics.fmean(one.confirmed for one in trials)
    metrics["outputs_after_return"] = float(sum(one.outputs_after for one in trials))
    metrics["kv_free_fraction"] = statistics.fmean(looked)
    bounds |= {"confirmed_fraction": Bound(low=1), "kv_free_fraction": Bound(low=1)}
    bounds["outputs_after_return"] = Bound(high=0)
    return BenchResult(metrics=metrics, samples=samples, notes=_notes(conditions), bounds=bounds)


def _seconds(condition: Condition) -> list[float]:
    return [one.return_s for one in condition.trials]


def _ms(seconds: float) -> float:
    return 1000 * seconds


def _percentiles(name: str, values: Sequence[float]) -> dict[str, float]:
    ordered = sorted(values)
    last = len(ordered) - 1
    return {f"{name}_p50": statistics.median(ordered), f"{name}_p99": ordered[min(last, round(0.99 * last))]}


def _notes(conditions: Sequence[Condition]) -> tuple[str, ...]:
    by_way = []
    for condition in conditions:
        parts = []
        for way in WAYS:
            times = [_ms(one.return_s) for one in condition.trials if one.way == way]
            parts.append(f"{way} {statistics.median(times):.1f} (max {max(times):.1f})")
        by_way.append(f"{condition.name}, ms: {', '.join(parts)}")
    return (
        "one: the thinker alone; three: tiny-omni without its painter; a lease may be with the vocoder, whose step is "
        "one sentence",
        "steps as the consumer sees them: token to token, or sound to sound while a sentence is unfinished (quiet: a "
        "request's first sentence too); of the stage with the longer ones",
        f"loaded: {CONCURRENT} other requests at any time",
        *by_way,
    )
