"""The runtime as its users hold it: generate, abort, health, shutdown."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs
import outcome
import trio

from omni_actors._errors import InvalidRequest, RuntimeClosed
from omni_actors.lifecycle import Kind, Record, RequestView, Timing
from omni_actors.stages import StageEvent, StageState, StageSupervisor, bounded_shield

if TYPE_CHECKING:
    from types import TracebackType

    from omni_actors.config import PipelineSpec
    from omni_actors.stages import Frontend

    from ._abort import AbortReport
    from ._handler import RequestHandler, Sink
    from ._router import Inbox
    from ._shutdown import Ladder, ShutdownReport
    from ._stream import Stream
    from ._work import Piece

__all__ = ["Generation", "Health", "OmniRuntime", "StageLoad", "Statistics"]


@attrs.frozen
class Health:
    """Whether new requests are taken and every stage can serve; ``reason`` says why not."""

    ready: bool
    reason: str | None
    stages: tuple[StageState, ...]


@attrs.frozen(kw_only=True)
class Statistics:
    """Counts. ``requests``: not yet released by every engine; ``unsettled``: without their end; ``leases``: pieces of
    work that engines hold; ``slots`` and ``prompt_bytes``: credits taken; ``jobs``: inputs being prepared or waiting
    for a replica; ``timers``; ``batches`` that wait for the router. Since the start: ``refused`` submits, messages of
    engines that came too ``late`` to matter, and how many requests ``ended`` in which way.
    """

    requests: int
    unsettled: int
    leases: int
    slots: int
    prompt_bytes: int
    jobs: int
    timers: int
    batches: int
    refused: int
    late: int
    ended: Mapping[Kind, int]


@attrs.frozen(kw_only=True)
class StageLoad:
    """A stage's work, now: ``running`` pieces are with its engines, ``waiting`` ones have no replica yet.

    ``restarts``: how often its replicas were started again.
    """

    running: int
    waiting: int
    restarts: int


class OmniRuntime:
    """A running pipeline. Made by ``open_omni``; its methods are for tasks of the same trio run."""

    def __init__(
        self,
        spec: PipelineSpec,
        handler: RequestHandler,
        stages: Mapping[str, StageSupervisor],
        ladder: Ladder,
        inbox: Inbox,
    ) -> None:
        self.spec = spec
        self._inbox = inbox
        self._handler, self._stages, self._ladder = handler, stages, ladder
        self._names = itertools.count(1)
        self._token = trio.lowlevel.current_trio_token()
        self._changed = trio.Event()
        self._news = trio.Event()
        ladder.observer = self._look_again

    # ------------------------------------------------------------------ requests

    def generate(
        self,
        prompt: Any,
        sampling: Any = None,
        *,
        request_id: str | None = None,
        modalities: Sequence[str] | None = None,
        timeout_s: float | None = None,
        priority: int = 0,
        **options: Any,
    ) -> Generation:
        """One request: ``async with omni.generate("Two plus three?") as stream: async for output in stream: …``.

        ``prompt`` is vLLM's PromptType (text, token ids, chat messages, a mapping with multi-modal data), or what the
        first stage's engine takes. ``sampling`` is for the stages that get the prompt, or a mapping from stage names to
        each stage's own: vLLM's SamplingParams, a mapping of its fields, or None. ``modalities``: what is wanted of
        what the pipeline makes (default: all). ``timeout_s`` seconds from entering the block until the last output.
        ``options`` go to the engines that get the prompt (``lora_request``, ``data_parallel_rank``, …), and
        ``trace_headers`` to all.

        Entering the block raises Overloaded or ShuttingDown (nothing was taken), InvalidRequest (nothing was sent).
        Iterating raises RequestFailed and its kinds. Leaving the block early, or with an exception, or cancelled, *is*
        the abort: it returns when every engine has confirmed, at the latest after ``abort_s``.
        """
        name = request_id if request_id is not None else f"request-{next(self._names)}"
        if not isinstance(name, str):
            raise InvalidRequest(f"request_id must be a string, not {type(name).__name__}")
        if timeout_s is not None and not timeout_s > 0:
            raise InvalidRequest(f"timeout_s must be positive, not {timeout_s!r}", request_id=name)
        wanted = self._handler.graph.plan(modalities).finals
        asked = tuple(s.output for s in self.spec.stages if s.name in wanted and s.output)
        view = RequestView(name, prompt, asked, self._per_stage(sampling))
        return Generation(self, view, timeout_s or math.inf, priority, options)

    def _per_stage(self, sampling: Any) -> Mapping[str, Any]:
        if sampling is None:
            return {}
        if isinstance(sampling, Mapping) and sampling and all(key in self._stages for key in sampling):
            return sampling
        return {stage.name: sampling for stage in self.spec.stages if not stage.inputs}

    async def abort(self, request_id: str) -> AbortReport:
        """Abort every request with this id. Returns when all engines confirmed, at the latest after ``abort_s``.

        Unknown and ended ids are a no-op that says so. Cancelling it ends the waiting, not the abort.
        """
        return await self._handler.abort(request_id, self.spec.abort_s)

    async def call(self, stage: str, method: str, *args: Any, timeout_s: float = 30.0) -> list[Any]:
        """Call a method of the stage's engines (vLLM: ``reset_prefix_cache``, …), on every ready replica at once.

        Answers in replica order. Raises EngineRejected, or trio.TooSlowError after ``timeout_s``.
        """
        clients = [replica.client for replica in self._stages[stage].replicas if replica.ready]
        answers: list[outcome.Outcome[Any]] = [outcome.Value(None)] * len(clients)

        async def ask(number: int) -> None:
            call = clients[number].call
            answers[number] = await outcome.acapture(lambda: call(method, *args, timeout_s=timeout_s))

        async with trio.open_nursery() as nursery:
            for number in range(len(clients)):
                nursery.start_soon(ask, number)
        return [answer.unwrap() for answer in answers]

    def keep_calling(self, stage: str, name: str, method: str | None, *args: Any) -> None:
        """Have each engine of the stage that starts from now on called so, before it gets work: a state to be kept.

        One call per ``name``; ``method`` None ends it. Nobody waits for the answers. Running engines are not called.
        """
        standing = self._stages[stage].standing
        if method is None:
            standing.pop(name, None)
        else:
            standing[name] = (method, args)

    def frontend(self, stage: str) -> Frontend:
        """The stage's input processing, for adapters: a vLLM stage's has vLLM's config, renderer and InputProcessor."""
        return self._stages[stage].frontend

    # ------------------------------------------------------------------ the runtime

    @property
    def in_flight(self) -> int:
        """Requests that have no terminal yet."""
        return self._handler.table.unsettled

    def health(self) -> Health:
        """The state of every stage, now. Synchronous and cheap."""
        stages = tuple(stage.state() for stage in self._stages.values())
        reasons = [f"stage {s.stage} is {s.state}: {s.reason}" for s in stages if s.state != "ready"]
        if self._ladder.state != "running":
            reasons.insert(0, f"the runtime is {self._ladder.state}")
        return Health(not reasons, "; ".join(reasons) or None, stages)

    async def wait_health(self, until: Callable[[Health], bool]) -> Health:
        """Wait until ``until(health)`` holds; looks again when a stage or the shutdown ladder changes.

        No deadline: the caller has one.
        """
        while not until(health := self.health()):
            await self._changed.wait()
        return health

    def stage_changed(self, _: StageEvent) -> None:
        """An observer of every stage: something happened."""
        self._look_again()

    def _look_again(self) -> None:
        self._changed.set()
        self._changed = trio.Event()
        self._news.set()

    async def wait_news(self) -> None:
        """Wait until a stage changes, a request comes, or the shutdown begins. No deadline: the caller has one.

        For who watches: look, and if all is as before, wait. With no checkpoint between the two nothing is missed.
        """
        if self._news.is_set():
            self._news = trio.Event()
        await self._news.wait()

    def pids(self) -> Mapping[str, int]:
        """The leading process of each running replica, as ``stage/replica``."""
        found = {f"{name}/{r.number}": r.pid for name, stage in self._stages.items() for r in stage.replicas}
        return {name: pid for name, pid in found.items() if pid is not None}

    def generations(self) -> Sequence[tuple[str, int, int]]:
        """Stage, replica, and the number of its generation: how often it was started."""
        return [(name, r.number, r.generation) for name, stage in self._stages.items() for r in stage.replicas]

    def request_shutdown(
        self, *, drain_s: float | None = None, abort_s: float | None = None, stop_s: float | None = None
    ) -> None:
        """Begin to shut down, or shorten what is left of a shutdown. Synchronous: for signal handlers."""
        self._ladder.request(drain_s=drain_s, abort_s=abort_s, stop_s=stop_s)

    async def shutdown(
        self, *, drain_s: float | None = None, abort_s: float | None = None, stop_s: float | None = None
    ) -> ShutdownReport:
        """Drain, abort, stop, and return the report; the engines are gone then. Any number of times, at any moment.

        Seconds default to the pipeline's. Later calls join the first and may only shorten it. Leaving ``open_omni``'s
        block does it for you. Cancelling it ends the waiting only.
        """
        self.request_shutdown(drain_s=drain_s, abort_s=abort_s, stop_s=stop_s)
        return await self._ladder.join()

    @property
    def shutdown_report(self) -> ShutdownReport:
        """How the shutdown went; empty before."""
        return self._ladder.report

    def statistics(self) -> Statistics:
        """What the runtime holds, now. Synchronous and cheap; all but the totals goes back to 0."""
        handler, table = self._handler, self._handler.table
        return Statistics(
            requests=len(table.records),
            unsettled=table.unsettled,
            leases=len(table.leases),
            slots=handler.admission.slots,
            prompt_bytes=handler.admission.bytes,
            jobs=handler.jobs.waiting.total(),
            timers=handler.deadlines.live,
            batches=self._inbox.waiting,
            refused=handler.admission.refused,
            late=table.late,
            ended={kind: table.ended[kind] for kind in Kind},
        )

    def loads(self) -> Mapping[str, StageLoad]:
        """What each stage holds, now. Synchronous and cheap."""
        waiting, running = self._handler.jobs.waiting, Counter[str]()
        for (name, _), count in list(self._handler.table.load.items()):  # a copy: other threads ask as well
            running[name] += count
        return {
            name: StageLoad(
                running=running[name],
                waiting=waiting[name],
                restarts=sum(max(0, replica.generation - 1) for replica in stage.replicas),
            )
            for name, stage in self._stages.items()
        }

    def check(self) -> None:
        """The integrity check of the request table; AssertionError is a bug of ours."""
        self._handler.table.check()

    @property
    def here(self) -> bool:
        """Whether the caller is in its trio run, where alone its methods may be used."""
        return trio.lowlevel.current_trio_token() is self._token

    @property
    def closed(self) -> bool:
        """Whether its engines are gone."""
        return self._ladder.state == "closed"


