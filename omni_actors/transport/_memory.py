"""The in-memory twin of ZeroMQ's sockets, for tests and simulations: no descriptor, no thread, no randomness.

Same interface and the same promises: order per peer, bounded pipes behind bounded queues, messages never torn. Where
ZeroMQ leaves room, the twin takes the stricter reading: a ROUTER reaches a peer only after it has received from it,
and a peer's end is known at once. What a peer sent before its end is still delivered; what is sent to it afterwards
is lost (``Unroutable`` on a ROUTER). One transport belongs to one trio run; each pipe is owned by its endpoint.

Faults are data on a pipe: ``stall`` (nothing is delivered, order kept), ``resume``, ``sever`` (what follows is lost).
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Literal

import attrs
import trio

from omni_actors._buggify import chance
from omni_actors._errors import UsageError

from ._addresses import checked_name
from ._frames import as_received
from ._interface import Frame, Message
from ._outbox import Write
from ._socket import FLUSH_BUDGET, OutboundSocket

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["MemorySocket", "MemoryTransport"]

Kind = Literal["ROUTER", "PULL"]


@attrs.define(eq=False)
class _Pipe:
    """One connection. ``heard``: the ROUTER has received from it, so it may answer. ``left``: the connector closed."""

    identity: bytes
    connector: _Connected | None = None
    to_bound: deque[Message] = attrs.field(factory=deque)
    to_connector: deque[Message] = attrs.field(factory=deque)
    heard: bool = False
    left: bool = False
    stalled: bool = False
    severed: bool = False

    def sever(self) -> None:
        """What a stall holds back is lost with the connection."""
        self.severed = True
        if self.stalled:
            self.to_bound.clear()
            self.to_connector.clear()


@attrs.define(eq=False)
class _Endpoint:
    """One address: its bound socket, once there is one, and its pipes. The flags are what new pipes start with."""

    address: str
    kind: Kind
    bound: _Bound | None = None
    pipes: list[_Pipe] = attrs.field(factory=list)
    stalled: bool = False
    severed: bool = False

    def connect(self, identity: bytes) -> _Pipe:
        """A second peer of a live identity is shut out, as with ZeroMQ: all it sends is lost."""
        taken = self.kind == "ROUTER" and self.peer(identity) is not None
        pipe = _Pipe(identity, stalled=self.stalled, severed=self.severed or taken)
        if not taken:
            self.pipes.append(pipe)
        return pipe

    def peer(self, identity: bytes) -> _Pipe | None:
        return next((pipe for pipe in self.pipes if pipe.identity == identity), None)


class MemorySocket(OutboundSocket):
    """One in-memory socket, owned by the task that calls ``receive``. Made by ``MemoryTransport``."""

    _task: trio.lowlevel.Task | None = None

    async def receive(self, limit: int = 64) -> list[Message]:
        """At least one and at most ``limit`` messages; also pumps the outbound queue while it waits.

        One task at a time (``trio.BusyResourceError``). Always a checkpoint; cancellation never loses a message.
        Raises ``trio.ClosedResourceError`` when the socket is closed.
        """
        if self._parked:
            raise trio.BusyResourceError(f"another task receives from {self._address}")
        await trio.lowlevel.checkpoint_if_cancelled()
        while True:
            if self._closed:
                raise trio.ClosedResourceError(f"{self._address} is closed")
            moved = self._outbox.flush(self._write, FLUSH_BUDGET)
            batch = self.drain(1 if chance("socket.one") else limit)
            if batch:
                await trio.lowlevel.cancel_shielded_checkpoint()
                if chance("socket.late"):
                    await trio.lowlevel.cancel_shielded_checkpoint()
                return batch
            if moved:
                await trio.lowlevel.checkpoint()  # more may move now; only a look that moved nothing may park
            else:
                await self._park()

    def drain(self, limit: int = 1024) -> list[Message]:
        """What has already arrived, at most ``limit`` messages, without waiting. Empty on a closed socket."""
        batch: list[Message] = []
        while len(batch) < limit and (message := self._take()) is not None:
            batch.append(message)
        return batch

    def close(self) -> None:
        """Idempotent and immediate: what no peer took is dropped; a task in ``receive`` gets ClosedResourceError."""
        if not self._closed:
            self._closed = True
            self._outbox.clear()
            self._detach()
            self._wake()

    async def _park(self) -> None:
        self._task, self._parked = trio.lowlevel.current_task(), True

        def abort(_: object) -> trio.lowlevel.Abort:
            self._task, self._parked = None, False
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)

    def _wake(self) -> None:
        task, self._task, self._parked = self._task, None, False
        if task is not None:
            trio.lowlevel.reschedule(task)

    def _look_up(self) -> None:
        """Nothing: here only a peer makes work for a parked owner, and the peer wakes it."""

    def _room(self) -> None:
        """A peer took something: an owner with messages queued has work."""
        if self._outbox:
            self._wake()

    def _take(self) -> Message | None:
        raise NotImplementedError

    def _detach(self) -> None:
        raise NotImplementedError


class _Bound(MemorySocket):
    """A ROUTER or a PULL: takes from its pipes in turn."""

    def __init__(self, endpoint: _Endpoint, hwm: int, queue_limit: int) -> None:
        routes = endpoint.kind == "ROUTER"
        super().__init__(endpoint.address, routes=routes, sends=routes, queue_limit=queue_limit)
        self._endpoint, self._hwm = endpoint, hwm
        endpoint.bound = self

    def _write(self, frames: Sequence[Frame]) -> Write:
        pipe = self._endpoint.peer(bytes(frames[0]))
        if pipe is None or pipe.connector is None or not pipe.heard or pipe.left or pipe.severed:
            return Write.GONE
        if len(pipe.to_connector) >= self._hwm:
            return Write.FULL
        pipe.to_connector.append([as_received(frame) for frame in frames[1:]])
        pipe.connector._wake()
        return Write.SENT

    def _take(self) -> Message | None:
        pipes = self._endpoint.pipes
        pipe = next((pipe for pipe in pipes if pipe.to_bound and not pipe.stalled), None)
        if pipe is None:
            return None
        message = pipe.to_bound.popleft()
        pipes.remove(pipe)
        if pipe.to_bound or not pipe.left:
            pipes.append(pipe)
        pipe.heard = True
        if pipe.connector is not None:
            pipe.connector._room()
        return [pipe.identity, *message] if self._routes else message

    def _detach(self) -> None:
        """Peers may still read what was sent to them; the rest vanishes."""
        for pipe in self._endpoint.pipes:
            pipe.severed = True
            pipe.to_bound.clear()
            if pipe.connector is not None:
                pipe.connector._room()
        self._endpoint.severed = True


class _Connected(MemorySocket):
    """A DEALER or a PUSH: one pipe."""

    def __init__(self, endpoint: _Endpoint, identity: bytes, hwm: int, queue_limit: int) -> None:
        super().__init__(endpoint.address, routes=False, sends=True, queue_limit=queue_limit)
        self._endpoint, self._hwm = endpoint, hwm
        self._pipe = endpoint.connect(identity)
        self._pipe.connector = self

    def _write(self, frames: Sequence[Frame]) -> Write:
        pipe = self._pipe
        if pipe.severed:
            return Write.SENT  # ZeroMQ does not tell a connecting side either
        if len(pipe.to_bound) >= self._hwm:
            return Write.FULL
        pipe.to_bound.append([as_received(frame) for frame in frames])
        if self._endpoint.bound is not None:
            self._endpoint.bound._wake()
        return Write.SENT

    def _take(self) -> Message | None:
        pipe = self._pipe
        if pipe.stalled or not pipe.to_connector:
            return None
        message = pipe.to_connector.popleft()
        if self._endpoint.bound is not None:
            self._endpoint.bound._room()
        return message

    def _detach(self) -> None:
        pipe = self._pipe
        pipe.left = True
        pipe.to_connector.clear()
        if not pipe.to_bound and pipe in self._endpoint.pipes:
            self._endpoint.pipes.remove(pipe)
        if self._endpoint.bound is not None:
            self._endpoint.bound._room()


class MemoryTransport:
    """Makes in-memory sockets at ``mem://name`` and closes them. ``hwm`` and ``queue_limit`` as in ``ZmqTransport``.

    ``peer_queue_limit``: the connected sockets' queue, where it is not as long as the bound ones'.
    """

    def __init__(self, *, hwm: int = 10_000, queue_limit: int = 10_000, peer_queue_limit: int | None = None) -> None:
        self._hwm, self._queue_limit = hwm, queue_limit
        self._peer_queue_limit = queue_limit if peer_queue_limit is None else peer_queue_limit
        self._endpoints: dict[str, _Endpoint] = {}
        self._sockets: list[MemorySocket] = []
        self._closed = False

    def router(self, name: str) -> MemorySocket:
        """A bound ROUTER. Raises UsageError for a used or impossible name."""
        return self._bind("ROUTER", name)

    def pull(self, name: str) -> MemorySocket:
        """A bound PULL: receives only. Raises UsageError for a used or impossible name."""
        return self._bind("PULL", name)

    def dealer(self, address: str, identity: bytes) -> MemorySocket:
        """A DEALER connected to a ROUTER's address, which need not be bound yet."""
        return self._connect("ROUTER", address, identity)

    def push(self, address: str) -> MemorySocket:
        """A PUSH connected to a PULL's address, which need not be bound yet: sends only."""
        return self._connect("PULL", address, b"")

    @property
    def open_sockets(self) -> int:
        """How many of its sockets are not closed."""
        return sum(not socket._closed for socket in self._sockets)

    def close(self) -> None:
        """Close every socket. Idempotent."""
        self._closed = True
        for socket in self._sockets:
            socket.close()
        self._sockets.clear()

    def stall(self, address: str, identity: bytes | None = None) -> None:
        """Deliver nothing to or from this address (or one peer of it) until ``resume``. What is sent waits in order."""
        for target in self._targets(address, identity):
            target.stalled = True

    def resume(self, address: str, identity: bytes | None = None) -> None:
        """End a stall: what waited is delivered, in order."""
        for target in self._targets(address, identity):
            target.stalled = False
        self._wake_all(address)

    def sever(self, address: str, identity: bytes | None = None) -> None:
        """Cut the connections of this address (or of one peer), for good: all that follows is lost.

        What has arrived stays readable; what a stall held back is lost. A ROUTER's sends become Unroutable, a
        connected socket's vanish.
        """
        for target in self._targets(address, identity):
            if isinstance(target, _Pipe):
                target.sever()
            else:
                target.severed = True
        self._wake_all(address)

    def _targets(self, address: str, identity: bytes | None) -> Iterator[_Endpoint | _Pipe]:
        endpoint = self._endpoints.get(address)
        if endpoint is None:
            raise UsageError(f"{address}: no such address")
        if identity is None:
            yield endpoint
        yield from (pipe for pipe in endpoint.pipes if identity in (None, pipe.identity))

    def _wake_all(self, address: str) -> None:
        """Both ends look at their pipes again; a needless wake-up is harmless."""
        endpoint = self._endpoints[address]
        for socket in (endpoint.bound, *(pipe.connector for pipe in endpoint.pipes)):
            if socket is not None:
                socket._wake()

    def _endpoint(self, kind: Kind, address: str) -> _Endpoint:
        if self._closed:
            raise UsageError("the transport is closed")
        if not address.startswith("mem://"):
            raise UsageError(f"{address}: only mem:// addresses are known")
        endpoint = self._endpoints.setdefault(address, _Endpoint(address, kind))
        if endpoint.kind != kind:
            raise UsageError(f"{address} is a {endpoint.kind}'s, not a {kind}'s")
        return endpoint

    def _bind(self, kind: Kind, name: str) -> MemorySocket:
        endpoint = self._endpoint(kind, f"mem://{checked_name(name)}")
        if endpoint.bound is not None:
            raise UsageError(f"the socket name {name!r} is already used")
        return self._opened(_Bound(endpoint, self._hwm, self._queue_limit))

    def _connect(self, kind: Kind, address: str, identity: bytes) -> MemorySocket:
        endpoint = self._endpoint(kind, address)
        return self._opened(_Connected(endpoint, identity, self._hwm, self._peer_queue_limit))

    def _opened(self, socket: MemorySocket) -> MemorySocket:
        self._sockets = [other for other in self._sockets if not other._closed]
        self._sockets.append(socket)
        return socket
