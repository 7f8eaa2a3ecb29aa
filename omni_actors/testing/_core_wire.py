"""The twin of vLLM's EngineCore wire in pure msgspec: the same frames, without vLLM.

The structs are vLLM's positional arrays, cut to the fields that a fake needs; positions are vLLM's, unused ones are
None. Real vLLM decodes what is encoded here and the other way round (a test holds them together). Text is toy text: a
token id is a Unicode code point, so that a simulation's texts can be read, split into sentences and compared.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from omni_actors._errors import InvalidRequest, ProtocolError
from omni_actors.wire.vllm.codec import DEAD

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from omni_actors.wire.vllm import Sink, StepOutputs

__all__ = [
    "ABORT",
    "ADD",
    "UTILITY",
    "FakeAdd",
    "FakeCoreCodec",
    "FakeOutput",
    "FakeOutputs",
    "FakeParams",
    "FakeText",
    "FakeUtility",
]  # fmt: skip

ADD, ABORT, UTILITY = b"\x00", b"\x01", b"\x03"
DELTA, FINAL_ONLY = 1, 2
_REASONS = ("stop", "length", "abort", "error", "repetition")


class FakeParams(msgspec.Struct, omit_defaults=True):
    """The fields of SamplingParams that a fake engine obeys. A map on the wire, as vLLM's is."""

    n: int = 1
    seed: int | None = None
    stop: list[str] = []
    stop_token_ids: list[int] = []
    max_tokens: int | None = 16
    min_tokens: int = 0
    ignore_eos: bool = False
    temperature: float = 1.0
    logprobs: int | None = None
    detokenize: bool = True
    output_kind: int = 0


class FakeAdd(msgspec.Struct, array_like=True, omit_defaults=True):
    """EngineCoreRequest, in vLLM's order."""

    request_id: str
    prompt_token_ids: list[int]
    mm_features: Any
    sampling_params: FakeParams
    pooling_params: Any
    arrival_time: float
    lora_request: Any
    cache_salt: Any
    data_parallel_rank: int | None
    prompt_embeds: Any = None
    prompt_is_token_ids: Any = None
    client_index: int = 0
    current_wave: int = 0
    priority: int = 0
    trace_headers: Any = None
    resumable: bool = False
    external_req_id: str | None = None


class FakeOutput(msgspec.Struct, array_like=True, omit_defaults=True, gc=False):
    """EngineCoreOutput, in vLLM's order."""

    request_id: str
    new_token_ids: list[int]
    new_logprobs: Any = None
    new_prompt_logprobs_tensors: Any = None
    pooling_output: Any = None
    finish_reason: int | None = None
    stop_reason: int | str | None = None
    events: Any = None
    kv_transfer_params: Any = None
    ec_transfer_params: Any = None
    trace_headers: Any = None
    prefill_stats: Any = None
    routed_experts: Any = None
    num_nans_in_logits: int = 0
    mm_cache_miss_hashes: list[str] | None = None


class _Result(msgspec.Struct, array_like=True):
    """UtilityResult: no type information (that would be vLLM's insecure mode), then a plain value."""

    type_info: None
    result: Any


class FakeUtility(msgspec.Struct, array_like=True):
    """UtilityOutput."""

    call_id: int
    failure_message: str | None = None
    result: _Result | None = None

    @classmethod
    def answer(cls, call_id: int, value: Any) -> FakeUtility:
        """A call's successful answer."""
        return cls(call_id, None, _Result(None, value))


class FakeOutputs(msgspec.Struct, array_like=True, omit_defaults=True, gc=False):
    """EngineCoreOutputs, in vLLM's order: one per engine step."""

    engine_index: int = 0
    outputs: list[FakeOutput] = []
    scheduler_stats: Any = None
    timestamp: float = 0.0
    utility_output: FakeUtility | None = None


