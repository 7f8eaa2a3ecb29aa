"""``AsyncOmni``: vLLM's EngineClient over a bridge. What was written for AsyncLLM runs on it unchanged.

Owns its bridge, and nothing per request: a request's state is its ticket's. ``generate`` asks the stage that takes the
prompt for its text; ``generate_omni`` asks for any modality. Both may be used from any number of loops and threads.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, TypeVar

import trio
from vllm.engine.protocol import EngineClient
from vllm.tasks import GENERATION_TASKS

from omni_actors import InvalidRequest, UsageError

from ._asked import ReasoningInputs, output_kind, plain_prompt, streamed, text_of, tokens_of
from ._bridge import Bridge
from ._control import Control
from ._errors import as_vllm, busy, dead
from ._loop import LoopTicket, Outbox, Outboxes
from ._outputs import Assembler
from ._stream import OmniStream
from ._ticket import Ask

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
    from concurrent.futures import Future
    from types import TracebackType

    from omni_actors import AbortReport, Health, ShutdownReport, Statistics

__all__ = ["AsyncOmni"]

logger = logging.getLogger("omni_actors.asyncio")
T = TypeVar("T")


class AsyncOmni(Control, EngineClient):  # type: ignore[misc]  # vLLM has no types for mypy
    """A pipeline for asyncio: ``async with AsyncOmni("tiny-omni") as omni: …``, or ``await AsyncOmni.open(…)``.

    The arguments are ``open_omni``'s. It runs in a thread of its own, which trio runs; it is closed by ``close``, by
    leaving the block, or, if both were forgotten, at the end of the program, within 5 s. A forked child cannot use it.
    ``vllm_config``, ``model_config``, ``renderer``, ``input_processor`` are those of the stage that takes the prompt.
    """

    def __init__(self, pipeline: Any, **how: Any) -> None:
        self._bridge = Bridge(pipeline, **how)
        self._outboxes = Outboxes(self._bridge.submit, self._loop_died)
        self._modality: str | None = None
        self._abort_s = 0.0

    # ------------------------------------------------------------------ its life

    @classmethod
    async def open(cls, pipeline: Any, **how: Any) -> AsyncOmni:
        """Start it; returns when every stage is ready. Raises what ``open_omni`` raises. Cancelled, it closes again."""
        return await cls(pipeline, **how).__aenter__()

    async def __aenter__(self) -> AsyncOmni:
        self._bridge.start()
        try:
            await _joined(self._bridge.opened)
        except asyncio.CancelledError:
            self._bridge.request_close(drain_s=0)
            raise
        except BaseException:
            await self.close()
            raise
        self._opened()
        return self

    def _opened(self) -> None:
        omni = self._bridge.omni
        self._abort_s = omni.spec.abort_s
        frontends = {stage.name: omni.frontend(stage.name) for stage in omni.spec.stages}
        self._vllm_stages = tuple(name for name, frontend in frontends.items() if hasattr(frontend, "codec"))
        fronts = [s for s in omni.spec.stages if s.name in self._vllm_stages and not s.inputs]
        if not fronts:
            return
        self._front, self._modality = fronts[0].name, fronts[0].output
        frontend: Any = frontends[fronts[0].name]
        if hasattr(frontend, "vllm_config"):
            self.vllm_config, self.model_config = frontend.vllm_config, frontend.vllm_config.model_config
            self.renderer, self.input_processor = frontend.renderer, frontend.input_processor
            frontend.input_processor = ReasoningInputs(frontend.input_processor)

    async def close(self, *, drain_s: float | None = None) -> ShutdownReport:
        """Drain, abort, stop; returns when nothing is left of it. Any number of times; may shorten an earlier one."""
        self._bridge.request_close(drain_s=drain_s)
        await _joined(self._bridge.closed)
        return self._closed()  # the thread's last step: microseconds

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close(drain_s=None if kind is None else 0)

    def shutdown(self, timeout: float | None = None) -> None:
        """Close, from any thread, and wait for it; running requests get ``timeout`` seconds (default: 0) to finish."""
        self._bridge.request_close(drain_s=timeout or 0)
        self._closed()

    def _closed(self) -> ShutdownReport:
        report = self._bridge.join()
        for stage in self._vllm_stages:
            renderer = getattr(self._bridge.omni.frontend(stage), "renderer", None)
            if renderer is not None:
                renderer.shutdown()  # its threads; idempotent
        return report

    # ------------------------------------------------------------------ its state

    @property
    def is_running(self) -> bool:
        """Whether it is open. A stage that is down, or restarting, does not end it."""
        return self._bridge.health is not None

    @property
    def is_stopped(self) -> bool:
        """The opposite."""
        return not self.is_running

    @property
    def errored(self) -> bool:
        """Whether no request can be served any more: it is closed, or the stage that takes the prompt is down."""
        return self._trouble() is not None

    @property
    def dead_error(self) -> BaseException:
        """Why."""
        error: BaseException = dead(self._trouble() or "it is alive")
        return error

    def _trouble(self) -> str | None:
        health = self._bridge.health
        if health is None:
            return "the runtime is closed"
        for stage in health.stages:
            if stage.state == "down" and stage.stage == self._front:
                return f"stage {stage.stage} is down: {stage.reason}"
        return None

    async def check_health(self) -> None:
        """Raises EngineDeadError when ``errored``."""
        if self.errored:
            raise self.dead_error

    def health(self) -> Health | None:
        """Every stage's state, as of its last change; None when it is closed. From any thread."""
        return self._bridge.health

    async def statistics(self) -> Statistics:
        """What the runtime holds."""
        statistics: Statistics = await self._cross(_statistics)
        return statistics

    async def do_log_stats(self) -> None:
        """One line of the above into the log."""
        logger.info("%s", await self.statistics())

    async def is_tracing_enabled(self) -> bool:
        """Whether the front stage's configuration names an OpenTelemetry endpoint."""
        return self.vllm_config.observability_config.otlp_traces_endpoint is not None

    async def get_supported_tasks(self) -> tuple[str, ...]:
        """What its front stage's model can do, of vLLM's generation tasks; pooling is not offered (see ``encode``)."""
        if self._front is None:
            return ()
        answers = await self.call(self._front, "get_supported_tasks")
        return tuple(task for task in answers[0] if task in GENERATION_TASKS)

    def get_num_unfinished_requests(self) -> int:
        """Requests without their end."""
        return self._bridge.omni.in_flight if self.is_running else 0

    def check_admission(self, n: int = 1, request_id: str | None = None) -> None:
        """Raises GracefulHTTPError (503) if ``n`` more would not be taken now."""
        admission = self._bridge.omni._handler.admission
        if admission.closed:
            raise busy("the runtime is shutting down and takes no new requests")
        if admission.slots + n > admission.max_slots:
            raise busy(f"the house is full: {admission.slots} of {admission.max_slots} slots are taken")

    # ------------------------------------------------------------------ requests

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
        others take the pipeline's own way into their stage. Unread outputs come as one. An abort ends it with what had
        been made and ``finish_reason="abort"``. Leaving it early (``break``, cancelling, ``aclose``, garbage) is the
        abort: it is under way at once, and confirmed within ``abort_s``, which a second cancellation does not wait for.

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
        reader = self._reader(prompt, sampling_params, request_id, prompt_text, priority, options)
        try:
            while not reader.done:
                output = await reader.read()
                if output is not None:
                    yield output
        finally:
            await reader.leave()

    def _reader(
        self, prompt: Any, sampling: Any, request_id: str, text: str | None, priority: int, options: dict[str, Any]
    ) -> _Reader:
        try:
            self._bridge.check()
            front = self._text_stage()
            prompt = plain_prompt(prompt, options)
            kind, params = output_kind(sampling), streamed(sampling)
            choices = self._bridge.omni.frontend(front).samples(params)
            ask = Ask(
                prompt=prompt,
                sampling={front: params},
                request_id=request_id,
                modalities=(self._modality or "",),
                priority=priority,
                options=options,
            )
            ticket = self._submit(ask, quiet=kind.name == "FINAL_ONLY")
        except UsageError as error:
            raise as_vllm(error) from error
        made = Assembler(request_id, front, kind, choices, text=text_of(prompt, text), tokens=tokens_of(prompt))
        return _Reader(ticket, made, self._abort_s)

    def _text_stage(self) -> str:
        if self._front is None or self._modality is None:
            words = "generate() needs a vLLM stage that takes the prompt and whose output may be asked for"
            raise InvalidRequest(f"{words}; this pipeline has none: use generate_omni()")
        return self._front

    def _submit(self, ask: Ask, *, quiet: bool = False) -> LoopTicket:
        self._bridge.check()
        outbox = self._outboxes.of(asyncio.get_running_loop())
        ticket = LoopTicket(self._bridge, ask, outbox, limit=self._bridge.omni.spec.limits.stream_bytes, quiet=quiet)
        outbox.ask(ticket)
        return ticket

    def _loop_died(self, outbox: Outbox) -> None:
        """In the trio thread, maybe in the middle of a step: after it, everything that this loop asked for ends."""

        def orphaned(ticket: Any) -> bool:
            return isinstance(ticket, LoopTicket) and ticket.outbox is outbox

        self._bridge.post(lambda: self._bridge.leave_all(orphaned, "its event loop is closed"))

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
        return OmniStream(self._submit(ask), self._abort_s)

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
        """Raises NotImplementedError when it is iterated: a stage's front-end takes sampling params only, so far."""
        raise NotImplementedError("pooling (encode) is not supported by this pipeline's stages; they generate")
        yield

    async def abort(self, request_id: str | Iterable[str], internal: bool = False) -> list[AbortReport]:
        """Abort every request with this id, or these; returns when all engines have confirmed (≤ ``abort_s``).

        Each report holds how its requests ended, with everything they had made. Unknown ids are reported, not refused.
        ``internal`` is accepted for vLLM's sake: ids are always the caller's own.
        """
        ids = [request_id] if isinstance(request_id, str) else list(request_id)
        reports: list[AbortReport] = await self._cross(_abort, ids)
        return reports


