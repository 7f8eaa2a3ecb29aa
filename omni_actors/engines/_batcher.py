"""The batch of a GenerationEngine: which items wait, which are at work, what is called next. Does no I/O of its own.

Owns all items; used by one thread. It reads messages from ``inbox`` and says messages through ``post``; it calls the
hosted class and survives whatever that raises. Each item that came ends in exactly one Released or Failed (I11).
"""

from __future__ import annotations

import heapq
import itertools
import sys
import time
import traceback
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import attrs

from omni_actors._errors import InvalidRequest, ProtocolError
from omni_actors.engines._generator import Chunk, Generator, Item, Step, first_line, optional_fits, optional_step
from omni_actors.wire import omni as wire

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Batcher", "Called", "Inward", "Status"]

TELL_S = 0.2
"""How often the host hears of an item's steps if nobody asked to be shown them."""


@attrs.frozen
class Called:
    """What came of a call: its answer, on its way from the thread that it ran in."""

    result: wire.CallResult


Inward = wire.Message | Called
"""What comes to the working thread."""


@attrs.define
class Status:
    """What the I/O thread tells the host about the working thread. Written by the latter (or the thread of a call).

    ``busy_since`` is the batcher's clock at the start of the present call into the class, ``made`` counts chunks and
    steps.
    """

    busy_since: float | None = None
    made: int = 0


@attrs.define(eq=False)
class _Live:
    item: Item
    chunks: Iterator[Chunk | Step]
    told_at: float
    seq: int = 0


