"""``bench inflight``: a full house, all of it streaming. What does one request cost, and how late does a task come?

Ten replicas of a thousand requests each, as an operator of vLLM would run them: fake engines, but processes on vLLM's
wire, so that their time is not the host's. All requests hold a lease and get a token per engine step, each is read by a
task of its own. While they stream, a probe sleeps to absolute times and notes how late it is woken, and one request
more knocks at the door again and again. Then every reader is cancelled at once.
"""

from __future__ import annotations

import gc
import math
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import attrs
import trio

from omni_actors._errors import OmniError, Overloaded
from omni_actors.cli._bench import BenchResult, Bound
from omni_actors.config import Deadlines, Limits
from omni_actors.runtime import open_omni
from omni_actors.testing.rigs import core, pipeline

from ._proc import cpu_s, cpu_wait_s, private_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from omni_actors.cli._bench import BenchOptions
    from omni_actors.config import PipelineSpec
    from omni_actors.runtime import OmniRuntime

__all__ = ["House", "Seen", "Window", "measure", "run", "summary"]

_PROMPT = "Tell me a long story about a lighthouse and the people who keep it, and do not stop before I say so."
_PROBE_S = 0.005
_REFUSE_WITHIN_S = 1.0
_FILL_S = 120.0
_TOKENS = 1000
_WARM_UP = 50
_BUSY_SHARE = 0.1


@attrs.frozen(kw_only=True)
class House:
    """How many requests, on how many replicas, with a token each every ``token_s``; watched for ``window_s``."""

    requests: int = 10_000
    replicas: int = 10
    token_s: float = 1.0
    window_s: float = 30.0
    refusals: int = 300

    def spec(self) -> PipelineSpec:
        """The pipeline: one LLM stage, admission as large as the house, an operator's deadlines."""
        seats = math.ceil(self.requests / self.replicas)
        engine: dict[str, Any] = {"tokens": _TOKENS, "token_s": self.token_s, "max_running": seats}
        stage = core("llm", output="text", replicas=self.replicas, deadlines=Deadlines(), **engine)
        return pipeline(stage, limits=Limits(max_requests=self.requests), drain_s=0.0, abort_s=30.0)


@attrs.frozen(kw_only=True)
class Window:
    """What was seen while all streamed. ``streamed``: requests that were in flight throughout, and read something."""

    streamed: int
    delays_s: Sequence[float]
    refusals_s: Sequence[float]
    outputs_per_s: float
    cpu_share: float
    cpu_wait_share: float


@attrs.frozen(kw_only=True)
class Seen:
    """The raw numbers. ``confirmed``: requests that no engine held any more when the cancellation was over."""

    house: House
    held_bytes: int
    window: Window
    cancel_s: float
    confirmed: int


async def run(options: BenchOptions) -> BenchResult:
    """Fill the house once and look. Needs nothing but this package."""
    return summary(await measure(House(), options.progress))


async def measure(house: House, progress: Callable[[str], None]) -> Seen:
    """One full house. Raises OmniError if it does not fill, or somebody gets in who should not."""
    progress(f"starting {house.replicas} engines")
    async with open_omni(house.spec()) as omni:
        crowd = _Crowd(omni, house.requests)
        await crowd.warm_up()
        gc.collect()
        empty = private_bytes()
        async with trio.open_nursery() as readers:
            await crowd.enter(readers, progress)
            held = private_bytes() - empty
            window = await _watch(omni, crowd, house, progress)
            progress("cancelling all of them")
            cancelled_at = trio.current_time()
            readers.cancel_scope.cancel()
        cancel_s = trio.current_time() - cancelled_at
        confirmed = await crowd.confirmed()
        omni.check()
    return Seen(house=house, held_bytes=held, window=window, cancel_s=cancel_s, confirmed=confirmed)


class _Crowd:
    """The readers, one task per request. ``read`` counts each one's outputs."""

    def __init__(self, omni: OmniRuntime, size: int) -> None:
        self.read = [0] * size
        self._omni = omni
        self._names = [f"reader-{number}" for number in range(size)]
        self._silent = size
        self._all_read = trio.Event()

    async def warm_up(self) -> None:
        """What the first requests make once and for all is no cost of the others."""
        async with trio.open_nursery() as nursery:
            for _ in range(min(_WARM_UP, len(self.read))):
                nursery.start_soon(self._one)

    async def _one(self) -> None:
        async with self._omni.generate(_PROMPT, {"max_tokens": 1}) as stream:
            await stream.result()

    async def enter(self, readers: trio.Nursery, progress: Callable[[str], None]) -> None:
        """Return when every one of them has read something."""
        began_at = trio.current_time()
        for number in range(len(self.read)):
            readers.start_soon(self._consume, number)
        with trio.move_on_after(_FILL_S):
            await self._all_read.wait()
        if self._silent:
            raise OmniError(f"{self._silent} of {len(self.read)} requests got no output within {_FILL_S:g} s")
        progress(f"{len(self.read)} requests stream after {trio.current_time() - began_at:.1f} s")

    async def _consume(self, number: int) -> None:
        read = self.read
        async with self._omni.generate(_PROMPT, {"max_tokens": _TOKENS}, request_id=self._names[number]) as stream:
            async for _ in stream:
                if not read[number]:
                    self._silent -= 1
                    if not self._silent:
                        self._all_read.set()
                read[number] += 1

    async def confirmed(self) -> int:
        """How many are unknown to the runtime, which they are once every engine has confirmed their release."""
        known = [(await self._omni.abort(name)).known for name in self._names]
        return known.count(False)


