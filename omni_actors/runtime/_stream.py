"""One request's stream of outputs to its reader.

Written to by the request handler, read by one task of the user's. Keeps I2 and I3: the fence is tested after the last
await of an iteration, in the same synchronous step that hands the output over. Nothing upstream ever waits for the
reader: what is unread is bounded in bytes, and a reader past the bound loses its request, not the engine's time.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import msgspec
import trio

from omni_actors.lifecycle import Kind, Terminal
from omni_actors.lifecycle.events import Output, StepChunk, TextChunk

__all__ = ["Stream"]


class Stream:
    """Async iterator over ``Output``. Failed and timed-out requests raise from the iteration; aborted ones end it.

    ``terminal`` is None until the request has ended, then it holds the end with everything produced. Iterating is
    cancellable and loses nothing; cancelling it does not abort the request (leaving ``generate``'s block does).
    ``key`` is what engines know the request by: the keys in their logs begin with it.
    """

    def __init__(self, request_id: str, key: str, limit_bytes: int) -> None:
        self.request_id, self.key = request_id, key
        self.terminal: Terminal | None = None
        self._limit = limit_bytes
        self._unread: deque[Output | list[Output]] = deque()  # a list is to be merged when it is read
        self._bytes = 0
        self._fenced = False
        self._reader: trio.lowlevel.Task | None = None

    @property
    def unread_bytes(self) -> int:
        """What waits to be read, roughly, in bytes. Never more than the pipeline's ``limits.stream_bytes``."""
        return self._bytes

    # ------------------------------------------------------------------ the handler's side

    def push(self, output: Output) -> bool:
        """Add one output. False when the reader is too far behind; the output is then not added."""
        size = output.payload.nbytes
        if self._bytes + size > self._limit:
            return False
        self._bytes += size
        unread = self._unread
        if unread:
            last = unread[-1]
            if type(last) is list and _joins(last[-1], output):
                last.append(output)
                return True
            if type(last) is Output and _joins(last, output):
                unread[-1] = [last, output]
                return True
            if type(last) is Output and _outdates(last, output):
                self._bytes -= last.payload.nbytes
                unread[-1] = output
                return True
        unread.append(output)
        if (reader := self._reader) is not None:
            self._reader = None
            trio.lowlevel.reschedule(reader)
        return True

    def close(self, terminal: Terminal) -> None:
        """End the stream. Anything but a finish fences it: what is unread is dropped at once."""
        self.terminal = terminal
        if terminal.kind is not Kind.FINISHED:
            self._fenced = True
            self._unread.clear()
            self._bytes = 0
        self._wake()

    def _wake(self) -> None:
        if (reader := self._reader) is not None:
            self._reader = None
            trio.lowlevel.reschedule(reader)

    # ------------------------------------------------------------------ the user's side

    def __aiter__(self) -> Stream:
        return self

    async def __anext__(self) -> Output:
        if self._unread:
            # Not a schedule point, of which a reader that lags has no need: what is unread is little, then it parks.
            await trio.lowlevel.checkpoint_if_cancelled()
        elif self.terminal is None:
            if self._reader is not None:
                raise trio.BusyResourceError("another task is already reading this stream")
            self._reader = trio.lowlevel.current_task()
            await trio.lowlevel.wait_task_rescheduled(self._cancelled)
        # No await from here on: an abort that has returned is final.
        if self._fenced or not self._unread:
            raise self._end()
        output = self._unread.popleft()
        if not self._unread:
            self._bytes = 0
        else:
            self._bytes -= _nbytes(output)
        return output if isinstance(output, Output) else _merge(output)

    def _cancelled(self, _: Any) -> trio.lowlevel.Abort:
        self._reader = None
        return trio.lowlevel.Abort.SUCCEEDED

    def _end(self) -> BaseException:
        assert self.terminal is not None, "woken without an output or an end"
        if self.terminal.kind in (Kind.FAILED, Kind.TIMED_OUT) and self.terminal.error is not None:
            return self.terminal.error
        return StopAsyncIteration()

    async def result(self) -> Terminal:
        """Read to the end, for those who want it whole. Raises what iterating would raise."""
        async for _ in self:
            pass
        assert self.terminal is not None
        return self.terminal


def _nbytes(unread: Output | list[Output]) -> int:
    return unread.payload.nbytes if isinstance(unread, Output) else sum(each.payload.nbytes for each in unread)


def _joins(last: Output, new: Output) -> bool:
    """Text deltas of one stage, choice and part may reach a slow reader as one."""
    return (
        isinstance(last.payload, TextChunk)
        and isinstance(new.payload, TextChunk)
        and last.payload.finish_reason is None
        and (last.stage, last.index, last.part) == (new.stage, new.index, new.part)
    )


def _outdates(last: Output, new: Output) -> bool:
    """How far the work is now says all that how far it was had said, but for a preview."""
    return (
        isinstance(last.payload, StepChunk)
        and isinstance(new.payload, StepChunk)
        and last.payload.preview is None
        and (last.stage, last.index, last.part) == (new.stage, new.index, new.part)
    )


def _merge(outputs: list[Output]) -> Output:
    chunks = [output.payload for output in outputs]
    assert all(isinstance(chunk, TextChunk) for chunk in chunks)
    last = chunks[-1]
    assert isinstance(last, TextChunk)
    logprobs = [chunk.logprobs for chunk in chunks if isinstance(chunk, TextChunk) and chunk.logprobs is not None]
    payload = TextChunk(
        text="".join(chunk.text for chunk in chunks if isinstance(chunk, TextChunk)),
        token_ids=[token for chunk in chunks if isinstance(chunk, TextChunk) for token in chunk.token_ids],
        logprobs=[item for part in logprobs for item in part] if logprobs else None,
        finish_reason=last.finish_reason,
        stop_reason=last.stop_reason,
        prompt_tokens=last.prompt_tokens,
        native=_merge_native([chunk.native for chunk in chunks if isinstance(chunk, TextChunk)]),
    )
    return msgspec.structs.replace(outputs[0], payload=payload)


def _merge_native(natives: list[Any]) -> Any:
    """vLLM's own outputs know how to add up (``RequestOutput.add``); of others the last one is kept."""
    known = [native for native in natives if native is not None]
    if not known or not hasattr(known[0], "add"):
        return known[-1] if known else None
    first = known[0]
    for other in known[1:]:
        first.add(other, aggregate=True)
    return first
