"""The driver: holds one runtime, does to it what a scenario says, and writes down what its users see.

One driver per run, on any world and any clock. ``hold`` is the task that owns the runtime; ``do`` carries out one
operation, synchronously: what takes time is a task of the driver's own. Readers are what users are: tasks in a
``generate`` block.
"""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, Protocol

import attrs
import trio

from omni_actors._errors import OmniError
from omni_actors.runtime import open_omni

from ._history import (
    AbortCalled,
    AbortReturned,
    Answered,
    Asked,
    Closed,
    Crashed,
    Exceeded,
    Faulted,
    HealthSeen,
    Opened,
    ShutdownCalled,
    ShutdownReturned,
    StageSaid,
    State,
)
from ._readers import Readers
from ._scenario import Abort, Call, Cancel, Exit, Inject, Kill, Leave, Op, Resume, Shutdown, Stall, Submit

if TYPE_CHECKING:
    from omni_actors.config import PipelineSpec
    from omni_actors.runtime import AbortReport, OmniRuntime, ShutdownReport, World
    from omni_actors.stages import StageEvent

    from ._history import AnyEvent, History

__all__ = ["Driver", "Faults"]

Worlds = Callable[["PipelineSpec"], AbstractAsyncContextManager["World"]]


class Faults(Protocol):
    """What a world can do to its engines. Each returns the generation it was done to, or None: nobody was there."""

    def signal(self, stage: str, replica: int, signum: int, member: str = "engine") -> int | None: ...

    def exit(self, stage: str, replica: int, code: int) -> int | None: ...

    def inject(self, stage: str, replica: int, what: str, history: History) -> int | None: ...


