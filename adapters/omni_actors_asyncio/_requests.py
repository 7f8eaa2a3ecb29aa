"""The requests of ``AsyncOmni``: ``generate`` and ``encode`` as vLLM's EngineClient has them, and ``generate_omni``.

Owns nothing: a request's state is its ticket's, its loop's outbox brings the ticket across. All of it runs in the loop
that asks.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from omni_actors import InvalidRequest, UsageError

from ._asked import output_kind, plain_prompt, said_params, streamed, text_of, tokens_of
from ._errors import as_vllm
from ._loop import LoopTicket
from ._outputs import Assembler
from ._reading import PooledReader, Reader
from ._session import SessionReader, SessionTicket, check_session
from ._stream import OmniStream
from ._ticket import Ask

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ._bridge import Bridge
    from ._loop import Outboxes

__all__ = ["Requests"]

Asked = TypeVar("Asked", bound=LoopTicket)


class Requests:
    """Mixed into ``AsyncOmni``, which has the bridge, and knows the stage that takes the prompt (``_front``)."""

    _bridge: Bridge
    _outboxes: Outboxes
    _front: str | None = None
    _modality: str | None = None
    _abort_s = 0.0

    async def generate(
        self,
        prompt: Any,
        sampling_params: Any,
        request_id: str,
        *,
        prompt_text: str | None = None,
        lora_request: Any = None,
        tokenization_kwargs: dict[str, Any] | None = None,
        trace_headers: Mapping[str, str] | None = None,
        priority: int = 0,
        data_parallel_rank: int | None = None,
        session_id: str | None = None,
        kv_hints: Any = None,
        reasoning_ended: bool | None = None,
        reasoning_parser_kwargs: dict[str, Any] | None = None,
    ) -> AsyncGenerator[Any, None]:
        """The text of the stage that takes the prompt, as vLLM's RequestOutputs.

        ``prompt``: text, token ids, vLLM's prompt dicts, chat messages, or rendered input, which goes as it is; the
        others take the pipeline's own way into their stage. A generator of StreamingInput is input in pieces: each is
        answered, in one session; it is closed when the request ends, and what it raises is raised here.

        Unread outputs come as one. An abort ends it with what had been made and ``finish_reason="abort"``. Leaving it
        early (``break``, cancelling, ``aclose``, garbage) is the abort: it is under way at once, and confirmed within
        ``abort_s``, which a second cancellation does not wait for.

        Raises vLLM's errors, ours being the cause: VLLMValidationError, GracefulHTTPError (503), EngineGenerateError,
        EngineDeadError.
        """
        given = {
            "lora_request": lora_request,
            "tokenization_kwargs": tokenization_kwargs,
            "trace_headers": trace_headers,
            "data_parallel_rank": data_parallel_rank,
            "session_id": session_id,
            "kv_hints": kv_hints,
            "reasoning_ended": reasoning_ended,
            "reasoning_parser_kwargs": reasoning_parser_kwargs,
        }
        options = {name: value for name, value in given.items() if value is not None}
        ask = Ask(prompt=prompt, sampling=sampling_params, request_id=request_id, priority=priority, options=options)
        reader: Reader | SessionReader
        if isinstance(prompt, AsyncGenerator):
            reader = self._session(ask, prompt_text)
        else:
            reader, _ = self._reader(ask, prompt_text, LoopTicket)
        try:
            while not reader.done:
                await reader.news()
                # No await from here on: an abort that has returned is final.
                output = reader.take()
                if output is not None:
                    yield output
        finally:
            await reader.leave()

    def _reader(self, ask: Ask, text: str | None, kind: type[Asked]) -> tuple[Reader, Asked]:
        try:
            self._bridge.check()
            front, options = self._front_stage(), dict(ask.options)
            prompt, sampling = plain_prompt(ask.prompt, options), said_params(ask.prompt, ask.sampling)
            output, params = output_kind(sampling), streamed(sampling)
            choices = self._bridge.omni.frontend(front).samples(params)
            ask = msgspec.structs.replace(ask, prompt=prompt, options=options, **self._of_front(params))
            ticket = self._submit(ask, kind, quiet=output.name == "FINAL_ONLY")
        except UsageError as error:
            raise as_vllm(error) from error
        tokens = tokens_of(prompt)
        made = Assembler(ask.request_id or "", front, output, choices, text=text_of(prompt, text), tokens=tokens)
        return Reader(ticket, made, self._abort_s), ticket

    def _session(self, ask: Ask, text: str | None) -> SessionReader:
        check_session(ask.sampling, ask.options)
        kind, options = output_kind(ask.sampling), {**ask.options, "resumable": True}

        def begin(prompt: Any, params: Any) -> tuple[Reader, SessionTicket]:
            params.output_kind = kind
            first = msgspec.structs.replace(ask, prompt=prompt, sampling=params, options=options)
            return self._reader(first, text, SessionTicket)

        return SessionReader(self._bridge, ask.prompt, ask.sampling, begin)

    def _of_front(self, params: Any) -> dict[str, Any]:
        """What is asked of whom: the one stage's output."""
        return {"sampling": {self._front: params}, "modalities": (self._modality or "",)}

    def _front_stage(self) -> str:
        if self._front is None or self._modality is None:
            words = "this needs a vLLM stage that takes the prompt and whose output may be asked for"
            raise InvalidRequest(f"{words}; this pipeline has none: use generate_omni()")
        return self._front

    def _submit(self, ask: Ask, kind: type[Asked], *, quiet: bool = False) -> Asked:
        self._bridge.check()
        outbox = self._outboxes.of(asyncio.get_running_loop())
        ticket = kind(self._bridge, ask, outbox, limit=self._bridge.omni.spec.limits.stream_bytes, quiet=quiet)
        outbox.ask(ticket)
        return ticket

    def generate_omni(
        self,
        prompt: Any,
        sampling_params: Any = None,
        *,
        request_id: str | None = None,
        modalities: Sequence[str] | None = None,
        timeout_s: float | None = None,
        priority: int = 0,
        **options: Any,
    ) -> OmniStream:
        """Every asked modality's outputs, as the runtime's own ``generate`` gives them; see there. In a running loop.

        ``async for output in omni.generate_omni("Two plus three?", modalities=["text", "audio"]): …``
        """
        ask = Ask(
            prompt=prompt,
            sampling=sampling_params,
            request_id=request_id,
            modalities=modalities,
            timeout_s=timeout_s,
            priority=priority,
            options=options,
        )
        return OmniStream(self._submit(ask, LoopTicket), self._abort_s)

    async def encode(
        self,
        prompt: Any,
        pooling_params: Any,
        request_id: str,
        lora_request: Any = None,
        trace_headers: Mapping[str, str] | None = None,
        priority: int = 0,
        tokenization_kwargs: dict[str, Any] | None = None,
        reasoning_ended: bool | None = None,
    ) -> AsyncGenerator[Any, None]:
        """What the model of the stage that takes the prompt says of it: one PoolingRequestOutput.

        That stage is one that pools (engine argument ``runner: pooling``). Prompts, leaving and errors as for
        ``generate``; an aborted one has no values.
        """
        given = {
            "lora_request": lora_request,
            "trace_headers": trace_headers,
            "tokenization_kwargs": tokenization_kwargs,
            "reasoning_ended": reasoning_ended,
        }
        options = {name: value for name, value in given.items() if value is not None}
        reader = self._pooled_reader(
            Ask(prompt=prompt, sampling=pooling_params, request_id=request_id, priority=priority, options=options)
        )
        try:
            yield await reader.read()
        finally:
            await reader.leave()

    def _pooled_reader(self, ask: Ask) -> PooledReader:
        try:
            self._bridge.check()
            frontend = self._bridge.omni.frontend(self._front_stage())
            if not getattr(frontend, "pooling", False):
                raise InvalidRequest("This model does not support pooling")
            frontend.samples(ask.sampling)
            ticket = self._submit(msgspec.structs.replace(ask, **self._of_front(ask.sampling)), LoopTicket, quiet=True)
        except UsageError as error:
            raise as_vllm(error) from error
        return PooledReader(ticket, ask.request_id or "", tokens_of(ask.prompt), self._abort_s)