class _Reader:
    """One ``generate``'s end of its ticket. Garbage collection aborts: the generator's ``finally`` may never run."""

    def __init__(self, ticket: LoopTicket, made: Assembler, abort_s: float) -> None:
        self.done = False
        self._ticket, self._made, self._abort_s = ticket, made, abort_s

    async def read(self) -> Any:
        """All that is unread as one RequestOutput; None if that is none. Raises as vLLM would if the request failed."""
        ticket = self._ticket
        await ticket.news()
        # No await from here on. The end is looked at before what is unread: after it, nothing is added.
        terminal, refusal = ticket.terminal, ticket.refusal
        if refusal is not None:
            raise as_vllm(refusal)
        if not ticket.fenced:
            output = self._made.take(ticket.take())
            self.done = self._made.finished or terminal is not None
            return output
        self.done = True
        assert ticket.terminal is not None
        if ticket.terminal.error is not None:
            raise as_vllm(ticket.terminal.error)
        return self._made.abort(ticket.take())

    async def leave(self) -> None:
        """Abort it, unless it has come to its end; see ``LoopTicket.leave``."""
        if self._made.finished:
            self._ticket.post_abort()  # a formality: its terminal is on its way, if it is not here
        else:
            await self._ticket.leave(self._abort_s)

    def __del__(self) -> None:
        self._ticket.post_abort()


async def _joined(future: Future[T]) -> T:
    """Its result. Cancelling ends the waiting only."""
    waiting = asyncio.wrap_future(future)
    waiting.add_done_callback(lambda done: done.cancelled() or done.exception())  # seen, whoever is left to see it
    return await asyncio.shield(waiting)


# ---------------------------------------------------------------------- in the trio thread


async def _statistics(bridge: Bridge) -> Statistics:
    return bridge.omni.statistics()


async def _abort(bridge: Bridge, ids: Sequence[str]) -> list[AbortReport]:
    reports: dict[int, AbortReport] = {}

    async def one(number: int, request_id: str) -> None:
        reports[number] = await bridge.omni.abort(request_id)

    async with trio.open_nursery() as nursery:
        for number, request_id in enumerate(ids):
            nursery.start_soon(one, number, request_id)
    return [reports[number] for number in range(len(ids))]