class Batcher:
    """Batches items for one hosted class.

    ``inbox`` gives the next message or None; ``post`` takes a message with its frames, and may wait for room. ``aside``
    runs a function in a thread of its own and puts what it returns into the inbox. ``clock`` tells seconds.
    """

    def __init__(
        self,
        generator: Generator,
        *,
        max_batch: int,
        inbox: Callable[[], Inward | None],
        post: Callable[[wire.Message, list[wire.Frame]], None],
        status: Status,
        aside: Callable[[Callable[[], Called]], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._generator = generator
        self._step, self._fits = optional_step(generator), optional_fits(generator)
        self._joinable = bool(getattr(generator, "joinable", True))
        self._max_batch = max_batch
        self._inbox, self._post, self._status, self._aside, self._clock = inbox, post, status, aside, clock
        # Bounded by the host's admission: every entry is a lease that the host holds credits for.
        self._waiting: list[tuple[int, int, wire.Submit]] = []
        self._arrivals = itertools.count()
        self._live: dict[str, _Live] = {}
        # Bounded by the host: it leaves no more than MAX_PENDING_CALLS unanswered.
        self._calls: deque[wire.Call] = deque()
        self._inside = _Inside(status, clock)
        if (hear := getattr(generator, "hear", None)) is not None:
            hear(self._listen)

    @property
    def idle(self) -> bool:
        """Whether a round would do nothing: there is no work, or a call is at work on the model."""
        return self._inside.calling or not (self._waiting or self._live or self._calls)

    @property
    def at_work(self) -> tuple[Item, ...]:
        """The items of the batch: those that the next step is for."""
        return tuple(live.item for live in self._live.values())

    def take(self, message: Inward) -> None:
        """Take note of one message of the host."""
        match message:
            case wire.Submit():
                heapq.heappush(self._waiting, (message.priority, next(self._arrivals), message))
            case wire.Abort(keys=keys):
                self._abort(set(keys))
            case wire.Call():
                self._calls.append(message)
            case Called(result=result):
                self._inside.calling = False
                self._say(result)

    def round(self) -> None:
        """Admit, step, and one chunk of each live item. Aborts that arrive meanwhile act before the next chunk.

        Where a call waits, it begins instead, and there are no rounds until its end.
        """
        if self.begin():
            self.finish()

    def begin(self) -> bool:
        """The first half of a round, up to its step. False: a call has begun instead, and there is no second half."""
        self._take_all()
        if self._calls:
            self._call(self._calls.popleft())
            return False
        self._admit()
        return True

    def finish(self) -> None:
        """The second half: the step, and what it has made."""
        self._step_batch()
        for live in list(self._live.values()):
            self._take_all()
            if live.item.key in self._live:
                self._advance(live)

    def _listen(self) -> None:
        """Called by the class in the middle of a step: what it does next is as good as another."""
        self._take_all()
        self._status.made += 1
        self._inside.again()

    def _take_all(self) -> None:
        while (message := self._inbox()) is not None:
            self.take(message)

    def _admit(self) -> None:
        if self._live and not self._joinable:
            return
        while self._waiting and len(self._live) < self._max_batch:
            entry = heapq.heappop(self._waiting)
            submit = entry[2]
            item = Item(key=submit.key, prompt=submit.prompt, params=submit.params, index=submit.index)
            if self._live and not self._has_room(item):
                heapq.heappush(self._waiting, entry)
                return
            try:
                with self._inside:
                    chunks = iter(self._generator.start(item))
            except Exception as error:
                self._fail(item.key, error)
            else:
                self._live[item.key] = _Live(item, chunks, self._clock())

    def _has_room(self, item: Item) -> bool:
        """What ``fits`` raises will be raised by ``start`` as well, and belongs to this item alone."""
        try:
            return bool(self._fits(item, self.at_work))
        except Exception:
            traceback.print_exc(file=sys.stderr)
            return True

    def _step_batch(self) -> None:
        if not self._live:
            return
        try:
            with self._inside:
                self._step(self.at_work)
        except Exception as error:
            for key in list(self._live):
                self._leave(key)
                self._fail(key, error)

    def _advance(self, live: _Live) -> None:
        key = live.item.key
        try:
            with self._inside:
                chunk = next(live.chunks, None)
            self._status.made += 1
            if isinstance(chunk, Step):
                self._tell(live, chunk)
                return
            finished = chunk is None or _checked(chunk).finished
            self._say(_output(live, chunk or Chunk(finished=True), finished))
        except Exception as error:
            self._leave(key)
            self._fail(key, error)
            return
        live.seq += 1
        if finished:
            self._leave(key)
            self._say(wire.Released(key))

    def _tell(self, live: _Live, step: Step) -> None:
        now = self._clock()
        if step.shown or now - live.told_at >= TELL_S:
            live.told_at = now
            self._say(wire.Progress(live.item.key, step.done, step.total, step.eta_s, step.shown, _preview(step)))

    def _abort(self, keys: set[str]) -> None:
        kept = [entry for entry in self._waiting if entry[2].key not in keys]
        gone = {entry[2].key for entry in self._waiting} & keys
        if gone:
            heapq.heapify(kept)
            self._waiting = kept
        for key in keys & self._live.keys():
            self._leave(key)
            gone.add(key)
        for key in sorted(gone):
            self._say(wire.Released(key))

    def _leave(self, key: str) -> None:
        """Take the item out of the batch and close its iterator. What the class raises in closing cannot stop that."""
        close = getattr(self._live.pop(key).chunks, "close", None)
        if close is None:
            return
        try:
            with self._inside:
                close()
        except Exception:
            traceback.print_exc(file=sys.stderr)

    def _fail(self, key: str, error: Exception) -> None:
        if isinstance(error, InvalidRequest):
            self._say(wire.Failed(key, error.message, invalid=True))
            return
        traceback.print_exception(error, file=sys.stderr)
        self._say(wire.Failed(key, f"{type(error).__name__}: {first_line(error)}"))

    def _call(self, call: wire.Call) -> None:
        method = None if call.method.startswith("_") else getattr(self._generator, call.method, None)
        if not callable(method):
            self._say(wire.CallResult(call.id, error=f"{type(self._generator).__name__} has no method {call.method!r}"))
            return
        self._inside.calling = True
        self._aside(lambda: Called(self._answer(call, method)))

    def _answer(self, call: wire.Call, method: Callable[..., Any]) -> wire.CallResult:
        """Runs beside the working thread, which does nothing but listen meanwhile."""
        self._status.busy_since = self._clock()
        try:
            return _sendable(wire.CallResult(call.id, method(*call.args)))
        except Exception as error:
            return wire.CallResult(call.id, error=f"{type(error).__name__}: {first_line(error)}")
        finally:
            self._status.busy_since = None

    def _say(self, message: wire.Message) -> None:
        """Raises TypeError or ValueError for a message that the host could not read: the class's values are in it."""
        self._post(message, _frames(message))


class _Inside:
    """Inside the class: if this never ends, ``busy_since`` shows it. During a call it speaks of the call.

    Entered several times per step, which is why it is no generator.
    """

    def __init__(self, status: Status, clock: Callable[[], float]) -> None:
        self._status, self._clock = status, clock
        self._depth = 0
        self.calling = False

    def __enter__(self) -> None:
        self._depth += 1
        if not self.calling and self._depth == 1:
            self._status.busy_since = self._clock()

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if not self.calling and not self._depth:
            self._status.busy_since = None

    def again(self) -> None:
        """It is alive: the clock of what it is in begins anew."""
        self._status.busy_since = self._clock()


def _frames(message: wire.Message) -> list[wire.Frame]:
    """The frames of a message that the host can read. Raises TypeError or ValueError."""
    frames = wire.encode(message)
    try:
        wire.decode(frames)
    except ProtocolError as error:
        raise ValueError(error.message) from None
    return frames


def _sendable(result: wire.CallResult) -> wire.CallResult:
    """The same. Raises TypeError or ValueError for a value that cannot be sent."""
    _frames(result)
    return result


def _preview(step: Step) -> wire.Tensor | None:
    return None if step.preview is None else _tensor(step.preview)


def _tensor(value: Any) -> wire.Tensor:
    return value if isinstance(value, wire.Tensor) else wire.Tensor.from_numpy(value)


def _checked(chunk: Any) -> Chunk:
    if not isinstance(chunk, Chunk):
        raise TypeError(f"an item's iterator gave a {type(chunk).__name__}, not a Chunk")
    return chunk


def _output(live: _Live, chunk: Chunk, finished: bool) -> wire.Output:
    tensors = {name: _tensor(value) for name, value in chunk.tensors.items()}
    reason = (chunk.finish_reason or "stop") if finished else None
    return wire.Output(live.item.key, live.seq, tensors, dict(chunk.meta), finished, reason)
