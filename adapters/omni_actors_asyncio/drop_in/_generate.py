"""The requests of ``ModelOmni``: vLLM-Omni's ``generate``, and its reader."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncGenerator
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import msgspec
from vllm.sampling_params import RequestOutputKind, SamplingParams
from vllm_omni.entrypoints.client_request_state import ClientRequestState
from vllm_omni.entrypoints.omni_base import OmniBase

from omni_actors import InvalidRequest, OmniError
from omni_actors_asyncio._ticket import Ask

from ._errors import as_vllm_omni
from ._results import Results
from ._ticket import MeasuredTicket

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from vllm_omni.outputs import OmniRequestOutput

    from omni_actors_asyncio._bridge import Bridge
    from omni_actors_asyncio._loop import Outboxes

    from ._metrics import StageInfo

__all__ = ["Requests"]

_NUMBERS = itertools.count(1)


class Requests:
    """Mixed into ``ModelOmni``, which has the bridge and knows the model's stages.

    ``request_states``: vLLM-Omni's record of each request in flight, for its serving layer, which keeps in it what it
    measures of a sound's packets.
    """

    _bridge: Bridge
    _outboxes: Outboxes
    _abort_s: float
    _stages: Mapping[str, StageInfo]
    output_modalities: list[str]
    default_sampling_params_list: list[Any]
    request_states: dict[str, ClientRequestState]
    stage_configs: list[Any]

    async def generate(
        self,
        prompt: Any,
        sampling_params: Any = None,
        request_id: str = "",
        *,
        prompt_text: str | None = None,
        lora_request: Any = None,
        tokenization_kwargs: dict[str, Any] | None = None,
        sampling_params_list: Sequence[Any] | None = None,
        output_modalities: Sequence[str] | None = None,
        trace_headers: Mapping[str, str] | None = None,
        priority: int = 0,
        data_parallel_rank: int | None = None,
        session_id: str | None = None,
        reasoning_ended: bool | None = None,
        reasoning_parser_kwargs: dict[str, Any] | None = None,
        arrival_time: float | None = None,
    ) -> AsyncGenerator[OmniRequestOutput, None]:
        """vLLM-Omni's OmniRequestOutputs of every stage whose output is asked for, as they come.

        The arguments are vLLM-Omni's. ``sampling_params`` are the first stage's, ``sampling_params_list`` all stages'.
        Without either, outputs are what is new; else each stage's ``output_kind`` tells. Modalities that the model does
        not make are ignored. An abort ends it with ``finish_reason="abort"``; leaving it early is one.

        Raises vLLM-Omni's errors, ours being the cause: OmniClientError, EngineGenerateError with a status of its own
        (502, 503, 504), OmniEngineDeadError.
        """
        options = {
            "lora_request": lora_request,
            "tokenization_kwargs": tokenization_kwargs,
            "trace_headers": trace_headers,
            "data_parallel_rank": data_parallel_rank,
        }
        arrived = time.time() if arrival_time is None else float(arrival_time)
        unheard = {"reasoning_ended": reasoning_ended, "reasoning_parser_kwargs": reasoning_parser_kwargs}
        reader = self._asked(
            Ask(
                prompt=prompt,
                sampling=self._per_stage(sampling_params_list, sampling_params),
                request_id=request_id or None,
                modalities=self._modalities(output_modalities),
                priority=priority,
                options={name: value for name, value in options.items() if value is not None},
            ),
            unheard,
        )
        state = self._state(request_id, arrived)
        try:
            while not reader.done:
                await reader.news()
                # No await between looking and yielding: an abort that has returned is final.
                while (output := reader.take()) is not None:
                    yield output
        finally:
            self.request_states.pop(state.request_id, None)
            await reader.leave()

    def _asked(self, ask: Ask, unheard: Mapping[str, Any]) -> _Reader:
        ids = {name: stage.number for name, stage in self._stages.items()}
        try:
            self._bridge.check()
            for name in (name for name, value in unheard.items() if value is not None):
                raise InvalidRequest(f"{name} is not for models of several stages")
            if isinstance(ask.prompt, AsyncGenerator):
                raise InvalidRequest("a prompt in pieces is not taken by models of vLLM-Omni yet")
            outbox = self._outboxes.of(asyncio.get_running_loop())
            kinds = {name: _kind(params) for name, params in ask.sampling.items()}
            delta = {name: _delta(params) for name, params in ask.sampling.items()}
            ask = msgspec.structs.replace(ask, sampling=delta)
            limit = self._bridge.omni.spec.limits.stream_bytes
            ticket = MeasuredTicket(self._bridge, ask, outbox, limit=limit)
            outbox.ask(ticket)
        except OmniError as error:
            raise as_vllm_omni(error, ids) from error
        results = Results(ask.request_id or "", ticket, self._stages, kinds)
        return _Reader(ticket, results, ids, self._abort_s)

    def _state(self, request_id: str, arrived: float) -> ClientRequestState:
        """Under a name of its own: users' names may repeat."""
        state = ClientRequestState(f"{request_id}-{next(_NUMBERS)}", request_id)
        state.request_arrival_ts = arrived
        self.request_states[state.request_id] = state
        return state

    def _per_stage(self, given: Any, first: Any) -> dict[str, Any]:
        """Each stage's params by its name, in vLLM-Omni's own reading. Raises ValueError, as it does."""
        if given is None and first is not None:
            given = [first, *self.default_sampling_params_list[1:]]
        theirs = SimpleNamespace(
            num_stages=len(self._stages),
            default_sampling_params_list=self.default_sampling_params_list,
            sampling_constraints_list=OmniBase._get_sampling_constraints_list(self.stage_configs),
            _apply_sampling_constraints=OmniBase._apply_sampling_constraints,
        )
        made = OmniBase.resolve_sampling_params_list(theirs, given, allow_delta_coercion=True)
        return dict(zip(self._stages, made, strict=True))

    def _modalities(self, asked: Sequence[str] | None) -> tuple[str, ...]:
        """Of those asked for the ones that there are; if that is none of them, all."""
        made = [stage.kind for stage in self._stages.values() if stage.kind is not None]
        default = tuple(dict.fromkeys(name for name in made if name in self.output_modalities))
        return tuple(dict.fromkeys(name for name in asked or () if name in default)) or default


