"""Our outputs as vLLM-Omni's OmniRequestOutputs: what ``generate`` yields.

The runtime streams what is new (DELTA). A stage whose params say otherwise is added up here: CUMULATIVE at each of its
outputs, FINAL_ONLY at its last. Sound adds up, and so does what else vLLM-Omni drains from one output to the next; of
everything else in ``multimodal_output`` each output says all.
"""

from __future__ import annotations

import copy
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import torch
from vllm.outputs import CompletionOutput, RequestOutput
from vllm.sampling_params import RequestOutputKind
from vllm_omni.outputs import OmniRequestOutput
from vllm_omni.outputs.mm_outputs import MultimodalCompletionOutput, MultimodalPayload
from vllm_omni.outputs.output_modality import DRAINABLE_MODALITIES

from omni_actors import TextChunk

from ._metrics import Ended, durations, metrics
from ._painted import Painted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from omni_actors import Output

    from ._metrics import StageInfo
    from ._ticket import MeasuredTicket

__all__ = ["Results"]

_DRAINED = tuple(str(name) for name in DRAINABLE_MODALITIES)


class _Sum:
    """What one stage has made so far."""

    def __init__(self) -> None:
        self.last: Any = None
        self._texts: list[str] = []
        self._tokens: list[int] = []
        self._logprobs: list[Any] = []
        self._drained: dict[str, list[Any]] = {}

    def add(self, native: Any) -> None:
        """One RequestOutput more."""
        self.last, choice = native, native.outputs[0]
        self._texts.append(choice.text)
        self._tokens += choice.token_ids
        self._logprobs += choice.logprobs or ()
        made = getattr(choice, "multimodal_output", None) or {}
        for name in _DRAINED:
            if (value := made.get(name)) is not None:
                self._drained.setdefault(name, []).extend(value if isinstance(value, list | tuple) else [value])

    def made(self) -> Any:
        """All of it, as one RequestOutput like the last."""
        whole, choice = copy.copy(self.last), copy.copy(self.last.outputs[0])
        choice.text, choice.token_ids = "".join(self._texts), list(self._tokens)
        choice.logprobs = list(self._logprobs) or None
        whole.outputs = [self._with_drained(choice)]
        return whole

    def _with_drained(self, choice: Any) -> Any:
        if not self._drained:
            return choice
        payload = getattr(choice, "multimodal_output", None) or MultimodalPayload()
        tensors = {name: _joined(pieces) for name, pieces in self._drained.items()}
        payload = MultimodalPayload(tensors={**payload.tensors, **tensors}, metadata=dict(payload.metadata))
        made = MultimodalCompletionOutput(
            multimodal_output=payload, **{field.name: getattr(choice, field.name) for field in fields(CompletionOutput)}
        )
        made.cumulative_token_ids = getattr(choice, "cumulative_token_ids", choice.token_ids)
        return made


def _joined(pieces: Sequence[Any]) -> Any:
    """Sounds in channels follow each other in the last dimension; pieces that differ in the others are laid flat."""
    if len({piece.shape[:-1] for piece in pieces}) == 1:
        return torch.cat(list(pieces), dim=-1)
    return torch.cat([piece.reshape(-1) for piece in pieces])


