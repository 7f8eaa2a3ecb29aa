"""The shell of a fake engine that is a real process: its signals, its workers, its end. One for every kind of fake."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

import trio

from omni_actors.testing._exit import Exit
from omni_actors.transport import ZmqTransport

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from omni_actors.transport import Transport

__all__ = ["run_fake"]

_WORKER = (sys.executable, "-I", "-S", "-c", "import signal; signal.pause()")


class _Behaviour(Protocol):
    @property
    def stderr(self) -> str: ...

    @property
    def ignore_sigterm(self) -> bool: ...


class _Fake(Protocol):
    async def run(self) -> Any: ...

    def stop(self) -> Any: ...


class _Fleet:
    """Workers as a real engine has them: processes of its group, and shared memory that only a resource tracker
    unlinks. They are nobody's to end but the host's: whatever ends the engine leaves them behind.
    """

    def __init__(self, count: int) -> None:
        self._workers = [subprocess.Popen(_WORKER, stdin=subprocess.DEVNULL) for _ in range(count)]
        if count:
            from multiprocessing import resource_tracker
            from multiprocessing.shared_memory import SharedMemory

            # Else it is started after the block is made, and whoever is killed in between leaves a name nobody knows.
            resource_tracker.ensure_running()
            self._block = SharedMemory(create=True, size=4096)

    async def lose_one(self) -> None:
        """Return when the first of them has ended. Without a deadline: the engine lives as long as they do."""
        async with trio.open_nursery() as nursery:
            for worker in self._workers:
                nursery.start_soon(self._watch, worker.pid, nursery.cancel_scope)

    async def _watch(self, pid: int, scope: trio.CancelScope) -> None:
        fd = os.pidfd_open(pid)
        try:
            await trio.lowlevel.wait_readable(fd)
        finally:
            os.close(fd)
        scope.cancel()


def run_fake(
    behaviour: _Behaviour, make: Callable[[Transport], _Fake], *, linger_s: float = 0.0, workers: int = 0
) -> NoReturn:
    """Run a fake until it ends as its behaviour says, and end the process so: with a code, or by a signal.

    ``linger_s``: how long its last words may take to leave. It is made inside the trio run, on a ZeroMQ transport.
    ``workers``: how many it has; its ``lose_worker`` is called when one ends. A ``MemoryError`` ends it with code 1.
    """
    if behaviour.stderr:
        print(behaviour.stderr, file=sys.stderr, flush=True)
    code = trio.run(_run, behaviour, make, linger_s, _Fleet(workers) if workers else None)
    if code < 0:
        os.kill(os.getpid(), -code)
    os._exit(code)


async def _run(behaviour: _Behaviour, make: Callable[[Transport], _Fake], linger_s: float, fleet: _Fleet | None) -> int:
    transport = ZmqTransport(linger_s=linger_s)
    fake = make(transport)
    code = 0
    async with trio.open_nursery() as nursery:
        await nursery.start(_terminate, fake, behaviour)
        if fleet is not None:
            nursery.start_soon(_mourn, fleet, fake)
        try:
            await fake.run()
        except Exit as end:
            code = end.code
        nursery.cancel_scope.cancel()
    if code >= 0:
        transport.close()
    return code


async def _mourn(fleet: _Fleet, fake: Any) -> None:
    await fleet.lose_one()
    mourn: Callable[[], Awaitable[None]] = fake.lose_worker
    await mourn()


async def _terminate(
    fake: _Fake, behaviour: _Behaviour, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    with trio.open_signal_receiver(signal.SIGTERM) as signals:
        task_status.started()
        async for _ in signals:
            if not behaviour.ignore_sigterm:
                fake.stop()
