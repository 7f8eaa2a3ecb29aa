"""The launcher's in-memory twin: a "process" is a trio task that runs an engine function over the memory transport.

Nothing here touches the operating system, so a simulation on a virtual clock can start, signal, freeze and kill
engines at any step. A process ends as a real one does: by returning (0), by ``Exit(code)``, by an exception (1, with
the traceback as its last words), by a signal (negative). After its end its sockets are closed, whatever it did.
"""

from __future__ import annotations

import signal
import traceback
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
import trio

from omni_actors._errors import StartupFailed
from omni_actors.stages._shield import bounded_shield, open_service_nursery

from ._exit import Exit

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from omni_actors.stages._interface import Launch
    from omni_actors.transport import Socket, Transport

__all__ = ["Engine", "Exit", "MemoryLauncher", "MemoryProcess", "current_process", "open_memory_launcher"]

Engine = Callable[["Launch", dict[str, Any], "Transport"], Awaitable[None]]
"""``engine(launch, payload, transport)`` lives until it returns or is cancelled. ``payload``: the launch's, decoded."""

_FIRST_PID = 1000
_TAIL = 20


class _Starter(Protocol):
    def start_soon(self, function: Callable[..., Awaitable[Any]], *args: Any) -> None: ...


_current: ContextVar[MemoryProcess] = ContextVar("omni_actors_memory_process")


def current_process() -> MemoryProcess:
    """The process that the calling engine runs in. Raises LookupError outside of one."""
    return _current.get()


Observe = Callable[[str, "MemoryProcess", int | None, str], None]
"""``observe(what, process, code, key)``: spawned, signalled (``code``: the signal), exited (``code``: as in ``wait``);
or what an engine notes of its work on a lease (``key``).
"""


@asynccontextmanager
async def open_memory_launcher(
    engines: Mapping[str, Engine], transport: Transport, observe: Observe | None = None
) -> AsyncIterator[MemoryLauncher]:
    """A launcher whose processes, like real ones, outlive the cancellation of the body, but not the body."""
    async with open_service_nursery() as services:
        yield MemoryLauncher(services, engines, transport, observe)


def _unobserved(what: str, process: MemoryProcess, code: int | None, key: str) -> None:
    """Nobody looks."""


class MemoryLauncher:
    """Starts engines as tasks of ``nursery``. The simulation's ``Launcher``.

    ``engines`` are found by the stage's name, else by any word of ``argv`` (a program, a module). ``spawned`` has every
    process there ever was, in order.
    """

    def __init__(
        self, nursery: _Starter, engines: Mapping[str, Engine], transport: Transport, observe: Observe | None = None
    ) -> None:
        self._nursery = nursery
        self._engines = engines
        self._transport = transport
        self._observe = observe or _unobserved
        self.spawned: list[MemoryProcess] = []

    @property
    def processes(self) -> list[MemoryProcess]:
        """Those that live."""
        return [process for process in self.spawned if process.returncode is None]

    def find(self, stage: str, replica: int = 0) -> MemoryProcess:
        """The newest process of a replica. Raises LookupError if there was none."""
        for process in reversed(self.spawned):
            if (process.launch.stage, process.launch.replica) == (stage, replica):
                return process
        raise LookupError(f"{stage}/{replica} was never spawned")

    async def spawn(self, launch: Launch) -> MemoryProcess:
        """Start the engine. Raises StartupFailed if there is none for this launch."""
        await trio.lowlevel.checkpoint()
        where: dict[str, Any] = {"stage": launch.stage, "replica": launch.replica, "generation": launch.generation}
        engine = next((self._engines[name] for name in (launch.stage, *launch.argv) if name in self._engines), None)
        if engine is None:
            raise StartupFailed(f"{launch.name}: cannot start {launch.argv[0]}: no such program", **where)
        process = MemoryProcess(_FIRST_PID + len(self.spawned), launch, self._transport, self._observe)
        self.spawned.append(process)
        self._observe("spawned", process, None, "")
        self._nursery.start_soon(process._run, engine)
        return process


