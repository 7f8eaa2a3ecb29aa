"""The request handler: takes requests in, forwards work from stage to stage, settles and aborts.

Owns one stream and one set of running forward jobs per request. Deciding happens in ``lifecycle``; this is the shell
that does what was decided. The rule of every path: whatever awaits (input processing in a thread, waiting for a
restarting replica) comes first and may be cancelled; then one synchronous block tests the fence, opens the leases and
submits. So a cancelled or aborted request can't leak work to an engine (I1, I3, I24).
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Protocol

import trio

from omni_actors._buggify import chance, pause
from omni_actors._errors import OmniError
from omni_actors.lifecycle import (
    Admission,
    Decision,
    Deliver,
    Fail,
    Finish,
    Forward,
    Graph,
    Kind,
    Lease,
    Record,
    RequestTable,
    RequestView,
    Settled,
    Terminal,
    advance,
    opened,
    unconfirmed,
)

from ._abort import AbortReport, Unconfirmed
from ._deadlines import Deadlines, Timer
from ._jobs import Jobs, in_thread
from ._late import edge_timeout, request_timeout, slow_consumer
from ._pieces import Pieces
from ._stream import Stream
from ._work import Given, WorkMaker, Works, prompt_size

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from omni_actors.config.specs import Limits
    from omni_actors.lifecycle.events import Output
    from omni_actors.stages import Replica, StageSupervisor

logger = logging.getLogger("omni_actors.request")

__all__ = ["RequestHandler", "Sink"]


class Sink(Protocol):
    """Where one request's outputs go: a ``Stream``, or what an adapter reads from. Neither call waits."""

    def push(self, output: Output) -> bool:
        """Take one output. False when the reader is too far behind: then the request ends as ``SlowConsumer``."""

    def close(self, terminal: Terminal) -> None:
        """The end, told once; nothing is pushed after it. Anything but a finish is a fence."""


