"""One generation's conversation with an EngineCore, without I/O: leases, calls, barriers, and what they are owed.

This is the only owner of a generation's leases. Messages in, events out; work in, frames out; it never waits.

- A lease is *live* from ``add`` until it finishes, fails or is aborted; outputs for other keys are dropped, so nothing
  of an aborted key is produced after ``abort`` (I3). From then on it is *releasing* until its barrier is answered.
- A barrier is one side-effect-free call queued behind an ABORT: its answer, whatever it says, confirms every ABORT
  before it. All keys doomed since the last one share it.
- Each lease ends exactly once (I11): produced as finished and released, released, or failed.
- A lease whose input comes in pieces (``Work.resumable``) is one lease, with an ADD per piece. Between two pieces the
  engine rests and owes nothing. However it ends, an ABORT and its barrier follow: a piece may still be on its way, and
  the engine, which does not know the key any more, would take it for a new request.

Leases whose text somebody reads go through a TextProcessor; the others are lists of token ids and never meet one.
"""

from __future__ import annotations

import sys
from collections import deque
from itertools import count
from typing import TYPE_CHECKING, Any

from omni_actors._errors import EngineDead, EngineRejected, OmniError, ProtocolError
from omni_actors.lifecycle.events import Event, LeaseFailed, Payload, Produced, Released, TensorChunk, TextChunk
from omni_actors.wire.vllm.codec import FINISH_ABORT, FINISH_ERROR, rejection
from omni_actors.wire.vllm.meter import Unmetered

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from omni_actors.stages._interface import Work
    from omni_actors.wire.vllm import CoreCodec, Meter, TextProcessor

__all__ = ["Conversation", "PendingCall"]

_FINISH_REASONS = ("stop", "length", "abort", "error", "repetition")
_PROBE = "is_sleeping"
"""The engine's cheapest public method: no side effect, answered between two steps."""


class _Lease:
    """One live lease, and its processor's sink. ``tokens``: those not yet produced; None: the processor has them.

    ``pieces``: of its input, those whose end the engine has not told yet; None for a lease whose input came whole.
    ``reason``: how the last of them ended.
    """

    __slots__ = ("done", "key", "owner", "pieces", "prompt_tokens", "reason", "stream", "tokens")

    def __init__(self, owner: Conversation, work: Work, prompt_tokens: int, *, raw: bool) -> None:
        self.owner, self.key, self.stream, self.prompt_tokens = owner, work.key, work.stream, prompt_tokens
        self.tokens: list[int] | None = [] if raw else None
        self.pieces: int | None = 1 if work.resumable else None
        self.reason: str | None = None
        self.done = False

    def put(self, output: Any, payload: Payload | None = None) -> None:
        """One RequestOutput or PoolingRequestOutput, from within the ``TextProcessor``."""
        finished, payload = output.finished, payload or self._payload(output)
        released = finished and self.done and self.pieces is None
        self.owner.events.append(Produced(self.key, payload, finished, released))
        if finished:
            self.owner.end(self, payload.finish_reason or "stop")

    def _payload(self, output: Any) -> Payload:
        choices = output.outputs
        if type(choices) is not list:
            meta = {"prompt_token_ids": output.prompt_token_ids, "cached_tokens": output.num_cached_tokens}
            return TensorChunk(
                tensors={"pooled": choices.data}, meta=meta, finish_reason="stop", prompt_tokens=self.prompt_tokens
            )
        if not choices:
            return TextChunk(finish_reason=self.reason, prompt_tokens=self.prompt_tokens)
        choice = choices[0]
        if self.pieces is not None and choice.finish_reason is not None:
            self._piece_ended(choice.finish_reason)
        return TextChunk(
            text=choice.text,
            token_ids=choice.token_ids,
            logprobs=choice.logprobs,
            finish_reason=choice.finish_reason if output.finished else None,
            stop_reason=choice.stop_reason,
            prompt_tokens=self.prompt_tokens,
            native=output,
        )

    def _piece_ended(self, reason: str) -> None:
        assert self.pieces, "the engine ended a piece that it was not given"
        self.reason, self.pieces = reason, self.pieces - 1
        if not self.pieces:
            self.owner.resting.add(self.key)

    def put_text(self, text: str, token_ids: list[int]) -> None:
        """New text that is not the last, from within ``TextProcessor.process``."""
        chunk = TextChunk(text=text, token_ids=token_ids, prompt_tokens=self.prompt_tokens)
        self.owner.events.append(Produced(self.key, chunk))

    def put_raw(self, output: Any, reason: int | None) -> None:
        """New token ids that nobody reads as text."""
        tokens: list[int] = output.new_token_ids
        if reason is None and not self.stream:
            assert self.tokens is not None
            self.tokens += tokens
        elif reason is None:
            self._produce(TextChunk(token_ids=tokens, prompt_tokens=self.prompt_tokens), last=False)
        else:
            chunk = TextChunk(
                token_ids=self.tokens + tokens if self.tokens else tokens,
                finish_reason=_FINISH_REASONS[reason],
                stop_reason=output.stop_reason,
                prompt_tokens=self.prompt_tokens,
            )
            del self.owner.live[self.key]
            self.owner.meter.finished(self.key, _FINISH_REASONS[reason])
            self._produce(chunk, last=True)

    def _produce(self, chunk: TextChunk, *, last: bool) -> None:
        if last or chunk.token_ids:
            self.owner.events.append(Produced(self.key, chunk, last, last))


