"""The fake engine as a real process: the same behaviours, over ZeroMQ and with real exit codes."""

from __future__ import annotations

import contextlib
import os
import signal
import struct
import subprocess
import tempfile
from pathlib import Path

import pytest
import trio

from omni_actors.config.specs import StageSpec
from omni_actors.lifecycle.events import Produced, Released
from omni_actors.testing._omni_kind import FakeOmniKind
from omni_actors.transport import ZmqTransport

pytestmark = pytest.mark.process

KIND = FakeOmniKind()
DEADLINE_S = 30


def spawn(launch):
    process = subprocess.Popen(
        launch.argv, stdin=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, **launch.env}, process_group=0
    )
    process.stdin.write(struct.pack("<Q", len(launch.payload)) + launch.payload)
    process.stdin.flush()
    return process


@contextlib.asynccontextmanager
async def fake(**told):
    """(client, a channel of its events, process, a submit function), once the engine is ready."""
    spec = StageSpec(name="f", engine="fake", engine_args=told)
    KIND.check(spec)
    send, receive = trio.open_memory_channel(1000)

    async def emit(batch):
        for event in batch:
            await send.send(event)

    def submit(key, prompt):
        (work,) = KIND.frontend(spec).prepare([key], prompt, None, stream=True, text=False)
        client.submit(work)

    with tempfile.TemporaryDirectory(prefix="oa-") as folder:
        transport = ZmqTransport(Path(folder))
        client = KIND.client(spec, lambda: KIND.frontend(spec), transport, replica=0, generation=1)
        process = spawn(KIND.launch(spec, client.addresses, replica=0, generation=1))
        try:
            with trio.fail_after(DEADLINE_S):
                async with trio.open_nursery() as nursery:
                    await client.handshake()
                    nursery.start_soon(client.serve, emit)
                    yield client, receive, process, submit
                    nursery.cancel_scope.cancel()
        finally:
            client.close()
            transport.close()
            process.kill()
            process.stdin.close()
            process.stderr.close()
            process.wait()


def exited(process):
    return trio.to_thread.run_sync(process.wait, DEADLINE_S, abandon_on_cancel=True)


async def test_it_echoes_and_ends_by_sigterm():
    async with fake(echo=True, chunk_s=0) as (_, events, process, submit):
        submit("a", [3, 4])
        first, second, end = [await events.receive() for _ in range(3)]
        assert bytes(first.payload.tensors["data"].data) + bytes(second.payload.tensors["data"].data) == b"\3\4"
        assert (second.finished, end) == (True, Released("a"))
        process.terminate()
        assert await exited(process) == 0


@pytest.mark.parametrize("code", [7, -signal.SIGKILL])
async def test_it_dies_as_told_with_its_last_words(code):
    async with fake(die_at_chunk=1, exit_code=code, chunk_s=0, stderr="out of luck") as (_, events, process, submit):
        submit("a", [])
        assert isinstance(await events.receive(), Produced)
        assert await exited(process) == code
        assert process.stderr.read() == b"out of luck\n"


async def test_it_ignores_sigterm_as_told():
    async with fake(ignore_sigterm=True) as (client, _, process, _submit):
        process.terminate()
        # An answer to what was asked after the signal shows that it lives on.
        assert await client.call("echo", 1, timeout_s=10) == [1]
        process.kill()
        assert await exited(process) == -signal.SIGKILL