class RequestHandler:
    """One per runtime. ``nursery`` holds the forward jobs; everything else runs in the callers' tasks."""

    def __init__(
        self, graph: Graph, stages: Mapping[str, StageSupervisor], limits: Limits, nursery: trio.Nursery, *, salt: str
    ) -> None:
        self.graph, self.stages, self.limits = graph, stages, limits
        self.admission = Admission(limits.max_requests, limits.max_bytes)
        self.table = RequestTable(self.admission, clock=trio.current_time, on_closed=self._closed, salt=salt)
        self.deadlines = Deadlines()
        self._maker = WorkMaker(stages, self.table.lease_key)
        self.pieces = Pieces(stages, self.table, self._maker, in_thread)
        self.jobs = Jobs(nursery, self.fail)
        self._timers: dict[str, list[Timer]] = {}
        self._waiting: dict[str, list[trio.Event]] = {}
        self._quiet = trio.Event()
        self._empty = trio.Event()

    # ------------------------------------------------------------------ taking a request in

    async def submit(
        self,
        view: RequestView,
        *,
        deadline: float,
        priority: int = 0,
        options: Mapping[str, Any] | None = None,
        sink: Sink | None = None,
    ) -> Record:
        """Admit, prepare and start one request. Raises Refused or InvalidRequest, and then nothing is left of it.

        Its outputs go to ``sink``, by default a new Stream; ``record.sink`` holds it. Always a checkpoint. Cancelling
        it withdraws the request.
        """
        record = self._admit(view, priority, options, sink)
        try:
            await trio.lowlevel.checkpoint()
            await pause("submit.prepare")
            prepared = {name: await self._prepare_root(record, name) for name in record.plan.roots}
            self._widen(record, prepared)
        except BaseException:
            self.table.withdraw(record)
            raise
        self._begin(record, deadline, prepared)
        return record

    def submit_now(
        self,
        view: RequestView,
        *,
        deadline: float,
        priority: int = 0,
        options: Mapping[str, Any] | None = None,
        sink: Sink | None = None,
    ) -> Record | None:
        """``submit`` in one synchronous step. None, and nothing is done, if its input may take long to prepare."""
        roots = self.graph.plan(view.modalities).roots
        if not all(self._light(name, view) for name in roots):
            return None
        record = self._admit(view, priority, options, sink)
        try:
            prepared = {name: self._maker.works(record, name, 0, Given.plain(view, name)) for name in roots}
        except BaseException:
            self.table.withdraw(record)
            raise
        self._begin(record, deadline, prepared)
        return record

    def _light(self, name: str, view: RequestView) -> bool:
        """Whether the stage takes the prompt as it is, and is quick about it. Raises InvalidRequest."""
        stage = self.stages[name]
        plain = stage.cheap and stage.transform is None and stage.companions is None
        return plain and not self._maker.heavy(name, Given.plain(view, name))

    def _admit(self, view: RequestView, priority: int, options: Mapping[str, Any] | None, sink: Sink | None) -> Record:
        plan = self.graph.plan(view.modalities)
        samples = sum(self.stages[name].frontend.samples(view.params.get(name)) for name in plan.roots)
        record = self.table.admit(
            view, plan, slots=samples, nbytes=prompt_size(view.prompt), priority=priority, options=options
        )
        record.sink = Stream(view.request_id, record.key, self.limits.stream_bytes) if sink is None else sink
        return record

    def _widen(self, record: Record, prepared: Mapping[str, Works]) -> None:
        """The companions of the roots are admitted with their request, or it is refused. No await until they begin."""
        slots = sum(len(works.companions) for works in prepared.values())
        if slots:
            self.table.widen(record, slots, sum(works.nbytes for works in prepared.values()))

    def _begin(self, record: Record, deadline: float, prepared: dict[str, Works]) -> None:
        self.table.begin(record)
        if not record.settled:
            self._timer(record, deadline, lambda: self._timed_out(record))
            self._start(record, prepared)

    async def _prepare_root(self, record: Record, name: str) -> Works:
        """Input processing comes before the first lease, so that a bad prompt is the submitter's exception."""
        stage, maker = self.stages[name], self._maker
        if stage.cheap:
            given = maker.transform(record, stage, {})
        else:
            given = await in_thread(maker.transform, record, stage, {})
        if maker.heavy(name, given):
            return await in_thread(maker.works, record, name, 0, given)
        return maker.works(record, name, 0, given)

    def _start(self, record: Record, prepared: dict[str, Works]) -> None:
        for decision in advance(record):
            assert isinstance(decision, Forward)
            self._ready(record, decision)
            self._place(record, decision, prepared.pop(decision.stage))

    # ------------------------------------------------------------------ carrying out decisions

    def carry_out(self, record: Record, decisions: Sequence[Decision]) -> None:
        """Do what routing decided for one request, in order; a settle ends it. Never blocks."""
        for decision in decisions:
            if record.settled:
                return
            if isinstance(decision, Deliver):
                self.deliver(record, decision.output)
            elif isinstance(decision, Forward):
                self._forward(record, decision)
            elif isinstance(decision, Finish):
                self.settle(record, Kind.FINISHED)
            else:
                self.fail(record, decision)

    def deliver(self, record: Record, output: Output) -> None:
        """Give the user one output, or end the request of a reader who is too far behind."""
        if not record.sink.push(output):
            self.settle(record, Kind.FAILED, error=slow_consumer(record, self.limits.stream_bytes))

    def fail(self, record: Record, failure: Fail) -> None:
        """Settle as failed; the error tells which request."""
        failure.error.request_id = record.request_id
        self.settle(record, Kind.FAILED, error=failure.error, stage=failure.stage)

    def _forward(self, record: Record, forward: Forward) -> None:
        """A stage's input is there. Cheap work is done at once, the rest is a job in the request's own scope."""
        self._ready(record, forward)
        stage = self.stages[forward.stage]
        if not stage.cheap:
            self.jobs.spawn(record, self._forward_job, forward)
            return
        try:
            given = self._maker.transform(record, stage, forward.upstream)
            if self._maker.heavy(forward.stage, given):
                self.jobs.spawn(record, self._prepare_job, forward, given)
                return
            works = self._maker.works(record, forward.stage, forward.part, given)
        except OmniError as error:
            self.fail(record, Fail(forward.stage, error))
        else:
            self._place(record, forward, works)

    async def _forward_job(self, record: Record, forward: Forward) -> None:
        stage = self.stages[forward.stage]
        given = await in_thread(self._maker.transform, record, stage, forward.upstream)
        await self._prepare_job(record, forward, given)

    async def _prepare_job(self, record: Record, forward: Forward, given: Given) -> None:
        works = await in_thread(self._maker.works, record, forward.stage, forward.part, given)
        self._place(record, forward, works)

    def _place(self, record: Record, forward: Forward, works: Works) -> None:
        stage = self.stages[forward.stage]
        replica = stage.try_place(self.table.load)
        if replica is not None and not chance("place.later"):
            self._bind(record, forward, works, replica)
        else:
            self.jobs.spawn(record, self._place_job, forward, works)

    async def _place_job(self, record: Record, forward: Forward, works: Works) -> None:
        stage = self.stages[forward.stage]
        replica = await stage.place(self.table.load, trio.current_time() + stage.spec.deadlines.placement_s)
        self._bind(record, forward, works, replica)

    def _bind(self, record: Record, forward: Forward, works: Works, replica: Replica) -> None:
        """The one synchronous block: fence, leases, submit. Companions go where the main work goes, in this block."""
        if record.settled:
            return
        stage, part = forward.stage, forward.part
        opened(record, stage, part, len(works.main), tuple(works.companions))
        for index, work in works.indexed():
            self.table.open_lease(record, stage, part, index, replica.number, replica.generation)
            replica.client.submit(work)
        if works.companions and stage in record.plan.roots:
            self._edge_timer(record, forward)
        self.pieces.look(record)

    # ------------------------------------------------------------------ timers of a request

    def _timer(self, record: Record, when: float, act: Callable[[], None]) -> None:
        if when < float("inf"):
            self._timers.setdefault(record.key, []).append(self.deadlines.at(when, act))

    def _ready(self, record: Record, forward: Forward) -> None:
        """A stage's input exists: its clock starts, and so does the deadline of the edge it came over."""
        progress = record.stages[forward.stage]
        if progress.ready_at is None:
            progress.ready_at = trio.current_time()
        if progress.node.edges:
            self._edge_timer(record, forward)

    def _edge_timer(self, record: Record, forward: Forward) -> None:
        edge_s = self.stages[forward.stage].spec.deadlines.edge_s
        self._timer(record, trio.current_time() + edge_s, lambda: self._edge_timed_out(record, forward, edge_s))

    def _edge_timed_out(self, record: Record, forward: Forward, edge_s: float) -> None:
        if (error := edge_timeout(record, forward, edge_s)) is not None:
            self.fail(record, Fail(forward.stage, error))

    def _timed_out(self, record: Record) -> None:
        self.settle(record, Kind.TIMED_OUT, error=request_timeout(record, trio.current_time()))

    # ------------------------------------------------------------------ the end of a request

    def settle(self, record: Record, kind: Kind, **how: Any) -> Settled | None:
        """The one way to end a request: decide, fence, tell the engines. Returns None if it had ended before."""
        settled = self.table.settle(record, kind, **how)
        if settled is None:
            return None
        if settled.terminal.error is not None and hasattr(settled.terminal.error, "terminal"):
            settled.terminal.error.terminal = settled.terminal
        record.sink.close(settled.terminal)
        self.pieces.look(record)
        self.jobs.cancel(record)
        for timer in self._timers.pop(record.key, ()):
            timer.cancel()
        self._tell_engines(settled.to_abort)
        if not self.table.unsettled:
            self._quiet.set()
        self._log(settled.terminal)
        return settled

    def _log(self, terminal: Terminal) -> None:
        """A request's end, with the fields to filter by. Never its prompt; a stage's death is logged elsewhere."""
        level = logging.INFO if terminal.kind in (Kind.FAILED, Kind.TIMED_OUT) else logging.DEBUG
        if logger.isEnabledFor(level):
            why = (terminal.reason or "").partition("\n")[0]
            where = {"request_id": terminal.request_id, "stage": terminal.stage}
            logger.log(level, "%s%s", terminal.kind.value, f": {why}" if why else "", extra=where)

    def _tell_engines(self, leases: Sequence[Lease]) -> None:
        by_replica: dict[Replica, list[str]] = {}
        for lease in leases:
            replica = self.stages[lease.stage].replicas[lease.replica]
            if replica.generation == lease.generation:
                by_replica.setdefault(replica, []).append(lease.key)
        for replica, keys in by_replica.items():
            replica.client.abort(keys)

    def _closed(self, record: Record) -> None:
        # A finish leaves chunks too: of a stage that nobody listened to, or whose listener had had enough.
        if record.terminal is not None and (record.terminal.kind is not Kind.FINISHED or self.graph.chained):
            for request_over in {self.stages[node.name].request_over for node in record.plan.order}:
                if request_over is not None:
                    request_over(record.key)
        for event in self._waiting.pop(record.key, ()):
            event.set()
        if not self.table.unsettled:
            self._quiet.set()
        if not self.table.records:
            self._empty.set()

    async def released(self, record: Record) -> None:
        """Wait until every engine has confirmed that it holds nothing of this request."""
        if record.key not in self.table.records:
            await trio.lowlevel.checkpoint()
            return
        event = trio.Event()
        self._waiting.setdefault(record.key, []).append(event)
        await event.wait()

    async def abort(self, request_id: str, abort_s: float) -> AbortReport:
        """Abort every request with this id; return when all leases are confirmed, at the latest after ``abort_s``.

        Unknown, ended, twice: a report that says so, never an error. Cancelling it stops the waiting, not the abort.
        """
        records = self.table.find(request_id)
        for record in records:
            self.settle(record, Kind.ABORTED, reason="aborted")
        await self._wait_released(records, trio.current_time() + abort_s)
        return self._report(request_id, records)

    async def confirmed(self, record: Record) -> None:
        """Wait until an ended request is released everywhere; what is not by the caller's deadline becomes suspect."""
        try:
            await self.released(record)
        finally:
            self._suspect(unconfirmed([record]))

    async def _wait_released(self, records: Sequence[Record], deadline: float) -> None:
        with trio.CancelScope(deadline=deadline):
            for record in records:
                await self.released(record)
        if not records:
            await trio.lowlevel.checkpoint()

    def _report(self, request_id: str, records: Sequence[Record]) -> AbortReport:
        leases = unconfirmed(records)
        self._suspect(leases)
        return AbortReport(
            request_id=request_id,
            known=bool(records),
            terminals=tuple(record.terminal for record in records if record.terminal is not None),
            unconfirmed=tuple(Unconfirmed(lease.stage, lease.replica, lease.key) for lease in leases),
        )

    def _suspect(self, leases: Sequence[Lease]) -> None:
        for lease in leases:
            self.stages[lease.stage].replicas[lease.replica].suspect(lease.generation)

    # ------------------------------------------------------------------ the shutdown ladder's view

    async def drained(self) -> None:
        """Wait until every request has its terminal."""
        while self.table.unsettled:
            self._quiet = trio.Event()
            await self._quiet.wait()

    async def emptied(self) -> None:
        """Wait until every lease of every request is confirmed."""
        while self.table.records:
            self._empty = trio.Event()
            await self._empty.wait()

    def abort_all(self, reason: str) -> int:
        """Settle everything that is live; returns how many it were."""
        records = [record for record in self.table.records.values() if not record.settled]
        for record in records:
            self.settle(record, Kind.ABORTED, reason=reason)
        return len(records)
