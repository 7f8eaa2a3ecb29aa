"""ZeroMQ sockets on trio, one owner task each, driven by the edge-signalled descriptor of libzmq.

The descriptor (``ZMQ_FD``) says "a command has arrived in the socket's mailbox", and *any* call on the socket may
swallow that signal, also a failed one, also reading ``EVENTS``. What keeps a wake-up from being lost:

1. The owner waits only after ``recv`` said EAGAIN: that call has emptied the mailbox, so the next change must signal.
2. A call made since then for the other direction may have eaten the signal. So ``send`` reads ``EVENTS`` while the
   owner is parked, and the owner reads ``EVENTS`` itself before it parks with messages still queued.
3. ``EVENTS`` of a ROUTER says POLLOUT when *any* peer has room. If the peer that we wait for has none and another
   has, its room may go unannounced once in a blue moon: that one wait, and no other, is also bounded in time.
4. Only readability is waited for; room to send is announced the same way. Nothing wakes up periodically.
5. A ``receive`` that did not wait ends with a checkpoint, shielded because messages are in hand: cancellation loses
   none, a flood starves nobody.

Every socket has finite high-water marks (per peer), a largest frame (libzmq drops the connection of a peer that
exceeds it), and a linger of 0 unless asked otherwise. ROUTERs are mandatory and never hand an identity over.
"""

from __future__ import annotations

import contextlib
import math
import os
from typing import TYPE_CHECKING, Any

import trio
import zmq

from omni_actors._errors import ConfigError, UsageError

from ._addresses import CurveKeys, ipc_address, require_private
from ._frames import LARGE, is_large
from ._outbox import Write
from ._socket import FLUSH_BUDGET, OutboundSocket

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from ._interface import Frame, Message

__all__ = ["ZmqSocket", "ZmqTransport"]

_NOBLOCK, _MORE, _EVENTS = int(zmq.NOBLOCK), int(zmq.NOBLOCK | zmq.SNDMORE), int(zmq.EVENTS)
_POLLIN, _POLLOUT = int(zmq.POLLIN), int(zmq.POLLOUT)

_RECHECK_S = 0.05
"""Rule 3: how long a full peer's room may stay unnoticed, in a window of microseconds, beside a peer with room."""


