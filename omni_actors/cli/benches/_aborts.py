"""Trials of ``bench abort``: one request, aborted in one of the four ways at a random moment; and the load beside it.

A trial times how long the way takes to return, and looks whether anything of the request is left then: outputs, leases
that no engine has confirmed, blocks of the KV cache. ``Pace`` times engine steps by what reaches the consumer.
"""

from __future__ import annotations

import itertools
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Literal

import attrs
import trio

from omni_actors._errors import OmniError, RequestFailed
from omni_actors.lifecycle import Kind
from omni_actors.lifecycle.events import TensorChunk, TextChunk

if TYPE_CHECKING:
    import random
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence

    from omni_actors.lifecycle import Terminal
    from omni_actors.lifecycle.events import Output
    from omni_actors.runtime import OmniRuntime
    from omni_actors.runtime._stream import Stream

__all__ = ["WAYS", "Asker", "Pace", "Trial", "Way", "load", "trial"]

Way = Literal["abort", "scope", "block", "timeout"]
WAYS: tuple[Way, ...] = ("abort", "scope", "block", "timeout")

_TIMEOUT_S = 60.0
_DRAWS = 100
_COMPUTES_S = 0.005
"""A shorter gap between two pieces of sound is no computation: the vocoder cut up what it had."""


@attrs.frozen(kw_only=True)
class Trial:
    """``return_s``: from the abort until it returned. ``kv_free``: None where it was not looked at."""

    way: Way
    return_s: float
    confirmed: bool
    outputs_after: int
    kv_free: bool | None = None


class Pace:
    """Engine steps in seconds, as the consumer sees them. ``text``: token to token; ``sound``: piece to piece while a
    sentence is unfinished, so that the vocoder is certainly at work.
    """

    def __init__(self) -> None:
        self.text: list[float] = []
        self.sound: list[float] = []
        self._last_text: dict[str, float] = {}
        self._last_sound = 0.0
        self._open: set[tuple[str, int]] = set()

    def take(self, request: str, output: Output) -> None:
        """One output that just arrived."""
        now = trio.current_time()
        if isinstance(output.payload, TextChunk):
            if request in self._last_text:
                self.text.append(now - self._last_text[request])
            self._last_text[request] = now
        elif isinstance(output.payload, TensorChunk):
            if self._open and now - self._last_sound > _COMPUTES_S:
                self.sound.append(now - self._last_sound)
            self._last_sound = now
            whole = output.payload.finish_reason is not None
            (self._open.discard if whole else self._open.add)((request, output.part))

    def take_first_sound(self, terminal: Terminal) -> None:
        """A whole request that was alone: its first sentence waited for nothing, so it took one step."""
        for timing in terminal.timings:
            if timing.audio_s and timing.submitted_at is not None and timing.first_at is not None:
                self.sound.append(timing.first_at - timing.submitted_at)

    def forget(self, request: str) -> None:
        """The request has ended."""
        self._last_text.pop(request, None)
        self._open = {key for key in self._open if key[0] != request}

    @property
    def steps(self) -> list[float]:
        """Of the stage whose steps are the longer ones: a lease on it is released between two of them."""
        return max((self.text, self.sound), key=lambda steps: sum(steps) / len(steps) if steps else 0.0)


class Asker:
    """Makes requests: prompts by turns, one sampling, ids of its own."""

    def __init__(
        self, omni: OmniRuntime, prompts: Sequence[str], sampling: Mapping[str, Any], name: str = "bench"
    ) -> None:
        self.omni, self.sampling = omni, sampling
        self.pace, self._name = Pace(), name
        self.last: Terminal | None = None
        self._prompts = itertools.cycle(prompts)
        self._numbers = itertools.count(1)

    def ask(self, timeout_s: float = _TIMEOUT_S) -> tuple[str, Any]:
        """An id, and the block of its request."""
        name = f"{self._name}-{next(self._numbers)}"
        return name, self.omni.generate(next(self._prompts), self.sampling, request_id=name, timeout_s=timeout_s)

    async def whole(self, first: Callable[[], None] | None = None) -> tuple[int, float]:
        """One request to its end: how many outputs, how many seconds. ``first`` is called at the first output."""
        began_at, count = trio.current_time(), 0
        name, block = self.ask()
        try:
            async with block as stream:
                async for output in stream:
                    self.pace.take(name, output)
                    count += 1
                    if first is not None and count == 1:
                        first()
        finally:
            self.pace.forget(name)
        self.last = stream.terminal
        return count, trio.current_time() - began_at