class PendingCall:
    """A call that somebody waits for. ``deadline`` is absolute; ``wake`` is called once, when it is answered."""

    __slots__ = ("deadline", "error", "result", "wake")

    def __init__(self, wake: Callable[[], None], deadline: float) -> None:
        self.wake, self.deadline = wake, deadline
        self.result: Any = None
        self.error: OmniError | None = None

    def answer(self, result: Any, error: OmniError | None) -> None:
        """Settle it and wake the waiter."""
        self.result, self.error = result, error
        self.wake()


class Conversation:
    """See the module. ``events`` is what happened since the last ``take``; ``verdict`` is set when it is over."""

    def __init__(
        self,
        codec: CoreCodec,
        processor: TextProcessor,
        missing: Callable[[Sequence[str]], None],
        where: Mapping[str, Any],
        meter: Meter | None = None,
    ) -> None:
        self.events: list[Event] = []
        self.live: dict[str, _Lease] = {}
        self.resting: set[str] = set()  # of those, the ones that wait for the next piece of their input
        self.verdict: OmniError | None = None
        self.meter: Meter = meter if meter is not None else Unmetered()
        self._codec, self._processor, self._missing, self._where = codec, processor, missing, where
        self._name = f"{where['stage']}/{where['replica']}"
        self._releasing: set[str] = set()
        self._doomed: list[str] = []
        self._calls: dict[int, PendingCall | tuple[str, ...]] = {}
        self._call_ids = count()
        self._heard: deque[Sequence[Any]] = deque()
        self._step: Any = None  # the one being applied, of which ``_applied`` outputs are done
        self._applied = 0

    @property
    def owes(self) -> bool:
        """Whether the engine owes an answer of any kind."""
        return len(self.live) > len(self.resting) or bool(self._calls or self._doomed)

    @property
    def probing(self) -> bool:
        """Whether a barrier or a ping is under way: another ping would tell nothing more."""
        return any(type(call) is tuple for call in self._calls.values())

    @property
    def latest_deadline(self) -> float:
        """Of the calls that somebody waits for; ``-inf`` if there are none."""
        deadlines = (call.deadline for call in self._calls.values() if isinstance(call, PendingCall))
        return max(deadlines, default=float("-inf"))

    def take(self) -> list[Event]:
        """The events since the last take, in order."""
        events, self.events = self.events, []
        return events

    def add(self, work: Work) -> list[Any] | None:
        """A new live lease; the frames of its ADD. None: it cannot be encoded, and its failure is among the events."""
        assert work.key not in self.live, work.key
        assert work.key not in self._releasing, work.key
        try:
            frames = self._codec.encode_add(work.body)
        except OmniError as error:
            self.events.append(LeaseFailed(work.key, error))
            return None
        raw = not (work.text or work.resumable or self._codec.needs_text(work.body))
        self.meter.add(work.body)
        lease = _Lease(self, work, self._codec.prompt_tokens(work.body), raw=raw)
        if not raw:
            self._processor.add(work.body, work.index, lease, work.prompt)
        self.live[work.key] = lease
        return frames

    def extend(self, work: Work) -> list[Any] | None:
        """The next piece of a live lease's input; the frames of its ADD. None: the lease has ended, or ends hereby.

        The last piece, which is not ``resumable``, has no content. Raises InvalidRequest if it cannot be encoded.
        """
        lease = self.live.get(work.key)
        if lease is None:
            return None
        assert lease.pieces is not None, work.key
        frames = self._codec.encode_add(work.body)
        if work.resumable:
            self.meter.add(work.body)
            lease.prompt_tokens += self._codec.prompt_tokens(work.body)
            lease.pieces += 1
            self.resting.discard(work.key)
        self._processor.add(work.body, work.index, lease, work.prompt)
        return frames if work.key in self.live else None

    def end(self, lease: _Lease, reason: str) -> None:
        """It has made its last output."""
        self._forget_live(lease.key)
        self.meter.finished(lease.key, reason)
        if lease.pieces is not None:
            self._doom([lease.key])

    def _forget_live(self, key: str) -> _Lease | None:
        self.resting.discard(key)
        return self.live.pop(key, None)

    def abort(self, keys: Iterable[str]) -> list[str]:
        """Silence these leases and doom them; those of ``keys`` that were live. Aborts go out with ``take_aborts``."""
        known = [key for key in dict.fromkeys(keys) if key in self.live]
        self.meter.drop(known)
        leases = [self._forget_live(key) for key in known]
        self._processor.drop([lease.key for lease in leases if lease is not None and lease.tokens is None])
        self._doom(known)
        return known

    def withdraw(self, key: str, error: OmniError | None = None) -> None:
        """This lease's ADD never left: it is released (or failed) at once, without a barrier."""
        self.meter.drop([key])
        self._codec.forget(key)
        if (lease := self._forget_live(key)) is not None and lease.tokens is None:
            self._processor.drop([key])
        if key in self._releasing:
            self._releasing.remove(key)
            self._doomed.remove(key)
        self.events.append(Released(key) if error is None else LeaseFailed(key, error))

    def _doom(self, keys: Sequence[str]) -> None:
        self._releasing.update(keys)
        self._doomed += keys

    @property
    def doomed(self) -> Sequence[str]:
        """The leases whose aborts wait to be sent."""
        return self._doomed

    def take_aborts(self) -> list[list[Any]]:
        """One ABORT for all doomed leases and its barrier: two messages, to be sent in this order."""
        keys, self._doomed = tuple(self._doomed), []
        return [self._codec.encode_abort(keys), self._probe(keys)]

    def unsend_probe(self) -> None:
        """The last probe, or the ABORT before it, could not be queued: its leases wait to be told again."""
        _, keys = self._calls.popitem()
        assert isinstance(keys, tuple), "a call came between making the probe and sending it"
        self._doomed[:0] = keys

    def ping(self) -> list[Any] | None:
        """A probe that releases nothing; None if a probe is under way."""
        return None if self.probing else self._probe(())

    def _probe(self, keys: tuple[str, ...]) -> list[Any]:
        return self._ask(_PROBE, (), keys)

    def tell(self, method: str, args: Sequence[Any]) -> list[Any]:
        """A call whose answer, which is owed like any other, nobody waits for. Raises InvalidRequest like ``call``."""
        return self._ask(method, args, ())

    def _ask(self, method: str, args: Sequence[Any], keys: tuple[str, ...]) -> list[Any]:
        call_id = next(self._call_ids)
        frames = self._codec.encode_utility(call_id, method, args)
        self._calls[call_id] = keys
        return frames

    def call(self, method: str, args: Sequence[Any], call: PendingCall) -> tuple[int, list[Any]]:
        """A call for somebody: its id and its frames. Raises InvalidRequest for arguments that do not encode."""
        call_id = next(self._call_ids)
        frames = self._codec.encode_utility(call_id, method, args)
        self._calls[call_id] = call
        return call_id, frames

    def awaits(self, call_id: int) -> bool:
        """Whether this call has no answer yet."""
        return call_id in self._calls

    def forget(self, call_id: int) -> None:
        """Nobody waits for this call any more; a late answer is ignored."""
        self._calls.pop(call_id, None)

    def fail_calls(self, error: OmniError) -> None:
        """The end of the conversation: whoever waits for a call gets ``error``. Idempotent."""
        calls, self._calls = self._calls, {}
        for call in calls.values():
            if isinstance(call, PendingCall):
                call.answer(None, error)

    def apply(self, messages: Iterable[Sequence[Any]], limit: int | None = None) -> None:
        """Decode and apply in order; what comes of it are the events. Stops where a verdict is reached.

        With a ``limit`` it stops after so many outputs, be it in the middle of a step; the rest waits for the next
        call, ``behind`` says so.
        """
        self._heard.extend(messages)
        left = sys.maxsize if limit is None else limit
        try:
            while left > 0 and self.verdict is None and self._next():
                left -= self._apply(left)
        except ProtocolError as error:
            self.verdict = ProtocolError(f"{self._name}: {error}", **self._where)
            self.verdict.__cause__ = error

    @property
    def behind(self) -> bool:
        """Whether something heard waits to be applied. Nothing does after a verdict."""
        return self.verdict is None and bool(self._heard or self._step)

    def _next(self) -> bool:
        """Have a step to apply, if there is one."""
        if self._step is None and self._heard:
            self._step, self._applied = self._codec.decode_outputs(self._heard.popleft()), 0
            if self._step is None:
                words = f"{self._name}: the engine reported its own death"
                self.verdict = EngineDead(words, verdict="sentinel", **self._where)
        return self._step is not None

    def _apply(self, limit: int) -> int:
        """At most ``limit`` outputs of this step, and after its last one the answer that it carries; what it cost."""
        step, begin = self._step, self._applied
        whole = not begin and len(step.outputs) <= limit
        outputs = step.outputs if whole else step.outputs[begin : begin + limit]
        self._applied += len(outputs)
        last = self._applied == len(step.outputs)
        if last:
            self._step = None
        if outputs:
            self._apply_outputs(outputs, step)
        if last:
            self.meter.end(step)
        if last and step.utility_output is not None:
            self._apply_answer(step.utility_output)
        return len(outputs) or 1

    def _apply_outputs(self, outputs: Sequence[Any], step: Any) -> None:
        live, texts = self.live, []
        self.meter.count(outputs, step.timestamp)
        for output in outputs:
            lease = live.get(output.request_id)
            if lease is None:
                continue
            reason = output.finish_reason
            if reason is not None:
                lease.done = True
                if reason in (FINISH_ERROR, FINISH_ABORT):
                    self._reject(lease, output)
                    continue
            if lease.tokens is None:
                texts.append(output)
            else:
                lease.put_raw(output, reason)
        if texts:
            self._doom(self._processor.process(texts, step))

    def _reject(self, lease: _Lease, output: Any) -> None:
        """The engine ended it unasked, so it holds nothing for it and the others are not concerned."""
        self.end(lease, _FINISH_REASONS[output.finish_reason])
        if lease.tokens is None:
            self._processor.drop([lease.key])
        if output.mm_cache_miss_hashes:
            self._missing(output.mm_cache_miss_hashes)
        aborted = output.finish_reason == FINISH_ABORT
        words = "the engine aborted it (it is shutting down or paused)" if aborted else rejection(output)
        self.events.append(LeaseFailed(lease.key, self._rejected(words)))

    def _apply_answer(self, answer: Any) -> None:
        # Negative ids are the engine's own notifications; ids that are not pending belong to callers who left.
        call = self._calls.pop(answer.call_id, None)
        if isinstance(call, tuple):
            self._releasing.difference_update(call)
            self.events += map(Released, call)
        elif call is not None and answer.failure_message is not None:
            call.answer(None, self._rejected(answer.failure_message))
        elif call is not None:
            call.answer(None if answer.result is None else answer.result.result, None)

    def _rejected(self, words: str) -> EngineRejected:
        return EngineRejected(f"{self._name}: {words}", **self._where)