class Driver:
    """Owns the history's writing end. ``omni`` is there while the runtime is open."""

    def __init__(self, spec: PipelineSpec, world: Worlds, faults: Faults, history: History) -> None:
        self.spec, self.history = spec, history
        self.omni: OmniRuntime | None = None
        self.begun = trio.current_time()
        self.opened, self.performed, self.closed = trio.Event(), trio.Event(), trio.Event()
        self.shut = trio.Event()
        self._world, self._faults = world, faults
        self._readers = Readers(self)
        self._calls = 0
        self._over: set[str] = set()
        self._root = trio.CancelScope()
        self._outer: trio.Nursery
        self._inner: trio.Nursery | None = None

    # ------------------------------------------------------------------ the history

    @property
    def now(self) -> float:
        """Seconds from the beginning."""
        return trio.current_time() - self.begun

    def record(self, event: AnyEvent) -> None:
        """Write one event."""
        self.history.events.append(event)

    def after_step(self) -> None:
        """To be called after every step of the scheduler: terminals and bounds are seen as soon as they change."""
        self._readers.look()
        if (omni := self.omni) is not None:
            held, limit = omni._handler.admission.slots, self.spec.limits.max_requests
            if held > limit:
                self._exceeded("slots", held, limit)

    def look(self) -> None:
        """Bounds that take longer to see; to be called now and then."""
        if self.omni is None:
            return
        unread, limit = self._readers.most_unread, self.spec.limits.stream_bytes
        if unread > limit:
            self._exceeded("stream bytes", unread, limit)
        if (steps := self._readers.most_steps) > 1:
            self._exceeded("unread steps of one lease in a row", steps, 1)
        for record in self.omni._handler.table.records.values():
            for progress in record.stages.values():
                window = min((edge.parts_in_flight for edge in progress.node.edges), default=1)
                if progress.node.name in record.plan.partitioned and progress.opened - progress.done > window:
                    self._exceeded("parts in flight", progress.opened - progress.done, window)

    def _exceeded(self, bound: str, value: int, limit: int) -> None:
        if bound not in self._over:
            self._over.add(bound)
            self.record(Exceeded(at=self.now, bound=bound, value=value, limit=limit))

    def stage_event(self, event: StageEvent) -> None:
        """The runtime's ``on_event``."""
        error = event.error
        self.record(
            StageSaid(
                at=self.now,
                stage=event.stage,
                replica=event.replica,
                generation=event.generation,
                kind=event.kind,
                error=None if error is None else type(error).__name__,
                verdict=getattr(error, "verdict", None),
            )
        )

    # ------------------------------------------------------------------ the runtime

    async def hold(self, body: Callable[[], Awaitable[None]]) -> None:
        """Open the runtime, run ``body`` in its block, leave; then wait for every task of the driver's own."""
        async with trio.open_nursery() as self._outer:
            error: BaseException | None = None
            try:
                with self._root:
                    async with open_omni(self.spec, world=self._world, on_event=self.stage_event) as self.omni:
                        self.record(Opened(at=self.now))
                        self.opened.set()
                        await self._body(body)
            except OmniError as raised:
                error = raised
            except Exception as raised:
                self.record(Crashed(at=self.now, where="open_omni", error=f"{type(raised).__name__}: {raised}"))
            finally:
                opened = self.opened.is_set()
                self.record(Closed(at=self.now, opened=opened, error=None if error is None else type(error).__name__))
                self.omni = None
                self.closed.set()
        self.after_step()

    async def _body(self, body: Callable[[], Awaitable[None]]) -> None:
        assert self.omni is not None
        drain_s: float | None = 0.0
        try:
            async with trio.open_nursery() as self._inner:
                try:
                    await body()
                finally:
                    # Whoever comes now is no task of the block: its nursery may close at any moment.
                    self._inner = None
            drain_s = None
        finally:
            self._calls += 1
            self.record(ShutdownCalled(at=self.now, call=self._calls, by="leave", drain_s=drain_s))

    @property
    def empty(self) -> bool:
        """Whether the runtime is open and holds no request, settled ones included."""
        return self.omni is not None and not self.omni.statistics().requests

    def quiet(self) -> None:
        """Write down what the runtime holds; with no request in it, that is nothing."""
        if self.omni is not None:
            counts = attrs.asdict(self.omni.statistics())
            del counts["refused"], counts["late"], counts["ended"]
            # Written down first: the check raises where something is left.
            self.record(State(at=self.now, when="quiet", counts=counts))
            self.omni.check()

    def health(self) -> None:
        """Ask, and write down what was said."""
        if self.omni is not None:
            health = self.omni.health()
            ready = tuple((stage.stage, stage.ready) for stage in health.stages)
            self.record(HealthSeen(at=self.now, ready=health.ready, ready_replicas=ready))

    # ------------------------------------------------------------------ operations

    def do(self, op: Op) -> None:
        """Carry out one operation, or begin to. Does nothing where there is nothing (yet, or any more) to do it to."""
        match op:
            case Submit():
                self._submit(op)
            case Leave(request=request):
                self._readers.cancel(request)
            case Abort(id=request_id):
                self._start(self._abort, request_id)
            case Call():
                self._start(self._call, op)
            case Shutdown():
                self._start(self.shutdown, op)
            case Cancel():
                self._root.cancel()
            case Kill(signal=name, member=member):
                signum = signal.Signals[f"SIG{name}"]
                self._fault(op, lambda: self._faults.signal(op.stage, op.replica, signum, member))
            case Stall():
                self._fault(op, lambda: self._faults.signal(op.stage, op.replica, signal.SIGSTOP))
            case Resume():
                self._fault(op, lambda: self._faults.signal(op.stage, op.replica, signal.SIGCONT))
            case Exit(code=code):
                self._fault(op, lambda: self._faults.exit(op.stage, op.replica, code))
            case Inject(what=what):
                self._fault(op, lambda: self._faults.inject(op.stage, op.replica, what, self.history))

    def _fault(self, op: Kill | Stall | Resume | Exit | Inject, act: Callable[[], int | None]) -> None:
        # The fault is written first: what the runtime does about it comes after.
        number, at = len(self.history.events), self.now
        generation = act()
        name = op.what if isinstance(op, Inject) else type(op).__name__.lower()
        event = Faulted(
            at=at,
            op=name,
            stage=op.stage,
            replica=op.replica,
            generation=generation or 0,
            done=generation is not None,
        )
        self.history.events.insert(number, event)

    def _submit(self, op: Submit) -> None:
        if self.omni is not None:
            nursery = self._inner if op.inside and self._inner is not None else self._outer
            self._readers.start(nursery, self.omni, op)

    def _start(self, job: Callable[..., Awaitable[None]], *args: Any) -> None:
        if self.omni is not None:
            self._outer.start_soon(job, *args)

    async def _abort(self, request_id: str) -> None:
        if (omni := self.omni) is None:
            return
        self._calls = call = self._calls + 1
        self.record(AbortCalled(at=self.now, call=call, id=request_id, live=self._readers.live(request_id)))
        try:
            report: AbortReport = await omni.abort(request_id)
        except Exception as error:
            returned = AbortReturned(at=self.now, call=call, id=request_id, error=type(error).__name__)
        else:
            returned = AbortReturned(
                at=self.now,
                call=call,
                id=request_id,
                known=report.known,
                kinds=tuple(terminal.kind.value for terminal in report.terminals),
                unconfirmed=tuple(lease.key for lease in report.unconfirmed),
            )
        self.after_step()
        self.record(returned)

    async def _call(self, op: Call) -> None:
        if (omni := self.omni) is None:
            return
        self._calls = call = self._calls + 1
        self.record(Asked(at=self.now, call=call, stage=op.stage, method=op.method, timeout_s=op.timeout_s))
        error = None
        try:
            await omni.call(op.stage, op.method, "x", timeout_s=op.timeout_s)
        except (OmniError, trio.TooSlowError) as raised:
            error = type(raised).__name__
        except BaseExceptionGroup as group:
            error = f"group of {type(group.exceptions[0]).__name__}"
        self.record(Answered(at=self.now, call=call, error=error))

    async def shutdown(self, op: Shutdown) -> None:
        """Call it, and write down what it returned."""
        if (omni := self.omni) is None:
            return
        self._calls = call = self._calls + 1
        limits = {"drain_s": op.drain_s, "abort_s": op.abort_s, "stop_s": op.stop_s}
        self.record(ShutdownCalled(at=self.now, call=call, drain_s=op.drain_s, abort_s=op.abort_s, stop_s=op.stop_s))
        report: ShutdownReport = await omni.shutdown(**limits)
        self.record(
            ShutdownReturned(
                at=self.now, call=call, report=repr(report), killed=report.killed, unreaped=report.unreaped
            )
        )
        self.shut.set()