class MemoryProcess:
    """One engine's task, seen as a process. The simulation's ``Process``, with the signals that tests send."""

    def __init__(self, pid: int, launch: Launch, transport: Transport, observe: Observe = _unobserved) -> None:
        self.launch = launch
        self._observe = observe
        self.stopped = False
        self._term_pending = False
        self._pid = pid
        self._sockets = _Sockets(transport)
        self._scope = trio.CancelScope()
        self._code: int | None = None
        self._fate: int | None = None
        self._exited = trio.Event()
        self._stderr: deque[str] = deque(maxlen=_TAIL)
        self._on_terminate: Callable[[], object] | None = None

    # ------------------------------------------------------------------ for the runtime: Process

    @property
    def pid(self) -> int:
        return self._pid

    @property
    def returncode(self) -> int | None:
        """None while it lives."""
        return self._code

    async def wait(self) -> int:
        """The return code (negative: signal). Any number of waiters; cancellable. No deadline: the caller has one."""
        await self._exited.wait()
        assert self._code is not None
        return self._code

    def terminate(self) -> None:
        """SIGTERM. Harmless when it is gone."""
        self.kill(signal.SIGTERM)

    async def destroy(self, kill_s: float) -> Sequence[int]:
        """SIGKILL and wait. Shielded, bounded by ``kill_s``. Returns its pid if the engine does not let go, else ()."""
        self.kill(signal.SIGKILL)
        with bounded_shield(trio.current_time() + kill_s):
            await self._exited.wait()
        return () if self._code is not None else (self._pid,)

    def tail(self) -> tuple[str, ...]:
        """The last 20 lines it said."""
        return tuple(self._stderr)

    # ------------------------------------------------------------------ for tests

    def kill(self, signum: int) -> None:
        """Send a signal: KILL, TERM (deferred while stopped, as ever), STOP, CONT. Harmless when it is gone."""
        if self._code is not None:
            return
        self._observe("signalled", self, signum, "")
        if signum == signal.SIGSTOP:
            self._freeze()
        elif signum == signal.SIGCONT:
            self._thaw()
        elif signum == signal.SIGTERM and self.stopped:
            self._term_pending = True
        elif signum == signal.SIGTERM and self._on_terminate is not None:
            self._handle(self._on_terminate)
        else:
            self._die(-signum)

    def exit(self, code: int) -> None:
        """End as by its own decision. Harmless when it is gone."""
        if self._code is None:
            self._die(code)

    def inject(self, frames: Sequence[bytes]) -> bool:
        """Say something to the host out of turn, on the socket it speaks on. False if it has none yet, or is stopped.

        What it has said before comes first.
        """
        return self._code is None and not self.stopped and self._sockets.inject(frames)

    # ------------------------------------------------------------------ for engines

    def say(self, line: str) -> None:
        """Write one line to its stderr."""
        self._stderr.append(line[:1000])

    def note(self, what: str, key: str) -> None:
        """Tell whoever observes what the engine does with a piece of work: no part of its wire, and no message."""
        self._observe(what, self, None, key)

    def on_terminate(self, handler: Callable[[], object]) -> None:
        """Handle SIGTERM: ``handler`` is called synchronously and may raise ``Exit``. Without one SIGTERM kills."""
        self._on_terminate = handler

    # ------------------------------------------------------------------ inside

    def _freeze(self) -> None:
        if not self.stopped:
            self.stopped = True
            self._sockets.stall()

    def _thaw(self) -> None:
        if self.stopped:
            self.stopped = False
            self._sockets.resume()
            if self._term_pending:
                self._term_pending = False
                self.kill(signal.SIGTERM)

    def _handle(self, handler: Callable[[], object]) -> None:
        try:
            handler()
        except Exception as error:
            self._die(self._code_of(error))

    def _die(self, code: int) -> None:
        if self._fate is None:
            self._fate = code
        self._scope.cancel()

    async def _run(self, engine: Engine) -> None:
        _current.set(self)
        code = -signal.SIGKILL  # what a cancellation from outside amounts to
        try:
            with self._scope:
                payload = msgspec.msgpack.decode(self.launch.payload) if self.launch.payload else {}
                await engine(self.launch, payload, self._sockets)
                code = 0
        except Exception as error:
            code = self._code_of(error)
        finally:
            self._code = code if self._fate is None else self._fate
            self._observe("exited", self, self._code, "")
            # The dead say nothing: what a stopped one had not sent yet is lost.
            self._sockets.end(lost=self.stopped)
            self._exited.set()

    def _code_of(self, error: Exception) -> int:
        for leaf in _leaves(error):
            if isinstance(leaf, Exit):
                return leaf.code
        for line in "".join(traceback.format_exception(error)).splitlines():
            self.say(line)
        return 1


def _leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for inner in error.exceptions for leaf in _leaves(inner)]
    return [error]


class _Sockets:
    """A process's view of the transport: knows what it opened, so that it can be stalled and closed from outside."""

    def __init__(self, transport: Any) -> None:
        self._transport = transport
        self._opened: list[tuple[Socket, str, bytes | None]] = []

    def router(self, name: str) -> Socket:
        return self._add(self._transport.router(name), None)

    def pull(self, name: str) -> Socket:
        return self._add(self._transport.pull(name), None)

    def dealer(self, address: str, identity: bytes) -> Socket:
        return self._add(self._transport.dealer(address, identity), identity)

    def push(self, address: str) -> Socket:
        return self._add(self._transport.push(address), None)

    def close(self) -> None:
        self.end(lost=False)

    def stall(self) -> None:
        for _, address, identity in self._opened:
            self._transport.stall(address, identity)

    def resume(self) -> None:
        for _, address, identity in self._opened:
            self._transport.resume(address, identity)

    def end(self, *, lost: bool) -> None:
        for socket, address, identity in self._opened:
            if lost:
                self._transport.sever(address, identity)
            socket.close()
        self._opened.clear()

    def inject(self, frames: Sequence[bytes]) -> bool:
        if not self._opened:
            return False
        self._opened[-1][0].send(frames)
        return True

    def _add(self, socket: Socket, identity: bytes | None) -> Socket:
        self._opened.append((socket, socket.address, identity))
        return socket
