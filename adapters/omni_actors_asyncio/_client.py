"""``AsyncOmni``: vLLM's EngineClient over a bridge. What was written for AsyncLLM runs on it unchanged.

Owns its bridge, and nothing per request: a request's state is its ticket's. ``generate`` asks the stage that takes the
prompt for its text; ``generate_omni`` asks for any modality (both: ``_requests``). They may be used from any number of
loops and threads.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

import trio
from vllm.engine.protocol import EngineClient

from ._asked_model import in_its_place, is_model
from ._bridge import Bridge
from ._control import Control
from ._errors import busy, dead
from ._hosts import GuestHost, LoopHost, ThreadHost
from ._loop import LoopTicket, Outbox, Outboxes
from ._metrics import Metrics
from ._requests import Requests
from ._tenure import Borrowed, Owned

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from concurrent.futures import Future
    from types import TracebackType

    from omni_actors import AbortReport, Health, OmniRuntime, ShutdownReport, Statistics

__all__ = ["AsyncOmni"]

logger = logging.getLogger("omni_actors.asyncio")


class AsyncOmni(Requests, Control, EngineClient):  # type: ignore[misc]  # vLLM has no types for mypy
    """A pipeline for asyncio: ``async with AsyncOmni("tiny-omni") as omni: …``, or ``await AsyncOmni.open(…)``.

    The arguments are ``open_omni``'s. It runs in a thread of its own, which trio runs; it is closed by ``close``, by
    leaving the block, or, if both were forgotten, at the end of the program, within 5 s. A forked child cannot use it.
    ``vllm_config``, ``model_config``, ``renderer``, ``input_processor`` are those of the stage that takes the prompt.

    ``guest=True`` runs trio inside the loop that enters the block, between its callbacks: for apps that allow no other
    thread to do work, or that share objects with the runtime without locks. It costs: the loop's own work and the
    runtime's delay each other, and everything stands still while the loop is stopped. The other thing that threads
    cost, up to 5 ms for Python's lock each time both are busy, is saved. Should that loop be closed, left behind at the
    end of the program, or blocked by ``shutdown`` before the runtime has ended, a spare thread carries it on.
    ``AsyncOmni.over(runtime)`` is for a runtime that a trio program has open; see there.

    Its vLLM engines log statistics, as AsyncLLM's do, unless ``disable_log_stats``: into prometheus_client's registry,
    with ``served_model_name`` (default: the pipeline's name) as the model's, and by ``do_log_stats``.
    """

    def __new__(cls, pipeline: Any = None, **how: Any) -> AsyncOmni:
        """Of a model of vLLM-Omni it is a ``ModelOmni``, which takes vLLM-Omni's arguments."""
        kind: type[AsyncOmni] = in_its_place("ModelOmni") if cls is AsyncOmni and is_model(pipeline, how) else cls
        made: AsyncOmni = super().__new__(kind)
        return made

    def __init__(
        self,
        pipeline: Any,
        *,
        guest: bool = False,
        disable_log_stats: bool = False,
        served_model_name: str | None = None,
        **how: Any,
    ) -> None:
        owned = Owned(pipeline, log_stats=not disable_log_stats, **how)
        self._begin(Bridge(owned, GuestHost() if guest else ThreadHost()), not disable_log_stats, served_model_name)

    def _begin(self, bridge: Bridge, log_stats: bool = True, model_name: str | None = None) -> None:
        self._bridge, self._log_stats, self._model_name = bridge, log_stats, model_name
        self._outboxes = Outboxes(self._bridge, self._loop_died)
        self._modality: str | None = None
        self._abort_s = 0.0

    # ------------------------------------------------------------------ its life

    @classmethod
    async def open(cls, pipeline: Any, **how: Any) -> AsyncOmni:
        """Start it; returns when every stage is ready. Raises what ``open_omni`` raises. Cancelled, it closes again."""
        return await cls(pipeline, **how).__aenter__()

    @classmethod
    def over(cls, runtime: OmniRuntime) -> AsyncOmni:
        """For asyncio libraries inside a trio program: the runtime that the program has open, seen from asyncio.

        Enter it in a trio-asyncio loop of the same trio run: ``async with trio_asyncio.open_loop(): async with
        trio_asyncio.aio_as_trio(AsyncOmni.over(runtime)) as omni: …``. No second runtime, no second thread. Closing it
        ends the requests that came this way, within ``drain_s`` and the pipeline's ``abort_s``; the runtime goes on.
        Entering it anywhere else raises UsageError.
        """
        omni = cls.__new__(cls, runtime.spec)
        omni._begin(Bridge(Borrowed(runtime), LoopHost()))
        return omni

    async def __aenter__(self) -> AsyncOmni:
        self._bridge.start()
        try:
            await _done(self._bridge.opened)
            self._bridge.opened.result()
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
        self._metrics = metrics = Metrics(self._bridge, log_stats=self._log_stats, model_name=self._model_name)
        metrics.show()
        self._bridge.closed.add_done_callback(lambda _: metrics.hide())
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

    def request_close(
        self, *, drain_s: float | None = None, abort_s: float | None = None, stop_s: float | None = None
    ) -> None:
        """Begin to close, or shorten what is left of it: ``health`` is not ready from here on. Never waits; from any
        thread. Seconds for each rung as in ``OmniRuntime.request_shutdown``.
        """
        self._bridge.request_close(drain_s=drain_s, abort_s=abort_s, stop_s=stop_s)

    async def close(
        self, *, drain_s: float | None = None, abort_s: float | None = None, stop_s: float | None = None
    ) -> ShutdownReport:
        """Drain, abort, stop; returns when nothing is left of it. Any number of times; may shorten an earlier one.

        Seconds for each rung as in ``OmniRuntime.shutdown``. Cancelling it ends the waiting only. Raises the runtime's
        fatal error, if it had one.
        """
        self._bridge.request_close(drain_s=drain_s, abort_s=abort_s, stop_s=stop_s)
        await _done(self._bridge.closed)
        return self._bridge.join()  # the host's last step: microseconds

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close(drain_s=None if kind is None else 0)

    def shutdown(self, timeout: float | None = None) -> None:
        """Close, from any thread, and wait for it; running requests get ``timeout`` seconds (default: 0) to finish."""
        self._bridge.request_close(drain_s=timeout or 0)
        self._bridge.join()

    # ------------------------------------------------------------------ its state

    @property
    def front_stage(self) -> str | None:
        """The vLLM stage that takes the prompt, whose text ``generate`` gives; None if there is none."""
        return self._front

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
        """Every stage's state, as of the last change; None when it is closed. Not ready as soon as it is being closed.

        From any thread.
        """
        return self._bridge.health

    async def statistics(self) -> Statistics:
        """What the runtime holds."""
        statistics: Statistics = await self._cross(_statistics)
        return statistics

    async def do_log_stats(self) -> None:
        """vLLM's line into the log for each engine that says what it does, and one of the above while any work is."""
        self._metrics.log()
        statistics = await self.statistics()
        logger.log(logging.INFO if statistics.requests else logging.DEBUG, "%s", statistics)

    async def is_tracing_enabled(self) -> bool:
        """Whether the front stage's configuration names an OpenTelemetry endpoint."""
        return self.vllm_config.observability_config.otlp_traces_endpoint is not None

    async def get_supported_tasks(self) -> tuple[str, ...]:
        """What its front stage's model can do, of vLLM's tasks."""
        if self._front is None:
            return ()
        answers = await self.call(self._front, "get_supported_tasks")
        return tuple(answers[0])

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

    # ------------------------------------------------------------------ the end of requests

    def _loop_died(self, outbox: Outbox) -> None:
        """In the trio thread, maybe in the middle of a step: after it, everything that this loop asked for ends."""

        def orphaned(ticket: Any) -> bool:
            return isinstance(ticket, LoopTicket) and ticket.outbox is outbox

        self._bridge.post(lambda: self._bridge.leave_all(orphaned, "its event loop is closed"))

    async def abort(self, request_id: str | Iterable[str], internal: bool = False) -> list[AbortReport]:
        """Abort every request with this id, or these; returns when all engines have confirmed (≤ ``abort_s``).

        Each report holds how its requests ended, with everything they had made. Unknown ids are reported, not refused.
        ``internal`` is accepted for vLLM's sake: ids are always the caller's own.
        """
        ids = [request_id] if isinstance(request_id, str) else list(request_id)
        reports: list[AbortReport] = await self._cross(_abort, ids)
        return reports


async def _done(future: Future[Any]) -> None:
    """Wait for it. Cancelling ends the waiting only."""
    waiting = asyncio.wrap_future(future)
    waiting.add_done_callback(lambda done: done.cancelled() or done.exception())  # seen, whoever is left to see it
    await asyncio.wait((waiting,))


# ---------------------------------------------------------------------- in the trio thread


async def _statistics(bridge: Bridge) -> Statistics:
    return bridge.omni.statistics()


async def _abort(bridge: Bridge, ids: Sequence[str]) -> list[AbortReport]:
    reports: dict[int, AbortReport] = {}

    async def one(number: int, request_id: str) -> None:
        reports[number] = await bridge.abort(request_id)

    async with trio.open_nursery() as nursery:
        for number, request_id in enumerate(ids):
            nursery.start_soon(one, number, request_id)
    return [reports[number] for number in range(len(ids))]