@asynccontextmanager
async def load(asker: Asker, concurrent: int) -> AsyncIterator[None]:
    """``concurrent`` requests at any time while the block lasts, all of them generating when it begins."""
    async with trio.open_nursery() as nursery:
        for _ in range(concurrent):
            await nursery.start(_one_after_another, asker)
        yield
        nursery.cancel_scope.cancel()


async def _one_after_another(asker: Asker, task_status: trio.TaskStatus[None]) -> None:
    await asker.whole(task_status.started)
    while True:
        await asker.whole()


async def trial(asker: Asker, way: Way, rng: random.Random, usual: tuple[int, float], quiet: Sequence[str]) -> Trial:
    """One request, aborted. ``usual``: a whole one's outputs and seconds, between which the moment is drawn.

    ``quiet``: the LLM stages whose KV cache must be empty afterwards. A request that was faster than its abort is
    drawn again.
    """
    outputs, seconds = usual
    for _ in range(_DRAWS):
        share = rng.random()
        if way == "timeout":
            made = await _timed_out(asker, max(0.001, share * seconds))
        else:
            made = await _left(asker, way, 1 + int(share * (outputs - 1)))
        if made is not None:
            name, stream, return_s, confirmed = made
            return await _look(asker, way, name, stream, return_s, confirmed, quiet)
    raise OmniError(f"{_DRAWS} requests in a row were finished before they could be aborted ({way})")


_Made = tuple[str, "Stream", float, bool | None]


async def _left(asker: Asker, way: Way, at: int) -> _Made | None:
    name, block = asker.ask()
    if way == "abort":
        return await _aborted(asker, name, block, at)
    left_at, stream = None, None
    with trio.CancelScope() as scope:
        async with block as stream:
            count = 0
            async for output in stream:
                asker.pace.take(name, output)
                if (count := count + 1) == at:
                    left_at = trio.current_time()
                    if way == "block":
                        break
                    scope.cancel()
    asker.pace.forget(name)
    return _made(name, stream, left_at, None)


async def _aborted(asker: Asker, name: str, block: Any, at: int) -> _Made | None:
    reached, after = trio.Event(), trio.Event()
    late = 0

    async def read(stream: Stream) -> None:
        nonlocal late
        count = 0
        async for output in stream:
            asker.pace.take(name, output)
            late += after.is_set()
            if (count := count + 1) == at:
                reached.set()
        reached.set()

    async with block as stream, trio.open_nursery() as nursery:
        nursery.start_soon(read, stream)
        await reached.wait()
        began_at = trio.current_time()
        report = await asker.omni.abort(name)
        returned_at = trio.current_time()
        after.set()
    asker.pace.forget(name)
    if stream.terminal is None or stream.terminal.kind is Kind.FINISHED:
        return None
    return name, stream, returned_at - began_at, report.known and not report.unconfirmed and not late


async def _timed_out(asker: Asker, timeout_s: float) -> _Made | None:
    name, block = asker.ask(timeout_s)
    deadline, stream = trio.current_time() + timeout_s, None
    try:
        async with block as stream:
            async for output in stream:
                asker.pace.take(name, output)
    except RequestFailed:
        pass  # the timeout: it is what this way is
    asker.pace.forget(name)
    return _made(name, stream, deadline, None)


def _made(name: str, stream: Stream | None, began_at: float | None, confirmed: bool | None) -> _Made | None:
    if stream is None or began_at is None or stream.terminal is None or stream.terminal.kind is Kind.FINISHED:
        return None
    return name, stream, trio.current_time() - began_at, confirmed


async def _look(
    asker: Asker, way: Way, name: str, stream: Stream, return_s: float, confirmed: bool | None, quiet: Sequence[str]
) -> Trial:
    """Right after the return. A request is known to the runtime until every engine has confirmed its release."""
    free = [all(await asker.omni.call(stage, "reset_prefix_cache")) for stage in quiet]
    after = 0
    try:
        async for _ in stream:
            after += 1
    except RequestFailed:
        pass  # a stream that timed out says so again
    if confirmed is None or confirmed:
        confirmed = not (await asker.omni.abort(name)).known
    return Trial(
        way=way, return_s=return_s, confirmed=confirmed, outputs_after=after, kv_free=all(free) if quiet else None
    )
