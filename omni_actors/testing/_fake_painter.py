"""What a fake engine is when it denoises: the product's own batcher, on trio's clock, around a class that only counts.

What is between an engine's socket and its class is thereby no fake: who is in which step, what an abort does, which
Progress is sent. Threads are not: a step takes time by waiting, and what comes meanwhile is taken after it.
"""

from __future__ import annotations

import contextlib
import io
from collections import deque
from typing import TYPE_CHECKING, Any

import trio

from omni_actors._errors import InvalidRequest
from omni_actors.engines._batcher import Batcher, Called, Inward, Status
from omni_actors.engines._generator import Chunk, Item, Step
from omni_actors.wire import omni as wire

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence

    from omni_actors.testing._fake_omni import FakeBehaviour

    Chunks = list[tuple[dict[str, wire.Tensor], dict[str, Any]]]

__all__ = ["FakePainter", "StepHost"]

STEPS, PROGRESS, PREVIEW = "num_inference_steps", "progress", "preview_every"


class FakePainter:
    """A ``Generator`` whose items take so many steps and then make their chunks.

    An item's params may ask for fewer steps (``num_inference_steps``; fewer than one is InvalidRequest), to be told
    of each (``progress``), and to be shown a preview of one pixel every so many (``preview_every``).
    """

    def __init__(self, behaviour: FakeBehaviour, make: Callable[[Any], Chunks]) -> None:
        self._behaviour, self._make = behaviour, make
        self.made = 0

    def start(self, item: Item) -> Iterator[Chunk | Step]:
        """Begin an item. Raises InvalidRequest for a number of steps that is none."""
        item.state = 0
        return self._denoise(item, self._steps(item))

    def step(self, batch: Sequence[Item]) -> None:
        """One step of every item."""
        for item in batch:
            item.state += 1

    def echo(self, *args: Any) -> list[Any]:
        """The arguments."""
        return list(args)

    def stats(self) -> dict[str, int]:
        """How many chunks it has made."""
        return {"made": self.made}

    def _steps(self, item: Item) -> int:
        told = self._behaviour.steps or 1
        steps = item.params.get(STEPS, told)
        if not isinstance(steps, int) or steps < 1:
            raise InvalidRequest(f"{STEPS} must be a whole number from 1, not {steps!r}")
        return min(steps, told)

    def _denoise(self, item: Item, total: int) -> Iterator[Chunk | Step]:
        while True:
            if item.state - 1 == self._behaviour.fail_at_chunk:
                raise RuntimeError(f"failed at step {item.state - 1}, as told")
            if item.state >= total:
                break
            yield self._how_far(item, total)
        chunks = self._make(item.prompt)
        for number, (tensors, meta) in enumerate(chunks, start=1):
            self.made += 1
            yield Chunk(tensors=tensors, meta=meta, finished=number == len(chunks))

    def _how_far(self, item: Item, total: int) -> Step:
        done, every = item.state, item.params.get(PREVIEW)
        shows = isinstance(every, int) and every > 0 and done % every == 0
        return Step(
            done=done,
            total=total,
            eta_s=(total - done) * self._behaviour.chunk_s,
            preview=wire.Tensor("uint8", (1, 1, 3), bytes([done % 256] * 3)) if shows else None,
            shown=bool(item.params.get(PROGRESS)),
        )


class StepHost:
    """The working thread as a task. ``hear`` takes the host's messages, ``say`` gets what the batcher says.

    ``misbehave`` is called with the number of a step that an item is about to take, and may never return. ``note`` is
    told of each step that begins, by key, and of each abort that arrives.
    """

    def __init__(
        self,
        behaviour: FakeBehaviour,
        make: Callable[[Any], Chunks],
        *,
        say: Callable[[wire.Message], None],
        misbehave: Callable[[int], Awaitable[None]],
        note: Callable[[str, str], None],
    ) -> None:
        self._step_s = behaviour.chunk_s
        self._misbehave, self._note = misbehave, note
        self._inbox: deque[Inward] = deque()  # bounded by the host, as the batcher's own queues are
        self._heard = trio.Event()
        self.status = Status()
        self._batcher = Batcher(
            FakePainter(behaviour, make),
            max_batch=behaviour.capacity,
            inbox=lambda: self._inbox.popleft() if self._inbox else None,
            post=lambda message, frames: say(message),
            status=self.status,
            aside=self._aside,
            clock=trio.current_time,
        )

    @property
    def busy_s(self) -> float | None:
        """For how long it has been inside one step; None: it is not."""
        since = self.status.busy_since
        return None if since is None else trio.current_time() - since

    def hear(self, message: Inward) -> None:
        """Take a message, from now on or after the present step."""
        if isinstance(message, wire.Abort):
            for key in message.keys:
                self._note("abort", key)
        self._inbox.append(message)
        self._heard.set()

    async def run(self) -> None:
        """Work, until cancelled. Without a deadline where there is nothing to do, as the engine's own thread."""
        while True:
            while self._batcher.idle:
                await self._heard.wait()
                self._heard = trio.Event()
                while self._inbox:
                    self._batcher.take(self._inbox.popleft())
            with contextlib.redirect_stderr(io.StringIO()):  # what fails as told is no news
                begun = self._batcher.begin()
            if begun:
                await self._step()
                with contextlib.redirect_stderr(io.StringIO()):
                    self._batcher.finish()

    async def _step(self) -> None:
        """The time that a step takes."""
        batch = self._batcher.at_work
        if not batch:
            return
        for item in batch:
            self._note("step", item.key)
        self.status.busy_since = trio.current_time()
        for step in sorted({item.state for item in batch}):
            await self._misbehave(step)
        await trio.sleep(self._step_s)

    def _aside(self, work: Callable[[], Called]) -> None:
        """A call takes no time here, and is over before anything else happens."""
        self.hear(work())
