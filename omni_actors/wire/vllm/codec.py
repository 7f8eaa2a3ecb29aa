"""The file that depends on vLLM's version (with ``meter``): its structs, its processors, where their signatures differ.

Frames are made and read with the installed vLLM's own classes (they are positional arrays that only ever grew at their
end, 0.30 to 0.33), so nothing here lists their fields. What differs by version: ``process_outputs`` knows
``weight_version`` from 0.32 on, ``process_inputs`` ``kv_hints`` from 0.31 on, an output carries ``error`` from 0.33 on.
vLLM is imported inside functions only: this module costs nothing until an engine of this kind is used.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from omni_actors._errors import InvalidRequest, ProtocolError

from .shortcut import Shortcut

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from .interface import Sink, StepOutputs

__all__ = ["DEAD", "FINISH_ABORT", "FINISH_ERROR", "EngineCoreCodec", "EngineCoreText", "input_options", "rejection"]

DEAD = b"ENGINE_CORE_DEAD"
"""The whole of the engine's last message, after a fatal error of its own."""

FINISH_ABORT, FINISH_ERROR = 2, 3
"""vLLM's FinishReason: ended by the engine without being asked to, and ended by an error of this request."""


class EngineCoreCodec:
    """vLLM's own encoder and decoder (see ``CoreCodec``). Decoded tensors alias the received frames."""

    def __init__(self) -> None:
        from vllm.v1.engine import EngineCoreOutputs, EngineCoreRequestType
        from vllm.v1.serial_utils import MsgpackDecoder, MsgpackEncoder

        self._encode: Callable[[Any], Sequence[Any]] = MsgpackEncoder().encode
        self._decode: Callable[[Any], Any] = MsgpackDecoder(EngineCoreOutputs).decode
        self._add: bytes = EngineCoreRequestType.ADD.value
        self._abort: bytes = EngineCoreRequestType.ABORT.value
        self._utility: bytes = EngineCoreRequestType.UTILITY.value

    def encode_add(self, body: Any) -> list[Any]:
        """One EngineCoreRequest; large tensors follow as frames of their own, not copied."""
        return self._frames(self._add, body)

    def encode_abort(self, keys: Sequence[str]) -> list[Any]:
        """Keys to forget. The engine never answers this."""
        return self._frames(self._abort, keys)

    def forget(self, key: str) -> None:
        """Nothing was noted of it."""

    def encode_utility(self, call_id: int, method: str, args: Sequence[Any]) -> list[Any]:
        """A call of any public method of the engine; its answer carries ``call_id``."""
        return self._frames(self._utility, (0, call_id, method, args))

    def _frames(self, kind: bytes, message: Any) -> list[Any]:
        try:
            return [kind, *self._encode(message)]
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise InvalidRequest(f"vLLM's wire cannot carry this: {error}") from error

    def decode_outputs(self, frames: Sequence[Any]) -> StepOutputs | None:
        """One step's EngineCoreOutputs, or None for the death sentinel."""
        if len(frames) == 1 and frames[0] == DEAD:
            return None
        try:
            # Tensors alias these buffers, and torch warns about read-only ones. A step is small: the copy costs 0.1 us.
            outputs: StepOutputs = self._decode([_writable(frame) for frame in frames])
        except Exception as error:
            # vLLM's decoder runs hooks over untrusted bytes: anything may come out of them.
            raise ProtocolError(f"undecodable engine output: {type(error).__name__}: {error}") from error
        return outputs

    def needs_text(self, body: Any) -> bool:
        """Stop strings keep ``detokenize`` on; log probabilities need vLLM's processor as well."""
        params = body.sampling_params
        return params is None or bool(
            params.detokenize
            or params.num_logprobs is not None
            or params.prompt_logprobs is not None
            or getattr(params, "prompt_logprob_token_ids", None) is not None
        )

    def prompt_tokens(self, body: Any) -> int:
        """Of the token ids, else of the embeddings."""
        prompt = body.prompt_token_ids if body.prompt_token_ids is not None else body.prompt_embeds
        return len(prompt)


class EngineCoreText:
    """vLLM's OutputProcessor, one per generation (see ``TextProcessor``).

    Plain requests take its shortcut (see ``Shortcut``). ``stats`` finds a request's RequestStateStats by its key: its
    outputs' ``metrics``.
    """

    def __init__(self, tokenizer: Any, *, stream_interval: int = 1, stats: Callable[[str], Any] | None = None) -> None:
        from vllm.v1.engine import EngineCoreOutput
        from vllm.v1.engine.output_processor import OutputProcessor

        self._processor = OutputProcessor(tokenizer, log_stats=False, stream_interval=stream_interval)
        self._versioned = "weight_version" in inspect.signature(self._processor.process_outputs).parameters
        self._shortcut = Shortcut(self._processor.request_states, EngineCoreOutput.__struct_fields__)
        self._at_once = stream_interval == 1
        self._stats = stats

    def add(self, body: Any, index: int, sink: Sink, prompt: str | None = None) -> None:
        """``index`` becomes the index of the CompletionOutput; ``sink`` gets one RequestOutput per put."""
        states, key = self._processor.request_states, body.request_id
        known = key in states
        self._processor.add_request(body, prompt, None, index, sink)
        if known:
            return  # a piece of input; the last one may have ended it
        if self._stats is not None:  # its outputs' ``metrics``
            states[key].stats = self._stats(key)
        if self._at_once:
            self._shortcut.add(body, sink)

    def process(self, outputs: list[Any], step: StepOutputs) -> list[str]:
        """Detokenize, look for stop strings, put into the sinks."""
        version = getattr(step, "weight_version", None)
        extra = {"weight_version": version} if self._versioned else {}
        try:
            if not (rest := self._shortcut.take(outputs, version)):
                return []
            done = self._processor.process_outputs(rest, step.timestamp, None, **extra)
        except Exception as error:
            # Its state is unknown now, and it has no way to fail one request alone: this generation is over.
            raise ProtocolError(f"vLLM could not process its outputs: {type(error).__name__}: {error}") from error
        aborts: list[str] = done.reqs_to_abort
        return aborts

    def drop(self, keys: Iterable[str]) -> None:
        """See ``TextProcessor``."""
        self._processor.abort_requests(self._shortcut.drop(keys), True)


def rejection(output: Any) -> str:
    """What the engine said against a request that it ended with an error."""
    error = getattr(output, "error", None)
    if error is not None:
        return f"{error.code}: {error.message}"
    if output.mm_cache_miss_hashes:
        return "the engine no longer holds this request's multi-modal data; send it again"
    return "the engine failed this request (its own log says why)"


def input_options(process_inputs: Callable[..., Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """The caller's options as keywords of the installed ``process_inputs``. Raises InvalidRequest for unknown ones."""
    known = inspect.signature(process_inputs).parameters.keys() - _OURS
    unknown = sorted(options.keys() - known)
    if unknown:
        raise InvalidRequest(f"unknown option {unknown[0]!r}; the installed vLLM takes {', '.join(sorted(known))}")
    return {name: value for name, value in options.items() if value is not None}


_OURS = {"self", "request_id", "prompt", "params", "supported_tasks", "priority", "resumable", "tokenization_kwargs"}


def _writable(frame: Any) -> bytearray | memoryview:
    return frame if isinstance(frame, memoryview) and not frame.readonly else bytearray(frame)