class ZmqSocket(OutboundSocket):
    """One ZeroMQ socket, owned by the task that calls ``receive``. Made by ``ZmqTransport``."""

    def __init__(self, sock: zmq.Socket[bytes], address: str, *, bound: bool, queue_limit: int) -> None:
        kind = sock.type
        super().__init__(address, routes=kind == zmq.ROUTER, sends=kind != zmq.PULL, queue_limit=queue_limit)
        self._sock = sock
        self._path = address.removeprefix("ipc://") if bound and address.startswith("ipc://") else None
        self._fd = int(sock.getsockopt(zmq.FD))
        # The plain methods of the C extension: pyzmq's own layer costs 0.35 µs per frame, as much as the call.
        plain: Any = super(zmq.Socket, sock)
        self._send_frame, self._recv_frame, self._get = plain.send, plain.recv, plain.get
        self._receives = kind != zmq.PUSH
        self._dry = False  # the last call on the socket was a recv that found nothing: parking is safe

    async def receive(self, limit: int = 64) -> list[Message]:
        """At least one and at most ``limit`` messages; also pumps the outbound queue while it waits.

        One task at a time (``trio.BusyResourceError``). Always a checkpoint; cancellation never loses a message.
        Frames of 64 KiB and more come as views of libzmq's buffer, smaller ones as bytes. Queued messages to a peer
        that turns out to be gone are dropped. On a PUSH socket this only pumps, until cancelled.
        Raises ``trio.ClosedResourceError`` when the socket is closed.
        """
        if self._parked:
            raise trio.BusyResourceError(f"another task receives from {self._address}")
        await trio.lowlevel.checkpoint_if_cancelled()
        full_twice = passed = False
        while True:
            if self._closed:
                raise trio.ClosedResourceError(f"{self._address} is closed")
            moved = bool(self._outbox) and self._outbox.flush(self._write, FLUSH_BUDGET)
            batch = [] if self._dry else self._take(limit)
            if batch:
                if not passed:
                    await trio.lowlevel.cancel_shielded_checkpoint()
                return batch
            passed = True  # every way from here to the next look is a checkpoint
            if not self._outbox:
                await self._park(math.inf)
                continue
            events = self._get(_EVENTS)
            if moved or events & _POLLIN or (events & _POLLOUT and not full_twice):
                full_twice = not moved and not events & _POLLIN
                await trio.lowlevel.checkpoint()
                continue
            await self._park(_RECHECK_S if events & _POLLOUT else math.inf)
            full_twice = False

    def drain(self, limit: int = 1024) -> list[Message]:
        """What has already arrived, at most ``limit`` messages, without waiting. Empty on a closed socket."""
        if self._closed:
            return []
        batch = self._take(limit)
        if self._parked:
            self._look_up()
        return batch

    def close(self) -> None:
        """Idempotent and immediate: what was not sent is dropped; a task in ``receive`` gets ClosedResourceError."""
        if self._closed:
            return
        self._closed = True
        self._outbox.clear()
        self._wake()
        self._sock.close()
        if self._path is not None:
            with contextlib.suppress(OSError):  # libzmq leaves its file; somebody may have removed it with its folder
                os.unlink(self._path)

    @trio.lowlevel.enable_ki_protection  # a KeyboardInterrupt between two frames would tear the message
    def _write(self, frames: Sequence[Frame]) -> Write:
        self._dry = False
        send = self._send_frame
        try:
            for frame in frames[:-1]:
                send(frame, _MORE, not is_large(frame))
            send(frames[-1], _NOBLOCK, not is_large(frames[-1]))
        except zmq.Again:
            return Write.FULL
        except zmq.ZMQError as error:
            if error.errno == zmq.EHOSTUNREACH:
                return Write.GONE
            raise
        return Write.SENT

    @trio.lowlevel.enable_ki_protection
    def _take(self, limit: int) -> list[Message]:
        """Up to ``limit`` messages that are here. As frames: asking each for RCVMORE instead costs more than a copy."""
        batch: list[Message] = []
        if not self._receives:
            self._get(_EVENTS)  # a PUSH can't recv; this empties the mailbox too, else the descriptor stays readable
            return batch
        self._dry = False
        recv = self._recv_frame
        try:
            while len(batch) < limit:
                frame = recv(_NOBLOCK, False)
                message = [frame.bytes if len(frame) < LARGE else frame.buffer]
                while frame.more:
                    frame = recv(_NOBLOCK, False)
                    message.append(frame.bytes if len(frame) < LARGE else frame.buffer)
                batch.append(message)
        except zmq.Again:
            self._dry = True
        return batch

    async def _park(self, timeout_s: float) -> None:
        self._parked = True
        try:
            if timeout_s == math.inf:
                await trio.lowlevel.wait_readable(self._fd)
            else:
                with trio.move_on_after(timeout_s):
                    await trio.lowlevel.wait_readable(self._fd)
        except trio.ClosedResourceError:
            pass  # woken by _wake: the loop looks what for
        finally:
            self._parked = self._dry = False

    def _wake(self) -> None:
        """Ends the owner's wait. Cheaper than a cancel scope around each wait, which is the hot path."""
        if self._parked:
            self._parked = False
            trio.lowlevel.notify_closing(self._fd)

    def _look_up(self) -> None:
        """Rule 2. A PUSH that has nothing queued needs no look: there is nothing to wake up for."""
        if not self._receives and not self._outbox:
            return
        events = self._get(_EVENTS)
        if events & _POLLIN or (events & _POLLOUT and self._outbox):
            self._wake()