class Results:
    """One request's OmniRequestOutputs. Lives in the reader's thread. ``kinds``: of the stages that are read.

    ``request_id``: the user's; empty, it becomes the runtime's.
    """

    def __init__(
        self,
        request_id: str,
        ticket: MeasuredTicket,
        stages: Mapping[str, StageInfo],
        kinds: Mapping[str, RequestOutputKind],
    ) -> None:
        self._id, self._ticket, self._stages, self._kinds = request_id, ticket, stages, kinds
        self._sums: dict[str, _Sum] = {}
        self._latest: dict[str, Any] = {}
        self._paintings: dict[str, Painted] = {}
        self._ended: dict[str, Ended] = {}
        self._made: dict[str, Ended] = {}

    def take(self, output: Output) -> OmniRequestOutput | None:
        """The one to be yielded for this output; None if its stage is to speak at its end only."""
        stage = output.stage
        if Painted.is_of(output):
            return self._painted(output)
        if (native := self._native(output)) is None:
            return None
        self._count(output, native)
        kind, finished = self._kinds[stage], output.payload.finish_reason is not None
        if kind is not RequestOutputKind.DELTA:
            self._sums.setdefault(stage, _Sum()).add(native)
            if kind is RequestOutputKind.FINAL_ONLY and not finished:
                return None
            native = self._sums[stage].made()
        self._id = self._id or output.request_id
        return self._output(stage, native, finished)

    def _native(self, output: Output) -> Any:
        """vLLM's RequestOutput of a stage's output; None if it has none. Text in the middle comes without one: it is
        like the one before, but for what is new in it.
        """
        stage, chunk = output.stage, output.payload
        native = getattr(chunk, "native", None)
        if isinstance(native, RequestOutput) and native.outputs:
            self._latest[stage] = native
            return native
        if native is not None or not isinstance(chunk, TextChunk) or stage not in self._latest:
            return None
        made = copy.copy(self._latest[stage])
        choice = CompletionOutput(output.index, chunk.text, chunk.token_ids, None, chunk.logprobs)
        choice.cumulative_token_ids = [*made.outputs[0].cumulative_token_ids, *chunk.token_ids]
        made.outputs = [choice]
        self._latest[stage] = made
        return made

    def _painted(self, output: Output) -> OmniRequestOutput | None:
        stage, finished = output.stage, output.payload.finish_reason is not None
        if finished:
            self._ended[stage] = Ended(reason=output.payload.finish_reason)
        native = self._paintings.setdefault(stage, Painted()).take(output)
        if native is None:
            return None
        self._id = self._id or output.request_id
        made = self._output(stage, native, finished)
        made.metrics = {**native.metrics, **made.metrics}
        made.stage_durations = {**native.stage_durations, **made.stage_durations}
        made.peak_memory_mb = native.peak_memory_mb
        return made

    def _count(self, output: Output, native: Any) -> None:
        stage, before = output.stage, self._made.get(output.stage, Ended())
        sound = output.audio
        self._made[stage] = Ended(
            reason=output.payload.finish_reason,
            tokens=before.tokens + len(native.outputs[0].token_ids),
            frames=before.frames + (0 if sound is None else len(sound)),
            rate=output.sample_rate or before.rate,
        )
        if output.payload.finish_reason is not None:
            self._ended[stage] = self._made[stage]

    def _output(self, stage: str, native: Any, finished: bool) -> OmniRequestOutput:
        info = self._stages[stage]
        made: OmniRequestOutput = OmniRequestOutput.from_stage_output(
            native,
            stage_id=info.number,
            replica_id=self._ticket.replicas.get(stage),
            final_output_type=info.kind,
            metrics=metrics(self._stages, self._ticket, self._ended, stage),
            stage_durations=durations(self._stages, self._ticket),
        )
        made.request_id, made.finished = self._id, finished
        return made

    def abort(self, stage: str, unread: Sequence[Output]) -> OmniRequestOutput:
        """The end of an aborted request: of the first stage with text that had not ended, with what was not read of
        it; else of ``stage``, with nothing.
        """
        for name in self._kinds:
            if self._stages[name].kind == "text" and name not in self._ended:
                stage = name
                break
        rest = _Sum() if self._kinds.get(stage) is RequestOutputKind.DELTA else self._sums.setdefault(stage, _Sum())
        for output in unread:
            if output.stage == stage and (native := self._native(output)) is not None:
                rest.add(native)
        native = rest.made() if rest.last is not None else _nothing(self._id)
        made = self._output(stage, native, True)
        made.outputs[0].finish_reason = made.outputs[0].finish_reason or "abort"
        return made


def _nothing(request_id: str) -> RequestOutput:
    return RequestOutput(request_id, None, None, None, [CompletionOutput(0, "", [], None, None)], True)