def _kind(params: Any) -> RequestOutputKind:
    """Of a diffusion stage, which has no such param, all comes as it is."""
    return getattr(params, "output_kind", RequestOutputKind.DELTA)


def _delta(params: Any) -> Any:
    """The same params; what is new is what the runtime streams, and what next stages that work in chunks wait for."""
    if not isinstance(params, SamplingParams) or params.output_kind is RequestOutputKind.DELTA:
        return params
    params = params.clone()
    params.output_kind = RequestOutputKind.DELTA
    return params


class _Reader:
    """One ``generate``'s end of its ticket. ``done``: nothing more will be read."""

    def __init__(self, ticket: MeasuredTicket, results: Results, ids: Mapping[str, int], abort_s: float) -> None:
        self.done = False
        self._ticket, self._results, self._ids, self._abort_s = ticket, results, ids, abort_s

    async def news(self) -> None:
        """Return when something is unread or it is over."""
        await self._ticket.news()

    def take(self) -> OmniRequestOutput | None:
        """The next output; None if there is none now. Raises what became of the request."""
        ticket = self._ticket
        terminal, refusal = ticket.terminal, ticket.refusal  # first: after it, nothing is added
        if self.done:
            return None
        if refusal is not None:
            self.done = True
            raise as_vllm_omni(refusal, self._ids) from refusal
        while not ticket.fenced and ticket.unread:
            output = self._results.take(ticket.take_one())
            if output is not None:
                return output
        if not ticket.fenced:
            self.done = terminal is not None
            return None
        self.done = True
        assert ticket.terminal is not None
        if ticket.terminal.error is not None:
            raise as_vllm_omni(ticket.terminal.error, self._ids) from ticket.terminal.error
        return self._results.abort(ticket.terminal.stage, ticket.take())

    async def leave(self) -> None:
        """Abort what has not ended; returns when the engines have confirmed."""
        await self._ticket.leave(self._abort_s)

    def __del__(self) -> None:
        self._ticket.post_abort()
