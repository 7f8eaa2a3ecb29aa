"""The I/O thread of a GenerationEngine: owns the DEALER socket and the engine's side of the wire's state tables.

It answers Pings and sends Heartbeats while the working thread is inside the hosted class, so that a frozen process
and a stuck class look different to the host. It acts on Stop and on SIGTERM at once, whatever the working thread does.
With nothing owed it blocks without a timeout: an idle engine is silent and uses no CPU.

Two things wake it: an eventfd (there is something to send) and a socketpair into which the interpreter writes the
numbers of signals, even while the working thread is inside C code.
"""

from __future__ import annotations

import math
import os
import queue
import signal
import socket
import sys
import threading
import time
import traceback
from collections import deque
from typing import TYPE_CHECKING

import zmq

from omni_actors._errors import ProtocolError
from omni_actors.wire import omni as wire
from omni_actors.wire.omni import State

if TYPE_CHECKING:
    from omni_actors.engines._batcher import Inward, Status

__all__ = ["EngineIO"]

HEARTBEAT_S = 1.0
_LINGER_MS = 200
_HIGH_WATER = 10_000
_MAX_FRAME_BYTES = 1 << 30
_OUTBOX = 256  # how many chunks the working thread may be ahead of the socket before it waits

_Outbound = tuple[wire.Message, list[wire.Frame]]


class EngineIO:
    """The I/O thread and what the working thread does with it: ``post``, ``inbox``."""

    def __init__(self, address: str, identity: str, status: Status) -> None:
        self.inbox: queue.SimpleQueue[Inward] = queue.SimpleQueue()
        self._status = status
        self._side = wire.EngineSide()
        self._outbox: deque[_Outbound] = deque()
        self._answers: deque[_Outbound] = deque()
        self._room = threading.Semaphore(_OUTBOX)
        self._next_beat = 0.0
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._signals, self._signals_in = socket.socketpair()
        self._signals_in.setblocking(False)
        self._context = zmq.Context()
        self._dealer = self._connect(address, identity)
        self._poller = zmq.Poller()
        for source in (self._wake_fd, self._signals.fileno()):
            self._poller.register(source, zmq.POLLIN)

    def _connect(self, address: str, identity: str) -> zmq.Socket[bytes]:
        dealer = self._context.socket(zmq.DEALER)
        dealer.set(zmq.IDENTITY, identity.encode())
        dealer.set(zmq.SNDHWM, _HIGH_WATER)
        dealer.set(zmq.RCVHWM, _HIGH_WATER)
        dealer.set(zmq.MAXMSGSIZE, _MAX_FRAME_BYTES)
        dealer.set(zmq.LINGER, _LINGER_MS)
        dealer.connect(address)
        return dealer

    def start(self) -> None:
        """Take over SIGTERM and SIGINT and start the thread. Called once, from the main thread."""
        signal.set_wakeup_fd(self._signals_in.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT):
            # The number written to the wake-up descriptor is what counts; Python only writes it if a handler is there.
            signal.signal(number, lambda *_: None)
        hello = wire.Hello(pid=os.getpid())
        self._answers.append((hello, wire.encode(hello)))
        threading.Thread(target=self._run, name="omni-io", daemon=True).start()

    def post(self, message: wire.Message, frames: list[wire.Frame]) -> None:
        """Send a message, from the working thread. Waits while the outbox is full: a Stop ends the process anyway."""
        self._room.acquire()
        self._outbox.append((message, frames))
        os.eventfd_write(self._wake_fd, 1)

    # -- below: the I/O thread alone

    def _run(self) -> None:
        try:
            while self._side.state is not State.STOPPING:
                self._turn()
            self._finish()
        except ProtocolError as error:
            print(f"omni stage wire: {error.message}", file=sys.stderr, flush=True)
            os._exit(1)
        except BaseException:
            # A thread's error would leave a process that looks alive to the lifeline and is deaf to its host.
            traceback.print_exc(file=sys.stderr)
            os._exit(1)

    def _turn(self) -> None:
        blocked = not self._transmit()
        self._poller.register(self._dealer, zmq.POLLIN | (zmq.POLLOUT if blocked else 0))
        ready = dict(self._poller.poll(self._timeout_ms()))
        if self._wake_fd in ready:
            os.eventfd_read(self._wake_fd)
        if self._signals.fileno() in ready:
            self._side.stop()
        if self._dealer in ready:
            self._receive()
        self._beat()

    def _timeout_ms(self) -> int | None:
        if not self._side.owed:
            return None
        # Rounded up: a wake-up just before the beat would spin until it.
        return math.ceil(max(0.0, self._next_beat - time.monotonic()) * 1000)

    def _receive(self) -> None:
        while self._side.state is not State.STOPPING:
            try:
                frames = self._dealer.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            self._hear(wire.decode([frame.buffer for frame in frames]))

    def _hear(self, message: wire.Message) -> None:
        if not self._side.owed:
            self._next_beat = time.monotonic() + HEARTBEAT_S
        self._side.receive(message)
        if isinstance(message, wire.Ping):
            self._answer(message.id)
        elif isinstance(message, wire.Submit | wire.Abort | wire.Call):
            self.inbox.put(message)

    def _beat(self) -> None:
        if self._side.owed and time.monotonic() >= self._next_beat:
            self._next_beat = time.monotonic() + HEARTBEAT_S
            self._answer(0)

    def _answer(self, ping: int) -> None:
        since = self._status.busy_since
        beat = wire.Heartbeat(None if since is None else time.monotonic() - since, self._status.made, ping)
        self._answers.append((beat, wire.encode(beat)))

    def _transmit(self) -> bool:
        """Send what there is. False if the socket takes no more."""
        while self._answers:
            if not self._send(*self._answers[0]):
                return False
            self._answers.popleft()
        while self._outbox:
            message, frames = self._outbox[0]
            if self._side.state is State.HELLO:
                return True  # Ready was made before the host answered our Hello; its answer wakes us
            if not self._side.overtaken(message) and not self._send(message, frames):
                return False
            self._outbox.popleft()
            self._room.release()
        return True

    def _send(self, message: wire.Message, frames: list[wire.Frame]) -> bool:
        try:
            self._dealer.send_multipart(frames, zmq.NOBLOCK, copy=True)
        except zmq.Again:
            return False
        self._side.send(message)
        return True

    def _finish(self) -> None:
        """Finish nothing, end every lease, leave at once: the working thread may be anywhere and is not waited for."""
        for end in self._side.ends():
            if not self._send(end, wire.encode(end)):
                break
        self._dealer.close()
        self._context.term()
        os._exit(0)
