"""``bench diffusion``: pictures by a diffusion stage against diffusers' own pipeline, the same model, a thread each.

The model is tiny-omni's painter: twenty steps per picture. Eight requests at once against the same eight one after the
other; one request at a time against the same one; and requests that are aborted at a random step. The pictures are
compared. Each pair starts both sides anew: two starts of one program differ by more than the two sides do.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import attrs
import trio

from omni_actors._errors import OmniError
from omni_actors.cli._bench import BenchResult, Bound
from omni_actors.cli.benches._painters import GUIDANCE, NUMBER, STEPS, looks
from omni_actors.cli.benches._pairs import require_modules
from omni_actors.cli.benches._ratio import few_pairs_note, interval, pair_ratio
from omni_actors.config import resolve
from omni_actors.lifecycle.events import StepChunk
from omni_actors.runtime import open_omni
from omni_actors.stages import bounded_shield

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from omni_actors.cli._bench import BenchOptions
    from omni_actors.config import PipelineSpec
    from omni_actors.runtime import OmniRuntime

__all__ = ["BOUNDS", "Abort", "Times", "run", "summary"]

TOGETHER, ALONE = 8, 12
"""Requests at once, and one by one, in each pair."""
ABORTS = 4
_LONG = 500
_SPARE_MS = 5.0
_START_S, _ROUND_S, _STOP_S = 120.0, 120.0, 10.0
_ALIKE = 1
"""Of 255: what a shared pass may move a value by."""

BOUNDS: Mapping[str, Bound] = {
    "images_ratio_8": Bound(low=2.5),
    "latency_ratio_1": Bound(high=1.05),
    "overhead_ms_per_step": Bound(high=0.3),
    "abort_ms_over_step_p50": Bound(high=_SPARE_MS),
    "abort_steps_max": Bound(high=2),
}


@attrs.frozen(kw_only=True)
class Times:
    """One pair, in seconds: all ``TOGETHER``, and each of the ``ALONE``. ``worst``: the greatest difference, of 255."""

    ours_together: float
    reference_together: float
    ours_alone: float
    reference_alone: float
    worst: int


@attrs.frozen(kw_only=True)
class Abort:
    """One abort: how long it took to return, and how many steps the engine took after it was asked."""

    return_s: float
    steps_after: int


async def run(options: BenchOptions) -> BenchResult:
    """``options.pairs`` pairs, about 20 seconds each. Raises Missing without diffusers."""
    require_modules(dict.fromkeys(("diffusers", "greenlet"), "install omni-actors[diffusion]"))
    spec = _alone()
    pairs, aborts, order = [], [], random.Random(0)
    for number in range(1, options.pairs + 1):
        async with open_omni(spec) as omni, _reference(spec.stages[0].model) as reference:
            await _pair(omni, reference, [0, 1], order)
            pairs.append(await _pair(omni, reference, [100 * number + each for each in range(TOGETHER + ALONE)], order))
            aborts += [await _abort(omni, order) for _ in range(ABORTS)]
        options.progress(_line(number, options.pairs, pairs[-1]))
    return summary(pairs, aborts)


def _alone() -> PipelineSpec:
    """The painter without the thinker: it gets the number itself."""
    spec = resolve("tiny-omni").spec
    painter = attrs.evolve(spec.stage("painter"), inputs=(), transform=None)
    return attrs.evolve(spec, name="painter-alone", stages=(painter,))


def _line(number: int, pairs: int, times: Times) -> str:
    ours, reference = TOGETHER / times.ours_together, TOGETHER / times.reference_together
    alone = f"{1000 * times.ours_alone:.1f}/{1000 * times.reference_alone:.1f} ms alone"
    return f"pair {number} of {pairs}: {ours:.0f}/{reference:.0f} pictures/s at {TOGETHER}, {alone}"


# ---------------------------------------------------------------------- the two sides


class _Reference:
    """Diffusers' own pipeline in its process."""

    def __init__(self, process: trio.Process) -> None:
        self._process, self._said = process, bytearray()

    async def paint(self, seeds: Sequence[int]) -> list[tuple[float, list[int]]]:
        """The seconds of each picture, and what it looks like. Raises OmniError, ``trio.TooSlowError``."""
        assert self._process.stdin is not None
        await self._process.stdin.send_all(json.dumps(list(seeds)).encode() + b"\n")
        made: list[tuple[float, list[int]]] = await self.line(_ROUND_S)
        return made

    async def line(self, timeout_s: float) -> Any:
        """Its next answer. Raises as above."""
        assert self._process.stdout is not None
        with trio.fail_after(timeout_s):
            while (end := self._said.find(b"\n")) < 0:
                data = await self._process.stdout.receive_some(1 << 16)
                if not data:
                    raise OmniError("the benchmark's reference ended; its last words are above")
                self._said += data
        line = bytes(self._said[:end])
        del self._said[: end + 1]
        return json.loads(line)


@asynccontextmanager
async def _reference(folder: str) -> AsyncIterator[_Reference]:
    process = await trio.lowlevel.open_process(
        [sys.executable, "-m", "omni_actors.cli.benches._painters", folder],
        stdin=-1,
        stdout=-1,
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
    )
    try:
        reference = _Reference(process)
        await reference.line(_START_S)
        yield reference
    finally:
        assert process.stdin is not None
        with bounded_shield(trio.current_time() + _STOP_S):
            await process.stdin.aclose()
            await process.wait()
        if process.returncode is None:
            process.kill()


