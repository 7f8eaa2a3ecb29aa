"""``bench abort-soak``: submit, read the first token, leave the block, a hundred thousand times. Does anything pile up?

One fake engine, a process on vLLM's wire; 64 askers at once, each waiting for its abort to be confirmed before it asks
again. Resident memory of the host is read every thousand cycles. Its drift is the median of the last tenth of the
readings against the median of the tenth after the warm-up, which is the first fifth.
"""

from __future__ import annotations

import gc
import math
import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import attrs
import trio

from omni_actors._errors import OmniError
from omni_actors.cli._bench import BenchResult, Bound
from omni_actors.config import Deadlines
from omni_actors.lifecycle import Kind
from omni_actors.runtime import open_omni
from omni_actors.testing.rigs import core, pipeline

from ._proc import resident_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from omni_actors.cli._bench import BenchOptions
    from omni_actors.config import PipelineSpec
    from omni_actors.runtime import OmniRuntime

__all__ = ["Seen", "Soak", "drift_percent", "measure", "run", "summary"]

_PROMPT = "Tell me a story."
_TOKENS = 64
_WARM_UP, _SHARE = 0.2, 0.1


@attrs.frozen(kw_only=True)
class Soak:
    """How many cycles, by how many askers at once; memory is read after every ``sample`` of them."""

    cycles: int = 100_000
    concurrent: int = 64
    sample: int = 1000
    token_s: float = 0.005

    def spec(self) -> PipelineSpec:
        """The pipeline: one LLM stage that never makes an asker wait for a seat."""
        engine: dict[str, Any] = {"tokens": _TOKENS, "token_s": self.token_s, "max_running": 2 * self.concurrent}
        return pipeline(core("llm", output="text", deadlines=Deadlines(), **engine))


@attrs.frozen(kw_only=True)
class Seen:
    """The raw numbers. ``rss``: bytes, after every thousand cycles. ``garbage``: objects in cycles at the end."""

    soak: Soak
    aborted: int
    seconds: float
    rss: Sequence[int]
    garbage: int


async def run(options: BenchOptions) -> BenchResult:
    """A hundred thousand cycles. Needs nothing but this package."""
    return summary(await measure(Soak(), options.progress))


async def measure(soak: Soak, progress: Callable[[str], None]) -> Seen:
    """One soak. Raises OmniError if a request ended before it could be aborted."""
    async with open_omni(soak.spec()) as omni:
        gc.collect()
        asked = _Askers(omni, soak, progress)
        began_at = trio.current_time()
        async with trio.open_nursery() as nursery:
            for _ in range(soak.concurrent):
                nursery.start_soon(asked.ask)
        seconds = trio.current_time() - began_at
        garbage = gc.collect()
        omni.check()
    return Seen(soak=soak, aborted=asked.aborted, seconds=seconds, rss=asked.rss, garbage=garbage)


class _Askers:
    """They share the cycles that are left. ``aborted`` counts the done ones."""

    def __init__(self, omni: OmniRuntime, soak: Soak, progress: Callable[[str], None]) -> None:
        self.aborted = 0
        self.rss: list[int] = []
        self._omni, self._soak, self._progress = omni, soak, progress
        self._left = soak.cycles

    async def ask(self) -> None:
        """One asker's cycles, one after the other."""
        while self._left > 0:
            self._left -= 1
            async with self._omni.generate(_PROMPT, {"max_tokens": _TOKENS}) as stream:
                await anext(stream)
            if stream.terminal is None or stream.terminal.kind is not Kind.ABORTED:
                raise OmniError(f"a request was not aborted: {stream.terminal}")
            self._done()

    def _done(self) -> None:
        self.aborted += 1
        if self.aborted % self._soak.sample == 0:
            self.rss.append(resident_bytes())
        if self.aborted % (10 * self._soak.sample) == 0:
            self._progress(f"{self.aborted} of {self._soak.cycles} cycles, {self.rss[-1] / 2**20:.1f} MiB resident")


# ---------------------------------------------------------------------- the result


def drift_percent(readings: Sequence[float]) -> float:
    """How much the last tenth of the readings lies above the tenth that follows the warm-up; medians, in percent.

    Negative: it shrank. Raises OmniError for fewer than ten readings.
    """
    if len(readings) < 10:
        raise OmniError(f"{len(readings)} readings tell no drift")
    begin, some = math.ceil(_WARM_UP * len(readings)), math.ceil(_SHARE * len(readings))
    early, late = readings[begin : begin + some], readings[-some:]
    return 100 * (statistics.median(late) / statistics.median(early) - 1)


def summary(seen: Seen) -> BenchResult:
    """The metrics and their bounds."""
    soak = seen.soak
    metrics = {
        "cycles": float(seen.aborted),
        "rss_drift_percent": drift_percent(seen.rss),
        "rss_mib": seen.rss[-1] / 2**20,
        "cycles_per_s": seen.aborted / seen.seconds,
        "garbage_objects": float(seen.garbage),
    }
    return BenchResult(
        metrics=metrics,
        samples={"rss_mib": [rss / 2**20 for rss in seen.rss]},
        notes=(
            f"one fake engine, a process on vLLM's wire, a step every {1000 * soak.token_s:g} ms; {soak.concurrent} "
            "askers: submit, first token, leave the block, which returns when the engine has confirmed",
            f"resident memory of the host every {soak.sample} cycles; the first fifth is warm-up",
        ),
        bounds={"cycles": Bound(low=soak.cycles), "rss_drift_percent": Bound(high=1)},
    )
