"""The fake omni engine as a real process: ``python -m omni_actors.testing.fake_omni``.

The payload on stdin has ``address``, ``identity`` and, as ``args``, the fields of ``FakeBehaviour``.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import msgspec
import trio

from omni_actors.engines._lifeline import read_payload
from omni_actors.testing._fake_omni import FakeBehaviour, FakeOmni
from omni_actors.testing._launcher import Exit
from omni_actors.transport import ZmqTransport

__all__ = ["main"]


def main() -> None:
    """Run the fake until it ends as its behaviour says. Does not return."""
    payload = read_payload()
    behaviour = msgspec.convert(payload["args"], FakeBehaviour)
    if behaviour.stderr:
        print(behaviour.stderr, file=sys.stderr, flush=True)
    code = trio.run(_run, behaviour, payload)
    if code < 0:
        os.kill(os.getpid(), -code)
    os._exit(code)


async def _run(behaviour: FakeBehaviour, payload: dict[str, Any]) -> int:
    transport = ZmqTransport()
    fake = FakeOmni(behaviour, payload, transport)
    code = 0
    async with trio.open_nursery() as nursery:
        await nursery.start(_terminate, fake)
        try:
            await fake.run()
        except Exit as end:
            code = end.code
        nursery.cancel_scope.cancel()
    transport.close()
    return code


async def _terminate(fake: FakeOmni, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
    with trio.open_signal_receiver(signal.SIGTERM) as signals:
        task_status.started()
        async for _ in signals:
            if not fake.behaviour.ignore_sigterm:
                fake.stop()


if __name__ == "__main__":
    main()
