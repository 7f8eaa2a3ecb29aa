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

from omni_actors._errors import InvalidRequest, OmniError, TransformFailed
from omni_actors.lifecycle import Terminal
from omni_actors.runtime import Stream, open_omni

from ._history import (
    AbortCalled,
    AbortReturned,
    Accepted,
    Answered,
    Asked,
    Closed,
    Crashed,
    Ended,
    Exceeded,
    Faulted,
    Got,
    HealthSeen,
    Left,
    Opened,
    Refused,
    ShutdownCalled,
    ShutdownReturned,
    StageSaid,
    State,
    Submitting,
    TerminalSeen,
)
from ._scenario import Abort, Call, Cancel, Exit, Inject, Kill, Leave, Op, Resume, Shutdown, Stall, Submit
from ._wiretap import fingerprint

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


@attrs.define(eq=False)
class _Reader:
    """One request's reader: its task's scope, its stream once it has one."""

    op: Submit
    scope: trio.CancelScope
    submitted: bool = False
    stream: Stream | None = None
    terminal: Terminal | None = None


class _Raised(Exception):
    """What a reader raises in its own block, to leave it so."""


class Driver:
    """Owns the history's writing end. ``omni`` is there while the runtime is open."""

    def __init__(self, spec: PipelineSpec, world: Worlds, faults: Faults, history: History) -> None:
        self.spec, self.history = spec, history
        self.omni: OmniRuntime | None = None
        self.begun = trio.current_time()
        self.opened, self.performed, self.closed = trio.Event(), trio.Event(), trio.Event()
        self.shut = trio.Event()
        self._world, self._faults = world, faults
        self._readers: dict[str, _Reader] = {}
        self._live: list[_Reader] = []
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
        for reader in self._live:
            stream = reader.stream
            if stream is not None and stream.terminal is not reader.terminal:
                self._see_terminal(reader, stream.terminal)
        if (omni := self.omni) is not None:
            held, limit = omni._handler.admission.slots, self.spec.limits.max_requests
            if held > limit and "slots" not in self._over:
                self._exceeded("slots", held, limit)

    def _see_terminal(self, reader: _Reader, terminal: Terminal | None) -> None:
        reader.terminal = terminal
        if terminal is not None:
            error = terminal.error
            self._blame(reader, error)
            self.record(
                TerminalSeen(
                    at=self.now,
                    request=reader.op.request,
                    kind=terminal.kind.value,
                    error=None if error is None else type(error).__name__,
                    reason=terminal.reason,
                    stage=error.stage if error is not None else terminal.stage,
                    replica=error.replica if error is not None else None,
                    generation=error.generation if error is not None else None,
                    made=_made(terminal),
                )
            )

    def _blame(self, reader: _Reader, error: BaseException | None) -> None:
        """Keep what a pipeline's own functions did wrong: whoever wrote them wants to see the arguments."""
        if isinstance(error, TransformFailed) or (isinstance(error, InvalidRequest) and reader.stream is not None):
            self.history.failures[reader.op.request] = error

    def look(self) -> None:
        """Bounds that take longer to see; to be called now and then."""
        if self.omni is None:
            return
        limit = self.spec.limits.stream_bytes
        for reader in self._live:
            if reader.stream is not None and reader.stream.unread_bytes > limit:
                self._exceeded("stream bytes", reader.stream.unread_bytes, limit)
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
                await body()
            drain_s = None
        finally:
            self._inner = None
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
                self._start_reader(op)
            case Leave(request=request):
                if (reader := self._readers.get(request)) is not None:
                    reader.scope.cancel()
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

    def _start(self, job: Callable[..., Awaitable[None]], *args: Any) -> None:
        if self.omni is not None:
            self._outer.start_soon(job, *args)

    async def _abort(self, request_id: str) -> None:
        if (omni := self.omni) is None:
            return
        self._calls = call = self._calls + 1
        live = [r for r in self._live if r.op.user_id == request_id and r.stream is not None and r.terminal is None]
        names = tuple(reader.op.request for reader in live)
        self.record(AbortCalled(at=self.now, call=call, id=request_id, live=names))
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

    # ------------------------------------------------------------------ readers

    def _start_reader(self, op: Submit) -> None:
        if self.omni is None or op.request in self._readers:
            return
        reader = self._readers[op.request] = _Reader(op, trio.CancelScope())
        nursery = self._inner if op.inside and self._inner is not None else self._outer
        nursery.start_soon(self._read, reader)

    async def _read(self, reader: _Reader) -> None:
        op = reader.op
        how = "end"
        try:
            with reader.scope:
                await self._read_block(reader)
            if reader.scope.cancelled_caught:
                how = "Cancelled"
        except (OmniError, _Raised) as error:
            self._blame(reader, error)
            how = type(error).__name__
        except trio.Cancelled:
            how = "Cancelled"
            raise
        except BaseException as error:
            self.record(Crashed(at=self.now, where=op.request, error=f"{type(error).__name__}: {error}"))
            raise
        finally:
            self.after_step()
            if reader.stream is not None:
                self.record(Left(at=self.now, request=op.request))
            elif reader.submitted:
                self.record(Refused(at=self.now, request=op.request, error=how))

    async def _read_block(self, reader: _Reader) -> None:
        op, omni = reader.op, self.omni
        if omni is None:
            return
        reader.submitted = True
        self.record(Submitting(at=self.now, request=op.request, id=op.user_id, modalities=op.modalities))
        prompt = f"{op.request}: hello" if op.prompt is None else op.prompt
        block = omni.generate(
            prompt, op.params, request_id=op.user_id, modalities=op.modalities, timeout_s=op.timeout_s
        )
        async with block as stream:
            self._accepted(reader, stream)
            how = "Cancelled"
            try:
                how = await self._iterate(reader, stream)
            except OmniError as error:
                how = type(error).__name__
                raise
            finally:
                self.after_step()
                self.record(Ended(at=self.now, request=op.request, how=how))
            if how == "raise":
                raise _Raised
            if how == "cancel":
                reader.scope.cancel()
                await trio.lowlevel.checkpoint()

    def _accepted(self, reader: _Reader, stream: Stream) -> None:
        self.record(Accepted(at=self.now, request=reader.op.request, key=stream.key))
        reader.stream = stream
        self._live.append(reader)
        self.after_step()

    async def _iterate(self, reader: _Reader, stream: Stream) -> str:
        op, taken = reader.op, 0
        while op.leave_after is None or taken < op.leave_after:
            try:
                output = await anext(stream)
            except StopAsyncIteration:
                return "end"
            taken += 1
            self.record(
                Got(
                    at=self.now,
                    request=op.request,
                    stage=output.stage,
                    modality=output.modality,
                    data=fingerprint(output.payload),
                    part=output.part,
                    index=output.index,
                    finish_reason=output.payload.finish_reason,
                )
            )
            if op.pace_s:
                await trio.sleep(op.pace_s)
        return op.leave


def _made(terminal: Terminal) -> tuple[tuple[str, int, int, tuple[int, ...]], ...]:
    """The terminal's results as fingerprints: tokens or text, or one sum per tensor chunk."""
    found = []
    for stage, results in terminal.results.items():
        for result in results:
            data = tuple(result.token_ids or map(ord, result.text))
            found.append((stage, result.part, result.index, data))
    return tuple(found)
