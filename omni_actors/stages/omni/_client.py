"""StageDiffusionClient: one generation's conversation on the omni stage wire.

Owns one ROUTER socket and the host's side of the wire's state tables. One task serves it; every other method is
synchronous. Invariants kept here: each lease ends in exactly one Released or LeaseFailed (I11); nothing of a key
follows its end or, but for that end, its abort (I3); aborts overtake submits (I15); an idle client wakes for nothing.
"""

from __future__ import annotations

import contextlib
import math
from typing import TYPE_CHECKING, Any

import trio

from omni_actors._errors import EngineRejected, InvalidRequest, ProtocolError
from omni_actors.lifecycle.events import (
    Event,
    LeaseFailed,
    Payload,
    Produced,
    Released,
    StepChunk,
    TensorChunk,
    TextChunk,
)
from omni_actors.stages.omni._calls import Calls
from omni_actors.transport import QueueFull, Unroutable
from omni_actors.wire import omni as wire
from omni_actors.wire.omni import LeaseState, State

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping

    from omni_actors.stages._interface import Emit, Work
    from omni_actors.transport import Message, Transport

__all__ = ["StageDiffusionClient"]

_LIVE = (LeaseState.SUBMITTED, LeaseState.PRODUCING)


class StageDiffusionClient:
    """The client of the omni stage wire; implements ``StageClient``.

    ``progress`` maps a live lease to its (done, total) steps; ``busy_s`` and ``made`` are the engine's last Heartbeat.
    """

    def __init__(self, transport: Transport, *, stage: str, replica: int, generation: int) -> None:
        name = f"{stage}-{replica}-{generation}"
        self._where: dict[str, Any] = {"stage": stage, "replica": replica, "generation": generation}
        self._identity = name.encode()
        self._socket = transport.router(name)
        self._side = wire.HostSide()
        self._calls = Calls(self._where)
        # What is decoded but not yet taken by emit: survives the cancellation of serve, for drain.
        self._events: list[Event] = []
        self._unread: list[Message] = []
        self._to_abort: dict[str, None] = {}
        self._parked: trio.CancelScope | None = None
        self._owed_since: float | None = None
        self._watchers: list[Callable[[], None]] = []
        self._pings = self._pongs = 0
        self._last_heard = self._last_made = -math.inf
        self._broken = self._closed = False
        self.progress: dict[str, tuple[int, int]] = {}
        self.busy_s: float | None = None
        self.made = 0

    # -- the conversation

    @property
    def addresses(self) -> Mapping[str, str]:
        """``address`` and ``identity``, for the child's DEALER."""
        return {"address": self._socket.address, "identity": self._identity.decode()}

    async def handshake(self, frontend_made: Callable[[], Awaitable[object]] = trio.lowlevel.checkpoint) -> None:
        """Return when the engine has said Ready and ``frontend_made`` has returned. Raises ProtocolError.

        Has no deadline of its own: the caller has one.
        """
        while not self._serving:
            messages = await self._socket.receive()
            self._unread += messages
            while self._unread and not self._serving:
                self._hear(self._unread.pop(0))
        await frontend_made()

    async def serve(self, emit: Emit) -> None:
        """Receive, decode, emit, until cancelled. Raises ProtocolError, after emitting what came before it."""
        while True:
            try:
                self._read()
            finally:
                await self._emit(emit)
            await self._receive()

    def drain(self) -> list[Event]:
        """What had arrived when serving ended, in order; ends silently where the peer broke the wire."""
        try:
            self._read()
            while not self._closed and (messages := self._socket.drain()):
                self._unread += messages
                self._read()
        except ProtocolError:
            self._unread.clear()
        events, self._events = self._events, []
        return events

    def close(self) -> None:
        """Close the socket and fail the calls that nobody will answer. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._socket.close()
        self._side.die()
        self._calls.fail_all()
        self._owe()

    async def _receive(self) -> None:
        """Park until a message comes or something of ours is to be emitted."""
        with trio.CancelScope() as self._parked:
            if self._events:
                self._parked.cancel()
            messages = await self._socket.receive()
            self._unread += messages
        self._parked = None
        # A full queue has put these off.
        self._send_aborts()

    async def _emit(self, emit: Emit) -> None:
        while self._events:
            batch = list(self._events)
            await emit(batch)
            # abort() may have appended meanwhile: take away only what was taken.
            del self._events[: len(batch)]

    def _read(self) -> None:
        """Decode and apply what is unread. Raises ProtocolError once; then, or once closed, nothing is read again."""
        if self._broken or self._closed:
            self._unread.clear()
        unread, self._unread = self._unread, []
        for message in unread:
            try:
                self._hear(message)
            except ProtocolError:
                self._broken = True
                raise
        self._owe()

    def _hear(self, frames: Message) -> None:
        self._last_heard = trio.current_time()
        try:
            if not frames or bytes(frames[0]) != self._identity:
                raise ProtocolError("a message of an unknown peer")
            message = wire.decode(frames[1:])
            before = self._side.lease(getattr(message, "key", ""))
            self._side.receive(message)
        except ProtocolError as error:
            raise ProtocolError(error.message, **self._where) from None
        self._apply(message, before)

    def _apply(self, message: wire.Message, before: LeaseState) -> None:
        match message:
            case wire.Output(key=key):
                self._last_made = self._last_heard
                if before is not LeaseState.ABORTING and key not in self._to_abort:
                    self._events.append(Produced(key, _payload(message), message.finished))
            case wire.Released(key=key):
                if before is not LeaseState.GONE:
                    self._end(Released(key))
            case wire.Failed(key=key):
                aborted = before is LeaseState.ABORTING or key in self._to_abort
                self._end(Released(key) if aborted else self._failure(message))
            case wire.Progress(key=key):
                self._last_made = self._last_heard
                if before is not LeaseState.ABORTING and key not in self._to_abort:
                    self._progress(message)
            case wire.CallResult():
                self._calls.answer(message)
            case wire.Heartbeat(busy_s=busy_s, progress=progress, ping=ping):
                self.busy_s, self.made, self._pongs = busy_s, progress, max(self._pongs, ping)
            case wire.Hello():
                self._say(wire.Hello())

    # -- leases

    def submit(self, work: Work) -> None:
        """Send one lease's Submit. A full outbound queue fails the lease; a gone engine is left to the verdict."""
        if self._closed:
            return
        self._side.send(work.body)
        self._owe()
        try:
            self._socket.send([self._identity, *wire.encode(work.body)], tag=work.key)
        except Unroutable:
            return
        except QueueFull as error:
            self._side.unsend(work.key)
            self._end(self._failed(work.key, str(error)))
            self._owe()
            self._wake()

    def extend(self, work: Work) -> None:
        """Raises InvalidRequest: a Submit on this wire is the whole of a lease's input."""
        raise InvalidRequest("this stage takes its input whole, not as a stream of pieces", **self._where)

    def abort(self, keys: Iterable[str]) -> None:
        """Forget these leases. What never left is Released at once; all others of this scheduler pass are one Abort."""
        for key in keys:
            if self._side.lease(key) not in _LIVE:
                continue
            if self._socket.unsend(key):
                self._side.unsend(key)
                self._end(Released(key))
                self._wake()
            else:
                self._to_abort[key] = None
        self._owe()
        if self._to_abort:
            # Runs when this pass of the scheduler is over, also while serve waits in emit.
            trio.lowlevel.current_trio_token().run_sync_soon(self._send_aborts, idempotent=True)

    def _send_aborts(self) -> None:
        keys = [key for key in self._to_abort if self._side.lease(key) in _LIVE]
        self._to_abort.clear()
        if not keys or not self._serving:
            return
        try:
            self._say(wire.Abort(keys), urgent=True)
        except QueueFull:
            self._to_abort.update(dict.fromkeys(keys))

    def _progress(self, message: wire.Progress) -> None:
        self.progress[message.key] = (message.done, message.total)
        if message.shown:
            step = StepChunk(done=message.done, total=message.total, eta_s=message.eta_s, preview=message.preview)
            self._events.append(Produced(message.key, step))

    def _failure(self, message: wire.Failed) -> LeaseFailed:
        kind = InvalidRequest if message.invalid else EngineRejected
        return LeaseFailed(message.key, kind(message.error, **self._where))

    def _end(self, event: Event) -> None:
        assert isinstance(event, Released | LeaseFailed)
        self.progress.pop(event.key, None)
        self._events.append(event)

    def _wake(self) -> None:
        if self._parked is not None:
            self._parked.cancel()

    # -- calls and liveness

    async def call(self, method: str, *args: Any, timeout_s: float) -> Any:
        """Call a public method of the engine's class.

        Raises EngineRejected with the engine's words (or because too many calls are unanswered, or the generation
        ended), InvalidRequest for arguments that cannot be sent, ``trio.TooSlowError`` at the deadline. A late answer
        is dropped.
        """
        if not self._serving or len(self._side.calls) >= wire.MAX_PENDING_CALLS:
            raise EngineRejected(f"cannot call {method}: the engine is {self._side.state.value}", **self._where)
        with self._calls.pending(method, timeout_s) as pending:
            try:
                self._say(wire.Call(pending.id, method, list(args)))
            except (TypeError, ValueError) as error:
                raise InvalidRequest(f"cannot call {method}: {error}", **self._where) from None
            except QueueFull as error:
                raise EngineRejected(f"cannot call {method}: {error}", **self._where) from None
            self._owe()
            try:
                return await pending.result()
            finally:
                self._calls.forget(pending)
                self._owe()

    def tell(self, method: str, *args: Any) -> None:
        """A call whose answer nobody waits for. Raises QueueFull, and what ``encode`` raises for its arguments."""
        with self._calls.pending(method, math.inf) as nobodys:
            self._say(wire.Call(nobodys.id, method, list(args)))

    def ping(self) -> None:
        """Ask the engine's I/O thread for a Heartbeat. Owed until answered."""
        if not self._serving:
            return
        self._pings += 1
        try:
            self._say(wire.Ping(self._pings), urgent=True)
        except QueueFull:
            # What fills the queue is owed an answer as well, so nothing is lost by not asking.
            self._pings -= 1
        self._owe()

    def stop(self) -> None:
        """Tell the engine to end at once. Sent behind what is queued. Harmless in any state."""
        if self._serving:
            self._say(wire.Stop())

    @property
    def last_heard(self) -> float:
        """``trio.current_time()`` of the last message of any kind; ``-inf`` before the first."""
        return self._last_heard

    @property
    def last_made(self) -> float:
        """Absolute time of the last output; ``-inf`` before the first."""
        return self._last_made

    @property
    def step_s(self) -> float:
        """For how many seconds the engine had been inside one step at its last Heartbeat; 0: it was not."""
        return self.busy_s or 0.0

    @property
    def owed_since(self) -> float | None:
        """Since when, without a gap, the engine owes us anything; None: it may be silent."""
        return self._owed_since

    @property
    def hang_extension(self) -> float:
        """The latest deadline of a pending call; ``-inf`` without one."""
        return self._calls.latest_deadline

    def watch_owed(self, wake: Callable[[], None]) -> None:
        """Call ``wake`` once, as soon as something is owed; at once if it is already."""
        if self._owed_since is not None:
            wake()
        else:
            self._watchers.append(wake)

    def _owe(self) -> None:
        """Bring ``owed_since`` up to date. Called after every change of what is owed."""
        owed = self._side.live or self._calls.waiting or self._pings > self._pongs
        if self._closed or not owed:
            self._owed_since = None
        elif self._owed_since is None:
            self._owed_since = trio.current_time()
            watchers, self._watchers = self._watchers, []
            for wake in watchers:
                wake()

    # -- small things

    @property
    def _serving(self) -> bool:
        return self._side.state is State.SERVING

    def _say(self, message: wire.Message, *, urgent: bool = False) -> None:
        """Raises QueueFull and what ``encode`` raises, both before the side has noted anything."""
        frames = wire.encode(message)
        # An engine that is gone or going is for the verdict to report, not for this message.
        with contextlib.suppress(Unroutable):
            self._socket.send([self._identity, *frames], urgent=urgent)
        self._side.send(message)

    def _failed(self, key: str, words: str) -> LeaseFailed:
        return LeaseFailed(key, EngineRejected(words, **self._where))


def _payload(output: wire.Output) -> Payload | None:
    """Text where the engine speaks of text, tensors otherwise; None for an end without content."""
    if "text" in output.meta:
        return TextChunk(
            text=str(output.meta["text"]),
            token_ids=list(output.meta.get("token_ids", ())),
            finish_reason=output.finish_reason,
        )
    if not (output.tensors or output.meta or output.finish_reason):
        return None
    return TensorChunk(tensors=output.tensors, meta=output.meta, finish_reason=output.finish_reason)