async def _watch(omni: OmniRuntime, crowd: _Crowd, house: House, progress: Callable[[str], None]) -> Window:
    """The window: all stream, the probe sleeps and wakes, one more request is refused every now and then."""
    progress(f"watching for {house.window_s:g} s")
    before, least = list(crowd.read), omni.in_flight
    used_s, waited_s = cpu_s([os.getpid()]), cpu_wait_s()
    delays: list[float] = []
    refused: list[float] = []
    async with trio.open_nursery() as watching:
        watching.start_soon(_knock, omni, house, refused)
        await _probe(house.window_s, delays)
    outputs = [after - earlier for after, earlier in zip(crowd.read, before, strict=True)]
    return Window(
        streamed=min(least, omni.in_flight, sum(count > 0 for count in outputs)),
        delays_s=delays,
        refusals_s=refused,
        outputs_per_s=sum(outputs) / house.window_s,
        cpu_share=(cpu_s([os.getpid()]) - used_s) / house.window_s,
        cpu_wait_share=(cpu_wait_s() - waited_s) / house.window_s,
    )


async def _probe(window_s: float, delays: list[float]) -> None:
    """Wake up every 5 ms by the clock. A moment that is missed counts, with the lateness that it had."""
    begin = trio.current_time()
    for number in range(1, math.ceil(window_s / _PROBE_S) + 1):
        due = begin + number * _PROBE_S
        await trio.sleep_until(due)
        delays.append(trio.current_time() - due)


async def _knock(omni: OmniRuntime, house: House, refused: list[float]) -> None:
    """``house.refusals`` requests too many, spread over the window."""
    begin = trio.current_time()
    for number in range(house.refusals):
        await trio.sleep_until(begin + number * house.window_s / house.refusals)
        called_at = trio.current_time()
        try:
            async with omni.generate(_PROMPT, timeout_s=_REFUSE_WITHIN_S):
                pass
        except Overloaded:
            refused.append(trio.current_time() - called_at)
        else:
            raise OmniError("a request got into a full house")


# ---------------------------------------------------------------------- the result


def summary(seen: Seen) -> BenchResult:
    """The metrics and their bounds."""
    house, window = seen.house, seen.window
    samples = {
        "delay_ms": [1000 * delay for delay in window.delays_s],
        "refuse_ms": [1000 * delay for delay in window.refusals_s],
    }
    metrics = {
        "requests": float(window.streamed),
        "bytes_per_request": seen.held_bytes / house.requests,
        "refuse_ms_p99": _percentile(samples["refuse_ms"], 0.99),
        "cancel_all_s": seen.cancel_s,
        "confirmed_fraction": seen.confirmed / house.requests,
        "delay_ms_p50": _percentile(samples["delay_ms"], 0.5),
        "delay_ms_p99": _percentile(samples["delay_ms"], 0.99),
        "delay_ms_max": max(samples["delay_ms"]),
        "outputs_per_s": window.outputs_per_s,
        "host_cpu_share": window.cpu_share,
        "host_cpu_wait_share": window.cpu_wait_share,
    }
    bounds = {
        "requests": Bound(low=house.requests),
        "bytes_per_request": Bound(high=32 * 1024),
        "refuse_ms_p99": Bound(high=10),
        "cancel_all_s": Bound(high=3),
        "confirmed_fraction": Bound(low=1),
        "delay_ms_p99": Bound(high=50),
    }
    return BenchResult(metrics=metrics, samples=samples, notes=_notes(house, window), bounds=bounds)


def _percentile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[math.ceil(share * len(ordered)) - 1]


def _notes(house: House, window: Window) -> tuple[str, ...]:
    busy = (
        f"the machine was busy: the host had no CPU for {window.cpu_wait_share:.0%} of the time; run it on a quiet one"
    )
    return (
        f"{house.replicas} fake engines, processes on vLLM's wire, up to {math.ceil(house.requests / house.replicas)} "
        f"requests each; a step of all of them every {house.token_s:g} s, in one message; their phases as they fall",
        "bytes: private memory of the host when all stream less that of the idle one, the readers' tasks included",
        f"delay: {len(window.delays_s)} wake-ups due every {1000 * _PROBE_S:g} ms, each missed one counted; "
        f"refused: {len(window.refusals_s)} requests in the same {house.window_s:g} s",
        "cancel_all: from cancelling all readers until every block was left, which is when each release is confirmed; "
        f"an engine answers between two steps, so up to {house.token_s:g} s of it is an engine's step",
        *([busy] if window.cpu_wait_share > _BUSY_SHARE else []),
    )