class FakeCoreCodec:
    """A ``CoreCodec`` whose bodies are ``FakeAdd``."""

    def __init__(self) -> None:
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(FakeOutputs)

    def encode_add(self, body: Any) -> list[Any]:
        """One frame behind the type byte."""
        return self._frames(ADD, body)

    def encode_abort(self, keys: Sequence[str]) -> list[Any]:
        """A list of keys."""
        return self._frames(ABORT, keys)

    def forget(self, key: str) -> None:
        """Nothing was noted of it."""

    def encode_utility(self, call_id: int, method: str, args: Sequence[Any]) -> list[Any]:
        """Client index, call, method, arguments."""
        return self._frames(UTILITY, (0, call_id, method, args))

    def _frames(self, kind: bytes, message: Any) -> list[Any]:
        try:
            return [kind, self._encoder.encode(message)]
        except (TypeError, ValueError, OverflowError) as error:
            raise InvalidRequest(f"the wire cannot carry this: {error}") from error

    def decode_outputs(self, frames: Sequence[Any]) -> StepOutputs | None:
        """None for the sentinel; ProtocolError for other bytes."""
        if len(frames) == 1 and frames[0] == DEAD:
            return None
        try:
            outputs: StepOutputs = self._decoder.decode(frames[0])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, IndexError) as error:
            raise ProtocolError(f"undecodable engine output: {error}") from error
        return outputs

    def needs_text(self, body: Any) -> bool:
        """As with vLLM: stop strings keep ``detokenize`` on."""
        params: FakeParams = body.sampling_params
        return params.detokenize or params.logprobs is not None

    def prompt_tokens(self, body: Any) -> int:
        """Code points."""
        return len(body.prompt_token_ids)


class _Choice(msgspec.Struct, frozen=True):
    """CompletionOutput, as far as the client reads it."""

    index: int
    text: str
    token_ids: list[int]
    finish_reason: str | None
    stop_reason: int | str | None
    logprobs: Any = None


class _RequestOutput(msgspec.Struct, frozen=True):
    """RequestOutput, as far as the client reads it."""

    outputs: list[_Choice]
    finished: bool


class _Text:
    """One request's text so far: what was sent of it, what is held back because a stop string might begin in it."""

    def __init__(self, params: FakeParams, index: int, sink: Sink) -> None:
        self.params, self.index, self.sink = params, index, sink
        self.text, self.tokens, self.sent = "", list[int](), 0
        self._hold = max((len(stop) for stop in params.stop), default=1) - 1
        self.plain = False  # as with vLLM: text alone takes the short way, but for the first and the last of it

    def feed(self, output: FakeOutput) -> bool:
        """Take one step's tokens; True if a stop string ended it."""
        stop = None
        for token in output.new_token_ids:
            self.tokens.append(token)
            self.text += chr(token) if self.params.detokenize else ""
            if self.params.stop and (stop := next((s for s in self.params.stop if s in self.text), None)) is not None:
                self.text = self.text[: self.text.index(stop)]
                break
        self._put(output, stop)
        return stop is not None

    def _put(self, output: FakeOutput, stop: str | None) -> None:
        ended = stop is not None or output.finish_reason is not None
        if self.params.output_kind == FINAL_ONLY and not ended:
            return
        upto = len(self.text) if ended else max(self.sent, len(self.text) - self._hold)
        text, self.sent, tokens, self.tokens = self.text[self.sent : upto], upto, self.tokens, []
        if not ended and self.plain:
            self.sink.put_text(text, tokens)
            return
        self.plain = self.params.output_kind == DELTA and self.params.detokenize and not self.params.stop
        by_engine = None if output.finish_reason is None else _REASONS[output.finish_reason]
        reason, why = ("stop", stop) if stop is not None else (by_engine, output.stop_reason)
        choice = _Choice(self.index, text, tokens, reason, why)
        self.sink.put(_RequestOutput([choice], ended))


class FakeText:
    """A ``TextProcessor``: code points to text, with vLLM's rules for stop strings and held-back text."""

    def __init__(self) -> None:
        self._texts: dict[str, _Text] = {}

    def add(self, body: Any, index: int, sink: Sink, prompt: str | None = None) -> None:
        """Begin one request's text."""
        self._texts[body.request_id] = _Text(body.sampling_params, index, sink)

    def process(self, outputs: list[Any], step: StepOutputs) -> list[str]:
        """Put what is new; the keys that ended by a stop string before their engine did."""
        stopped = []
        for output in outputs:
            text = self._texts.get(output.request_id)
            if text is None:
                continue
            by_string = text.feed(output)
            if by_string or output.finish_reason is not None:
                del self._texts[output.request_id]
            if by_string and output.finish_reason is None:
                stopped.append(output.request_id)
        return stopped

    def drop(self, keys: Iterable[str]) -> None:
        """Forget them."""
        for key in keys:
            self._texts.pop(key, None)