class ZmqTransport:
    """Makes ZeroMQ sockets and closes them. Not thread-safe: one transport and its sockets belong to one trio run.

    ``folder`` is where ``router`` and ``pull`` bind their Unix sockets (see ``RunFolder``); with ``host`` they bind TCP
    ports of that address instead. A transport with neither only connects. ``hwm`` counts messages per peer and
    direction, ``queue_limit`` messages per socket that no peer took yet. ``linger_s`` bounds how long ``close`` waits
    for sent messages to leave; the default drops them. A given ``context`` stays the caller's to terminate.
    """

    def __init__(
        self,
        folder: Path | None = None,
        *,
        host: str | None = None,
        curve: CurveKeys | None = None,
        context: zmq.Context[zmq.Socket[bytes]] | None = None,
        hwm: int = 10_000,
        queue_limit: int = 10_000,
        max_frame_bytes: int = 1 << 30,
        linger_s: float = 0.0,
    ) -> None:
        self._folder, self._host, self._curve = folder, host, curve
        self._owns_context = context is None
        self._context = zmq.Context() if context is None else context
        self._hwm, self._queue_limit = hwm, queue_limit
        self._max_frame_bytes, self._linger_ms = max_frame_bytes, round(linger_s * 1000)
        self._sockets: list[ZmqSocket] = []
        self._names: set[str] = set()
        self._closed = False

    def router(self, name: str) -> ZmqSocket:
        """A bound ROUTER. Messages carry the peer's identity as first frame.

        A name is used once: libzmq would take the path from the socket that has it. Raises UsageError for a used or
        impossible name, ConfigError if the path is too long, can not be made, or would be public without keys.
        """
        return self._bind(zmq.ROUTER, name)

    def pull(self, name: str) -> ZmqSocket:
        """A bound PULL: receives only. Raises like ``router``."""
        return self._bind(zmq.PULL, name)

    def dealer(self, address: str, identity: bytes) -> ZmqSocket:
        """A DEALER connected to a ROUTER's address, which need not be bound yet. Raises ConfigError like ``push``."""
        return self._connect(zmq.DEALER, address, identity)

    def push(self, address: str) -> ZmqSocket:
        """A PUSH connected to a PULL's address. Raises ConfigError for a public address without keys, or no address."""
        return self._connect(zmq.PUSH, address, b"")

    def close(self) -> None:
        """Close every socket and the context, if it is ours. Idempotent; waits at most ``linger_s``."""
        self._closed = True
        for socket in self._sockets:
            socket.close()
        self._sockets.clear()
        if self._owns_context and not self._context.closed:
            self._context.term()

    def _bind(self, kind: int, name: str) -> ZmqSocket:
        address = self._address(name)
        if name in self._names:
            raise UsageError(f"the socket name {name!r} is already used")
        socket = self._open(kind, address, b"", bind=True)
        self._names.add(name)
        return socket

    def _address(self, name: str) -> str:
        if self._host is not None:
            require_private(f"tcp://{self._host}:*", self._curve)
            return f"tcp://{self._host}:*"
        if self._folder is None:
            raise UsageError("this transport has neither a folder nor a host to bind in: it only connects")
        return ipc_address(self._folder, name)

    def _connect(self, kind: int, address: str, identity: bytes) -> ZmqSocket:
        require_private(address, self._curve)
        return self._open(kind, address, identity, bind=False)

    def _open(self, kind: int, address: str, identity: bytes, *, bind: bool) -> ZmqSocket:
        if self._closed:
            raise UsageError("the transport is closed")
        self._sockets = [socket for socket in self._sockets if not socket._closed]
        sock = self._context.socket(kind)
        try:
            self._configure(sock, identity, address, bind=bind)
            (sock.bind if bind else sock.connect)(address)
            endpoint = sock.getsockopt_string(zmq.LAST_ENDPOINT) if bind else address
        except zmq.ZMQError as error:
            sock.close()
            raise ConfigError(f"{address}: {error}", hint=self._hint()) from error
        except BaseException:
            sock.close()
            raise
        socket = ZmqSocket(sock, endpoint, bound=bind, queue_limit=self._queue_limit)
        self._sockets.append(socket)
        return socket

    def _hint(self) -> str | None:
        return f"is {self._folder} a writable folder with space left?" if self._folder else None

    def _configure(self, sock: zmq.Socket[bytes], identity: bytes, address: str, *, bind: bool) -> None:
        """Everything libzmq wants to know before the first bind or connect."""
        sock.linger = self._linger_ms
        sock.sndhwm = sock.rcvhwm = self._hwm
        sock.maxmsgsize = self._max_frame_bytes
        sock.ipv6 = address.startswith("tcp://[")
        if sock.type == zmq.ROUTER:
            sock.router_mandatory, sock.router_handover = True, False
        if identity:
            sock.identity = identity
        if self._curve is not None and address.startswith("tcp://"):
            _apply_curve(sock, self._curve, bind=bind)


def _apply_curve(sock: zmq.Socket[bytes], keys: CurveKeys, *, bind: bool) -> None:
    sock.curve_publickey, sock.curve_secretkey = keys.public, keys.secret
    if bind:
        sock.curve_server = True
        return
    if keys.server is None:
        raise ConfigError("the CURVE keys of a connecting side need the binding side's public key (server)")
    sock.curve_serverkey = keys.server
