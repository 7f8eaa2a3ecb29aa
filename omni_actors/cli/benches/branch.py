"""``bench branch``: "ask, hear, see": do the branches of a pipeline run at the same time?

tiny-omni's thinker feeds a speaker and a painter. Each question is asked three times: for everything, for text and
speech, for text and pictures, in an order that is drawn. The wall time of everything is compared with the longer of the
two paths.
"""

from __future__ import annotations

import random
import statistics
from typing import TYPE_CHECKING

import attrs
import trio

from omni_actors._errors import OmniError
from omni_actors.cli._bench import BenchResult, Bound, paired_ratio
from omni_actors.cli._demo import PIPELINE, require
from omni_actors.cli.benches._pairs import require_modules
from omni_actors.pipelines.tiny_omni._questions import BENCH_SEED, questions
from omni_actors.runtime import open_omni

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from omni_actors.cli._bench import BenchOptions
    from omni_actors.runtime import OmniRuntime

__all__ = ["BOUNDS", "Walls", "run", "summary"]

_PARTS = 3
_ASKED_S = 60.0
_PATHS: Mapping[str, tuple[str, ...]] = {
    "all": ("text", "audio", "image"), "hear": ("text", "audio"), "see": ("text", "image"),
}  # fmt: skip

BOUNDS: Mapping[str, Bound] = {"wall_ratio": Bound(high=1.15)}


@attrs.frozen(kw_only=True)
class Walls:
    """Seconds from asking one question to the last output, for each of the three wishes."""

    all: float
    hear: float
    see: float

    @property
    def longest_path(self) -> float:
        """What it would take if the other branch cost nothing."""
        return max(self.hear, self.see)


async def run(options: BenchOptions) -> BenchResult:
    """``options.pairs`` questions of three parts. Raises Missing without the engines."""
    require()
    require_modules(dict.fromkeys(("diffusers", "greenlet"), "install omni-actors[diffusion]"))
    order, walls = random.Random(0), []
    asked = questions(options.pairs + 1, BENCH_SEED, _PARTS)
    async with open_omni(PIPELINE) as omni:
        for number, question in enumerate(asked):
            wishes = order.sample(sorted(_PATHS), len(_PATHS))
            seconds = {wish: await _ask(omni, question.text, wish) for wish in wishes}
            if number:  # the first warms the engines up
                walls.append(Walls(**seconds))
                options.progress(f"question {number} of {options.pairs}: {_line(walls[-1])}")
    return summary(walls)


def _line(walls: Walls) -> str:
    return f"{1000 * walls.all:.0f} ms; heard alone {1000 * walls.hear:.0f}, seen alone {1000 * walls.see:.0f}"


async def _ask(omni: OmniRuntime, question: str, wish: str) -> float:
    begun = trio.current_time()
    seen = set()
    async with omni.generate(question, modalities=_PATHS[wish], timeout_s=_ASKED_S) as stream:
        async for output in stream:
            seen.add(output.modality)
    if seen != set(_PATHS[wish]):
        raise OmniError(f"asked for {', '.join(_PATHS[wish])}; what came was {', '.join(sorted(seen))}")
    return trio.current_time() - begun


def summary(walls: Sequence[Walls]) -> BenchResult:
    """The metrics of all questions."""
    ratio = paired_ratio([each.all for each in walls], [each.longest_path for each in walls])
    together = [each.all / (each.hear + each.see) for each in walls]
    return BenchResult(
        metrics={
            **ratio.metrics("wall_ratio"),
            **{f"{name}_ms": 1000 * statistics.median(getattr(each, name) for each in walls) for name in _PATHS},
            "of_the_sum": statistics.median(together),
        },
        samples={
            "wall_ratio": [each.all / each.longest_path for each in walls],
            **{f"{name}_ms": [1000 * getattr(each, name) for each in walls] for name in _PATHS},
        },
        notes=("of_the_sum: what all took, of both paths one after the other",),
        bounds=BOUNDS,
    )
