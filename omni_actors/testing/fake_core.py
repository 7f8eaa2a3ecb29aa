"""The fake EngineCore as a real process: ``python -m omni_actors.testing.fake_core``.

The payload on stdin has ``handshake`` and, as ``engine_args``, the fields of ``FakeCoreBehaviour``.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import msgspec
import trio

from omni_actors.engines._lifeline import read_payload
from omni_actors.testing._fake_core import FakeCore, FakeCoreBehaviour
from omni_actors.testing._launcher import Exit
from omni_actors.transport import ZmqTransport

__all__ = ["main"]

_LINGER_S = 1.0
"""The real engine's last words also leave before it does."""


def main() -> None:
    """Run the fake until it ends as its behaviour says. Does not return."""
    payload = read_payload()
    behaviour = msgspec.convert(payload["engine_args"], FakeCoreBehaviour)
    if behaviour.stderr:
        print(behaviour.stderr, file=sys.stderr, flush=True)
    code = trio.run(_run, behaviour, payload)
    if code < 0:
        os.kill(os.getpid(), -code)
    os._exit(code)


async def _run(behaviour: FakeCoreBehaviour, payload: dict[str, Any]) -> int:
    transport = ZmqTransport(linger_s=_LINGER_S)
    fake = FakeCore(behaviour, payload["handshake"], transport)
    code = 0
    async with trio.open_nursery() as nursery:
        await nursery.start(_terminate, fake)
        try:
            await fake.run()
        except Exit as end:
            code = end.code
        nursery.cancel_scope.cancel()
    if code >= 0:
        transport.close()
    return code


async def _terminate(fake: FakeCore, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
    with trio.open_signal_receiver(signal.SIGTERM) as signals:
        task_status.started()
        async for _ in signals:
            if not fake.behaviour.ignore_sigterm:
                fake.stop()


if __name__ == "__main__":
    main()