async def _pair(omni: OmniRuntime, reference: _Reference, seeds: Sequence[int], order: random.Random) -> Times:
    """Both sides paint the same, each picture alone and its like directly after it, in an order that is drawn."""
    together, alone = seeds[:TOGETHER], seeds[TOGETHER:] or seeds
    first = await _both(omni, reference, together, order)
    each = [await _both(omni, reference, [seed], order) for seed in alone]
    return Times(
        ours_together=first.ours,
        reference_together=first.reference,
        ours_alone=statistics.median(made.ours for made in each),
        reference_alone=statistics.median(made.reference for made in each),
        worst=max(made.worst for made in (first, *each)),
    )


@attrs.frozen
class _Round:
    ours: float
    reference: float
    worst: int


async def _both(omni: OmniRuntime, reference: _Reference, seeds: Sequence[int], order: random.Random) -> _Round:
    ours_first = order.random() < 0.5
    ours = await _ours(omni, seeds) if ours_first else None
    theirs = await reference.paint(seeds)
    seconds, pictures = ours or await _ours(omni, seeds)
    alike = zip(pictures, (looks for _, looks in theirs), strict=True)
    worst = max(abs(a - b) for mine, other in alike for a, b in zip(mine, other, strict=True))
    return _Round(seconds, sum(seconds for seconds, _ in theirs), worst)


async def _ours(omni: OmniRuntime, seeds: Sequence[int]) -> tuple[float, list[list[int]]]:
    """Seconds of all together, and the pictures in the order of the seeds."""
    pictures: dict[int, list[int]] = {}

    async def paint(seed: int) -> None:
        async with omni.generate({"number": NUMBER}, _params(seed)) as stream:
            async for output in stream:
                pictures[seed] = looks(output.image.data)

    begun = trio.current_time()
    async with trio.open_nursery() as nursery:
        for seed in seeds:
            nursery.start_soon(paint, seed)
    return trio.current_time() - begun, [pictures[seed] for seed in seeds]


def _params(seed: int, steps: int = STEPS, **more: Any) -> dict[str, Any]:
    return {"seed": seed, "num_inference_steps": steps, "guidance_scale": GUIDANCE, **more}


async def _abort(omni: OmniRuntime, rng: random.Random) -> Abort:
    """A long request, aborted at a random step of it."""
    at, done = rng.randrange(1, 60), 0
    async with omni.generate({"number": NUMBER}, _params(1, _LONG, progress=True)) as stream:
        async for output in stream:
            assert isinstance(output.payload, StepChunk), "it was finished before it was aborted"
            done = output.payload.done
            if done >= at:
                break
        steps_before = await _steps(omni)
        begun = trio.current_time()
        report = await omni.abort(stream.request_id)
        return_s = trio.current_time() - begun
    if report.unconfirmed:
        raise OmniError("an abort of the benchmark was not confirmed")
    return Abort(return_s=return_s, steps_after=await _steps(omni) - steps_before)


async def _steps(omni: OmniRuntime) -> int:
    """How many steps the engine has ever taken, of all requests."""
    (told,) = await omni.call("painter", "counters", timeout_s=_ROUND_S)
    return int(told["steps"])


# ---------------------------------------------------------------------- the result


def summary(pairs: Sequence[Times], aborts: Sequence[Abort]) -> BenchResult:
    """Raises OmniError if the pictures were not the same."""
    if (worst := max(pair.worst for pair in pairs)) > _ALIKE:
        raise OmniError(f"pictures differ from diffusers' own by {worst} of 255")
    images = pair_ratio([1 / pair.ours_together for pair in pairs], [1 / pair.reference_together for pair in pairs])
    latency = pair_ratio([pair.ours_alone for pair in pairs], [pair.reference_alone for pair in pairs])
    added = [1000 * (pair.ours_alone - pair.reference_alone) / STEPS for pair in pairs]
    overhead = interval(added)
    step_ms = 1000 * statistics.median(pair.ours_alone for pair in pairs) / STEPS
    returns = sorted(1000 * abort.return_s for abort in aborts)
    return BenchResult(
        metrics={
            **images.metrics("images_ratio_8"),
            "images_per_s_8_ours": TOGETHER / statistics.median(pair.ours_together for pair in pairs),
            "images_per_s_8_reference": TOGETHER / statistics.median(pair.reference_together for pair in pairs),
            **latency.metrics("latency_ratio_1"),
            **overhead.metrics("overhead_ms_per_step"),
            "step_ms": step_ms,
            "abort_ms_p50": statistics.median(returns),
            "abort_ms_max": returns[-1],
            "abort_ms_over_step_p50": statistics.median(returns) - step_ms,
            "abort_steps_max": max(abort.steps_after for abort in aborts),
        },
        samples={
            "images_ratio_8": [pair.reference_together / pair.ours_together for pair in pairs],
            "latency_ratio_1": [pair.ours_alone / pair.reference_alone for pair in pairs],
            "overhead_ms_per_step": added,
            "abort_ms": returns,
            "abort_steps": [abort.steps_after for abort in aborts],
        },
        notes=(
            f"tiny-omni's painter, {STEPS} steps, one digit; one thread for each side; alone: the median of {ALONE}; "
            f"the greatest difference between two pictures: {worst} of 255; {len(aborts)} aborts",
            *few_pairs_note(len(pairs)),
        ),
        bounds=BOUNDS,
    )
