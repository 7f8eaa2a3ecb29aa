"""StageEngineCoreClient: the trio shell around one generation's ``Conversation``. Owns its three sockets.

Four tasks serve: one receives outputs and emits them, one pumps the input socket, one sends what was aborted in a
scheduler pass as one ABORT and one barrier, one announces what happened without a message (a withdrawn lease). The
third never waits for the router, so an abort leaves even while every mailbox is full (I15).
"""

from __future__ import annotations

import math
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import trio

from omni_actors._errors import EngineDead, EngineRejected, ProtocolError
from omni_actors.transport import QueueFull, Transport, Unroutable
from omni_actors.wire.vllm.handshake import ENGINE_IDENTITY, Handshake

from ._conversation import Conversation, PendingCall

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

    from omni_actors.lifecycle.events import Event
    from omni_actors.stages._interface import Emit, Work

    from ._interface import CoreFrontend

__all__ = ["StageEngineCoreClient"]

CHUNK = 128
"""Outputs applied in one go, as in vLLM's own front-end: a step of a thousand requests must not hold up everybody."""

_GONE = (Unroutable, trio.ClosedResourceError)
"""What a send meets when the engine, or this client, is no more."""


class StageEngineCoreClient:
    """One generation's client (see ``StageClient``).

    ``frontend`` is called once, when the engine is ready.
    """

    def __init__(
        self, frontend: Callable[[], CoreFrontend], transport: Transport, *, stage: str, replica: int, generation: int
    ) -> None:
        name = f"{stage}-{replica}-{generation}"
        self._frontend, self._name, self._generation = frontend, f"{stage}/{replica}", generation
        self._where: dict[str, Any] = {"stage": stage, "replica": replica, "generation": generation}
        self._handshake_socket = transport.router(f"{name}-h")
        self._input = transport.router(f"{name}-i")
        self._output = transport.pull(f"{name}-o")
        self._conversation: Conversation | None = None
        self._last_heard, self._last_made = trio.current_time(), -math.inf
        self._owed_since: float | None = None
        self._owed_watchers: list[Callable[[], None]] = []
        self._aborts, self._aside = trio.Event(), trio.Event()
        self._undelivered: list[Event] = []
        self._pieces: dict[str, list[str]] = {}  # of live leases, the tags of what followed their first ADD

    @property
    def addresses(self) -> Mapping[str, str]:
        """``handshake`` alone: the engine learns the other two from it."""
        return {"handshake": self._handshake_socket.address}

    @property
    def last_heard(self) -> float:
        """Absolute time of the last message of any kind."""
        return self._last_heard

    @property
    def step_s(self) -> float:
        """Unknown on this wire: 0."""
        return 0.0

    @property
    def last_made(self) -> float:
        """Absolute time of the last events; ``-inf`` before the first."""
        return self._last_made

    @property
    def owed_since(self) -> float | None:
        """Since when something is owed; None while the engine may be silent."""
        return self._owed_since

    @property
    def hang_extension(self) -> float:
        """The latest deadline of a pending call, absolute; ``-inf`` without one."""
        return self._talk.latest_deadline if self._conversation is not None else float("-inf")

    def watch_owed(self, wake: Callable[[], None]) -> None:
        """Call ``wake`` once: now if something is owed, else as soon as it is."""
        if self._owed_since is None:
            self._owed_watchers.append(wake)
        else:
            wake()

    @property
    def _talk(self) -> Conversation:
        assert self._conversation is not None, "used before its handshake was done"
        return self._conversation

    async def handshake(self, frontend_made: Callable[[], Awaitable[object]] = trio.lowlevel.checkpoint) -> None:
        """Wait for the engine, however long it loads (the caller has the deadline), and then for the front-end.

        Raises ProtocolError.
        """
        machine = self._machine()

        async def handshake_socket() -> None:
            while not machine.ready:
                for frames in await self._handshake_socket.receive():
                    self._last_heard = trio.current_time()
                    if (reply := machine.on_handshake(frames)) is not None:
                        self._handshake_socket.send(reply)
            nursery.cancel_scope.cancel()

        async def input_socket() -> None:
            while not machine.ready:
                for frames in await self._input.receive():
                    machine.on_input(frames)
            nursery.cancel_scope.cancel()

        failures: list[Exception] = []
        async with trio.open_nursery() as nursery:
            for task in (handshake_socket, input_socket):
                nursery.start_soon(_guarded, task, failures, nursery.cancel_scope)
        if failures:
            raise failures[0]
        self._handshake_socket.close()
        await frontend_made()
        self._begin(machine)
        for method in self._frontend().asks:
            self._frontend().answered(method, await self._ask(method))

    def _machine(self) -> Handshake:
        """Where the engine is told to connect."""
        return Handshake(input_address=self._input.address, output_address=self._output.address)

    def _begin(self, machine: Handshake) -> None:
        frontend = self._frontend()
        frontend.engine_ready(machine.response, generation=self._generation)
        meter = frontend.meter(self._where["replica"])
        self._conversation = Conversation(
            frontend.codec(), frontend.processor(meter), frontend.data_missing, self._where, meter
        )
        self._last_heard = trio.current_time()

    async def _ask(self, method: str) -> Any:
        """A call before serving begins; its deadline is the start's. Raises ProtocolError, EngineDead."""
        call = PendingCall(lambda: None, math.inf)
        call_id, frames = self._talk.call(method, (), call)
        self._input.send((ENGINE_IDENTITY, *frames))
        while self._talk.awaits(call_id):
            self._talk.apply(await self._output.receive())
            if self._talk.verdict is not None:
                raise self._talk.verdict
        if call.error is not None:
            raise ProtocolError(call.error.message, **self._where)
        return call.result

    async def serve(self, emit: Emit) -> None:
        """Run until cancelled. Raises EngineDead (``sentinel``), ProtocolError, or what ``emit`` raised."""
        failures: list[Exception] = []

        async def deliver(events: list[Event]) -> None:
            try:
                await emit(events)
            except BaseException:
                self._undelivered += events
                raise

        async with trio.open_nursery() as nursery:
            for task in (
                lambda: self._serve_outputs(deliver),
                self._serve_input,
                self._serve_aborts,
                lambda: self._serve_aside(deliver),
            ):
                nursery.start_soon(_guarded, task, failures, nursery.cancel_scope)
        if failures:
            raise failures[0]

    async def _serve_outputs(self, deliver: Emit) -> None:
        talk, receive = self._talk, self._output.receive
        while True:
            if talk.behind:
                # A schedule point, and cancellable: ``drain`` applies what is left.
                await trio.lowlevel.checkpoint()
                messages: Sequence[Any] = ()
            else:
                messages = await receive()
                self._last_heard = trio.current_time()
            talk.apply(messages, CHUNK)
            self._settle_debt()
            if talk.doomed:
                self._aborts.set()
            if talk.events:
                self._last_made = self._last_heard
                await deliver(talk.take())
            if talk.verdict is not None:
                raise talk.verdict

    async def _serve_input(self) -> None:
        # Nothing comes this way after the handshake; receiving is what sends the queue on.
        while True:
            await self._input.receive()
            raise ProtocolError(f"{self._name}: the engine spoke after its handshake", **self._where)

    async def _serve_aborts(self) -> None:
        # Waits without a deadline: there may never be an abort.
        while True:
            await self._aborts.wait()
            self._aborts = trio.Event()
            for key in self._talk.doomed:
                self._unsend_pieces(key)
            if self._talk.doomed and not all(map(self._send_urgent, self._talk.take_aborts())):
                # Whoever fills the queue is owed an answer as well; when it comes, this is tried again.
                self._talk.unsend_probe()

    async def _serve_aside(self, deliver: Emit) -> None:
        # Waits without a deadline: what happens aside is rare.
        while True:
            await self._aside.wait()
            self._aside = trio.Event()
            if self._talk.events:
                await deliver(self._talk.take())

    def drain(self) -> list[Event]:
        """What serving had not delivered and what had arrived; garbage and what follows it is left out.

        Empty if the handshake was never done.
        """
        talk = self._conversation
        if talk is None:
            return []
        talk.apply(())
        while talk.verdict is None and (messages := self._output.drain()):
            talk.apply(messages)
        events, self._undelivered = self._undelivered + talk.take(), []
        return events

    def submit(self, work: Work) -> None:
        """Send one lease's ADD. A body that cannot be sent becomes one LeaseFailed event."""
        frames = self._talk.add(work)
        if frames is None:
            self._aside.set()
            return
        self._incur_debt()
        try:
            self._input.send((ENGINE_IDENTITY, *frames), tag=work.key)
        except QueueFull as error:
            self._withdraw(work.key, self._full(error))
        except _GONE:
            pass  # the engine is gone: the verdict over its generation fails this lease with the others

    def extend(self, work: Work) -> None:
        """Send the next piece of a live lease's input. Raises InvalidRequest, or EngineRejected for a full queue."""
        frames = self._talk.extend(work)
        if self._talk.doomed:
            self._aborts.set()
        if self._talk.events:
            self._aside.set()
        if self._talk.owes:
            self._incur_debt()
        if frames is None:
            return
        tags = self._pieces.setdefault(work.key, [])
        tags.append(f"{work.key}+{len(tags) + 1}")
        try:
            self._input.send((ENGINE_IDENTITY, *frames), tag=tags[-1])
        except QueueFull as error:
            raise self._full(error) from error
        except _GONE:
            pass  # as for ``submit``

    def _unsend_pieces(self, key: str) -> None:
        """No piece may follow an ABORT: the engine would take it for a new request."""
        for tag in self._pieces.pop(key, ()):
            self._input.unsend(tag)

    def _full(self, error: QueueFull) -> EngineRejected:
        return EngineRejected(f"{self._name}: the engine does not take its work in: {error}", **self._where)

    def abort(self, keys: Iterable[str]) -> None:
        """Doom these leases; each gets one Released. Unknown keys are ignored."""
        for key in self._talk.abort(keys):
            self._unsend_pieces(key)
            if self._input.unsend(key):
                self._withdraw(key)
        if self._talk.doomed:
            self._incur_debt()
            self._aborts.set()

    def _withdraw(self, key: str, error: EngineRejected | None = None) -> None:
        self._talk.withdraw(key, error)
        self._aside.set()
        self._settle_debt()

    async def call(self, method: str, *args: Any, timeout_s: float) -> Any:
        """One utility call. A cancelled or timed-out call is forgotten; its late answer is ignored.

        Raises EngineRejected, InvalidRequest (arguments that the wire cannot carry), ``trio.TooSlowError``, and
        EngineDead if the client is closed meanwhile.
        """
        answered = trio.Event()
        with trio.fail_after(timeout_s) as scope:
            call = PendingCall(answered.set, scope.deadline)
            call_id, frames = self._talk.call(method, args, call)
            self._incur_debt()
            try:
                self._input.send((ENGINE_IDENTITY, *frames))
                await answered.wait()
            except QueueFull as error:
                raise self._full(error) from error
            except _GONE as error:
                raise EngineDead(f"{self._name}: the engine is gone", **self._where) from error
            finally:
                self._talk.forget(call_id)
                self._settle_debt()
        if call.error is not None:
            raise call.error
        return call.result

    def tell(self, method: str, *args: Any) -> None:
        """One call whose answer nobody waits for. Raises InvalidRequest, or EngineRejected for a full queue."""
        frames = self._talk.tell(method, args)
        self._incur_debt()
        try:
            self._input.send((ENGINE_IDENTITY, *frames))
        except QueueFull as error:
            raise self._full(error) from error
        except _GONE:
            pass  # as for ``submit``

    def ping(self) -> None:
        """A probe nobody waits for; none is sent while one is under way."""
        if (frames := self._talk.ping()) is not None:
            self._incur_debt()
            if not self._send_urgent(frames):
                self._talk.unsend_probe()

    def close(self) -> None:
        """Close the sockets and fail the pending calls. Idempotent."""
        for socket in (self._handshake_socket, self._input, self._output):
            socket.close()
        if self._conversation is not None:
            self._conversation.fail_calls(EngineDead(f"{self._name}: the engine is gone", **self._where))
            self._conversation.meter.close()

    def _send_urgent(self, frames: Sequence[Any]) -> bool:
        """False if the queue is full. To an engine that is gone all is sent: the detectors' verdict answers."""
        try:
            with suppress(*_GONE):
                self._input.send((ENGINE_IDENTITY, *frames), urgent=True)
        except QueueFull:
            return False
        return True

    def _incur_debt(self) -> None:
        if self._owed_since is None:
            self._owed_since = trio.current_time()
            watchers, self._owed_watchers = self._owed_watchers, []
            for wake in watchers:
                wake()

    def _settle_debt(self) -> None:
        if self._owed_since is not None and not self._talk.owes:
            self._owed_since = None


async def _guarded(task: Callable[[], Awaitable[None]], failures: list[Exception], scope: trio.CancelScope) -> None:
    """Run one of several tasks; the first failure ends them all and leaves as itself, not in a group."""
    try:
        await task()
    except Exception as error:
        failures.append(error)
        scope.cancel()