class Generation:
    """The block of one request. Entering submits and gives its Stream; leaving it unfinished aborts."""

    def __init__(
        self, omni: OmniRuntime, view: RequestView, timeout_s: float, priority: int, options: Mapping[str, Any]
    ) -> None:
        self._omni, self._handler = omni, omni._handler
        self._view, self._timeout_s, self._priority, self._options = view, timeout_s, priority, options
        self._record: Record | None = None

    async def __aenter__(self) -> Stream:
        stream: Stream = (await self.submit()).sink
        return stream

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self.leave():
            await self.left()

    # ------------------------------------------------------------------ without the block, for adapters

    async def submit(self, sink: Sink | None = None) -> Record:
        """What entering the block does, with outputs to ``sink``. Who calls it owes a ``leave``."""
        self._record = await self._handler.submit(self._view, **self._how(sink))
        self._omni._news.set()
        return self._record

    def submit_now(self, sink: Sink) -> bool:
        """``submit`` in one synchronous step. False, and nothing is done, if its input may take long to prepare."""
        self._record = self._handler.submit_now(self._view, **self._how(sink))
        if self._record is None:
            return False
        self._omni._news.set()
        return True

    def _how(self, sink: Sink | None) -> dict[str, Any]:
        if self._omni.closed:
            raise RuntimeClosed("this runtime is closed", request_id=self._view.request_id)
        deadline = trio.current_time() + self._timeout_s
        return {"deadline": deadline, "priority": self._priority, "options": self._options, "sink": sink}

    async def extend(self, piece: Piece) -> bool:
        """The next piece of an input that comes in pieces (option ``resumable=True``); see ``Pieces.give``."""
        assert self._record is not None
        return await self._handler.pieces.give(self._record, piece)

    def leave(self, reason: str = "the client left") -> bool:
        """The client leaves: abort what has not ended. Synchronous; False if it had finished, with nothing to await."""
        record = self._record
        assert record is not None
        self._handler.settle(record, Kind.ABORTED, reason=reason)
        return record.terminal is not None and record.terminal.kind is not Kind.FINISHED

    @property
    def submitted_at(self) -> float:
        """When it was admitted, by the runtime's clock."""
        assert self._record is not None
        return self._record.submitted_at

    @property
    def prompt_tokens(self) -> int:
        """Of the stages that the prompt went to, once they have answered it."""
        assert self._record is not None
        return self._record.prompt_tokens

    def timings(self, *, complete: bool = False) -> Mapping[str, Timing]:
        """Of each stage as of now, or of those that make nothing more; in the runtime's thread."""
        assert self._record is not None
        stages = self._record.stages.items()
        return {name: progress.timing() for name, progress in stages if progress.complete or not complete}

    async def left(self) -> None:
        """Wait until every engine has confirmed, at the latest until ``abort_s``; cancellations wait as well."""
        assert self._record is not None
        with bounded_shield(trio.current_time() + self._omni.spec.abort_s):
            await self._handler.confirmed(self._record)
