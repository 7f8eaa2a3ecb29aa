"""vLLM-Omni's types on vLLM's wire, and its output processor as our ``TextProcessor``."""

from __future__ import annotations

import copy
from functools import cache
from typing import TYPE_CHECKING, Any

from omni_actors._errors import ProtocolError
from omni_actors.lifecycle.events import TensorChunk
from omni_actors.wire.vllm.codec import EngineCoreCodec
from omni_actors.wire.vllm.shortcut import SPECIAL, Shortcut

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from omni_actors.lifecycle.events import Payload
    from omni_actors.wire.vllm.interface import Sink, StepOutputs

__all__ = ["OmniCoreCodec", "OmniOutputs"]

_MADE = "multimodal_output"
_KNOWN = ("pooling_output_payload", "is_segment_finished", "new_prompt_len_snapshot", "num_generation_tokens")
"""What the codec has unpacked, and what is said of input in pieces only."""


class OmniCoreCodec(EngineCoreCodec):
    """Reads OmniEngineCoreOutputs. What it writes says by itself what it is.

    Engines know a request by one name in all stages, by which their connectors find each other; a lease's key is its
    own in each. The body carries both; on the wire goes the name alone, and a key comes back.
    """

    def __init__(self) -> None:
        from vllm.v1.serial_utils import MsgpackDecoder
        from vllm_omni.engine import OmniEngineCoreOutputs
        from vllm_omni.engine.stage_pool import StagePool

        super().__init__()
        self._unpack = StagePool._rehydrate_pooling_output_payloads
        self._decode_named = MsgpackDecoder(OmniEngineCoreOutputs).decode
        self._decode = self._with_keys
        self._keys: dict[str, str] = {}
        self._names: dict[str, str] = {}

    def encode_add(self, body: Any) -> list[Any]:
        """One OmniEngineCoreRequest; ``external_req_id`` is its name."""
        named = copy.copy(body)
        named.request_id = body.external_req_id
        frames = super().encode_add(named)
        self._keys[body.external_req_id], self._names[body.request_id] = body.request_id, body.external_req_id
        return frames

    def encode_abort(self, keys: Sequence[str]) -> list[Any]:
        """By their names."""
        names = [self._names[key] for key in keys if key in self._names]
        for key in keys:
            self.forget(key)
        return super().encode_abort(names)

    def forget(self, key: str) -> None:
        """Its name is nobody's any more."""
        if (name := self._names.pop(key, None)) is not None:
            del self._keys[name]

    def _with_keys(self, frames: Sequence[Any]) -> Any:
        outputs = self._decode_named(frames)
        self._unpack(outputs)
        for output in outputs.outputs:
            name = output.request_id
            output.request_id = key = self._keys.get(name, name)
            if output.finish_reason is not None and key in self._names:
                del self._names[key], self._keys[name]
        return outputs

    def needs_text(self, body: Any) -> bool:
        """Always: tensors come with the outputs, and the processor is who adds them up."""
        return True


class OmniOutputs:
    """vLLM-Omni's MultimodalOutputProcessor, one per generation (see ``TextProcessor``), with a shortcut for text.

    ``makes``: the stage's ``engine_output_type``. ``rate``: the samples per second of a stage of sound, else None.
    """

    def __init__(self, tokenizer: Any, *, makes: str | None, rate: int | None) -> None:
        from vllm_omni.engine import OmniEngineCoreOutput

        self._processor = _unmeasured()(tokenizer, log_stats=False, engine_core_output_type=makes)
        fields = OmniEngineCoreOutput.__struct_fields__
        self._shortcut = Shortcut(self._processor.request_states, fields, special=(*SPECIAL, _MADE), known=_KNOWN)
        self._rate = rate

    def add(self, body: Any, index: int, sink: Sink, prompt: str | None = None) -> None:
        """As in ``TextProcessor``."""
        if self._rate is not None:
            self._processor.add_request(body, prompt, None, index, _Sounds(sink, self._rate))
            return
        self._processor.add_request(body, prompt, None, index, sink)
        self._shortcut.add(body, sink)

    def process(self, outputs: list[Any], step: StepOutputs) -> list[str]:
        """As in ``TextProcessor``."""
        try:
            if not (rest := self._shortcut.take(outputs)):
                return []
            done = self._processor.process_outputs(rest, step.timestamp, None)
        except Exception as error:
            # Its state is unknown now, and it has no way to fail one request alone: this generation is over.
            words = f"vLLM-Omni could not process its outputs: {type(error).__name__}: {error}"
            raise ProtocolError(words) from error
        aborts: list[str] = done.reqs_to_abort
        return aborts

    def drop(self, keys: Iterable[str]) -> None:
        """As in ``TextProcessor``."""
        self._processor.abort_requests(self._shortcut.drop(keys), True)


@cache
def _unmeasured() -> type[Any]:
    """vLLM-Omni's processor without what it notes of each output for its own stage pool, which nobody would read here:
    a seventh of its time, and a record of each request that would stay.
    """
    from vllm_omni.outputs.output_processor import MultimodalOutputProcessor

    class Unmeasured(MultimodalOutputProcessor):  # type: ignore[misc]  # vLLM-Omni is not followed by mypy
        def _update_stats_from_output(self, *_: Any, **__: Any) -> None:
            """Nothing."""

    return Unmeasured


class _Sounds:
    """A sink's sink: what a stage of sound makes is samples. ``rate``: of those that bring none with them, in Hz."""

    __slots__ = ("_rate", "_sink")

    def __init__(self, sink: Sink, rate: int) -> None:
        self._sink, self._rate = sink, rate

    def put(self, output: Any) -> None:
        self._sink.put(output, _audio(output, self._rate))


def _audio(output: Any, default: int) -> Payload:
    """The samples of this output. float32, shape (samples,); ``sample_rate`` in Hz."""
    import numpy as np

    choice = output.outputs[0]
    made = getattr(choice, "multimodal_output", None) or {}
    audio = made.get("audio")
    pieces = [] if audio is None else audio if isinstance(audio, list | tuple) else [audio]
    samples = [piece.detach().float().cpu().numpy().reshape(-1) for piece in pieces]
    rate = made.get("sr")
    rate = rate[-1] if isinstance(rate, list | tuple) else rate
    return TensorChunk(
        tensors={"audio": np.concatenate(samples)} if samples else {},
        meta={"sample_rate": default if rate is None else int(rate)},
        finish_reason=choice.finish_reason if output.finished else None,
        native=output,
    )
