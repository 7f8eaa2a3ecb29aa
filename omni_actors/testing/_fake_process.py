"""The shell of a fake engine that is a real process: its payload, its signals, its end. One for every kind of fake."""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

import trio

from omni_actors.testing._launcher import Exit
from omni_actors.transport import ZmqTransport

if TYPE_CHECKING:
    from collections.abc import Callable

    from omni_actors.transport import Transport

__all__ = ["run_fake"]


class _Behaviour(Protocol):
    @property
    def stderr(self) -> str: ...

    @property
    def ignore_sigterm(self) -> bool: ...


class _Fake(Protocol):
    async def run(self) -> Any: ...

    def stop(self) -> Any: ...


def run_fake(behaviour: _Behaviour, make: Callable[[Transport], _Fake], *, linger_s: float = 0.0) -> NoReturn:
    """Run a fake until it ends as its behaviour says, and end the process so: with a code, or by a signal.

    ``linger_s``: how long its last words may take to leave. It is made inside the trio run, on a ZeroMQ transport.
    """
    if behaviour.stderr:
        print(behaviour.stderr, file=sys.stderr, flush=True)
    code = trio.run(_run, behaviour, make, linger_s)
    if code < 0:
        os.kill(os.getpid(), -code)
    os._exit(code)


async def _run(behaviour: _Behaviour, make: Callable[[Transport], _Fake], linger_s: float) -> int:
    transport = ZmqTransport(linger_s=linger_s)
    fake = make(transport)
    code = 0
    async with trio.open_nursery() as nursery:
        await nursery.start(_terminate, fake, behaviour)
        try:
            await fake.run()
        except Exit as end:
            code = end.code
        nursery.cancel_scope.cancel()
    if code >= 0:
        transport.close()
    return code


async def _terminate(
    fake: _Fake, behaviour: _Behaviour, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    with trio.open_signal_receiver(signal.SIGTERM) as signals:
        task_status.started()
        async for _ in signals:
            if not behaviour.ignore_sigterm:
                fake.stop()
