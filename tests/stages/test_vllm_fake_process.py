"""The fake engine as a real process over ZeroMQ: the same client, the same wire, real deaths."""

from __future__ import annotations

import signal
import struct
import subprocess
from contextlib import asynccontextmanager

import pytest
import trio

from omni_actors._errors import EngineDead
from omni_actors.config.specs import StageSpec
from omni_actors.lifecycle.events import LeaseFailed, Released
from omni_actors.testing._core_kind import FakeCoreKind, FakeFrontend
from omni_actors.testing._fake_core import FakeCoreBehaviour, fake_tokens
from omni_actors.transport import ZmqTransport

pytestmark = pytest.mark.process


@asynccontextmanager
async def engine(tmp_path, **behaviour):
    spec = StageSpec(name="thinker", engine="fake-core", engine_args=behaviour)
    kind, transport, frontend = FakeCoreKind(), ZmqTransport(tmp_path), FakeFrontend(spec)
    client = kind.client(spec, lambda: frontend, transport, replica=0, generation=1)
    launch = kind.launch(spec, client.addresses, replica=0, generation=1)
    with trio.fail_after(30):
        process = await trio.lowlevel.open_process(
            list(launch.argv), stdin=subprocess.PIPE, stderr=subprocess.PIPE, process_group=0
        )
        try:
            await process.stdin.send_all(struct.pack("<Q", len(launch.payload)) + launch.payload)
            yield client, frontend, process
        finally:
            if process.poll() is None:
                process.kill()
            await process.wait()
            for pipe in (process.stdin, process.stderr):
                await pipe.aclose()
            client.close()
            transport.close()


class Stage:
    def __init__(self, client, frontend, process):
        self.client, self.frontend, self.process = client, frontend, process
        self.send, self._receive = trio.open_memory_channel(100)
        self._batch = []

    def submit(self, key, params=None):
        (work,) = self.frontend.prepare([key], "hello", params, stream=True, text=True)
        self.client.submit(work)

    async def event(self):
        while not self._batch:
            self._batch = list(await self._receive.receive())
        return self._batch.pop(0)


@asynccontextmanager
async def serving(tmp_path, **behaviour):
    async with engine(tmp_path, **behaviour) as parts:
        stage = Stage(*parts)
        await stage.client.handshake()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stage.client.serve, stage.send.send)
            yield stage
            nursery.cancel_scope.cancel()


async def test_it_generates(tmp_path):
    async with serving(tmp_path, tokens=500, token_s=0.001) as stage:
        stage.submit("short", {"max_tokens": 3})
        text = ""
        while not (event := await stage.event()).finished:
            text += event.payload.text
        text += event.payload.text
        assert text == "".join(map(chr, fake_tokens([ord(c) for c in "hello"], FakeCoreBehaviour(tokens=3))))


async def test_an_abort_is_confirmed(tmp_path):
    async with serving(tmp_path, tokens=100_000, token_s=0.001) as stage:
        stage.submit("long")
        await stage.event()
        stage.client.abort(["long"])
        while await stage.event() != Released("long"):
            pass
        assert await stage.client.call("reset_prefix_cache", timeout_s=5)


async def test_sigterm_says_what_it_aborts_and_exits_cleanly(tmp_path):
    async with serving(tmp_path, tokens=100_000) as stage:
        stage.submit("a")
        await stage.event()
        stage.process.terminate()
        assert await stage.process.wait() == 0
        while not isinstance(await stage.event(), LeaseFailed):
            pass


@pytest.mark.parametrize(("death", "code"), [("exit", 5), ("kill", -signal.SIGKILL)])
async def test_it_dies_as_told(tmp_path, death, code):
    async with serving(tmp_path, die_at=2, death=death, exit_code=5) as stage:
        stage.submit("a")
        assert await stage.process.wait() == code


async def test_its_last_word_arrives(tmp_path):
    async with engine(tmp_path, die_at=1, death="sentinel") as (client, frontend, process):
        await client.handshake()
        (work,) = frontend.prepare(["a"], "hello", None, stream=True, text=True)
        client.submit(work)

        async def emit(events):
            raise AssertionError(events)

        with pytest.raises(EngineDead):
            await client.serve(emit)
        assert await process.wait() == 1


async def test_a_start_that_fails_says_why(tmp_path):
    async with engine(tmp_path, handshake="exit", exit_code=4, stderr="no weights today") as (_client, _, process):
        assert await process.wait() == 4
        assert b"no weights today" in await process.stderr.receive_some()


async def test_it_ends_with_its_host(tmp_path):
    async with engine(tmp_path, tokens=5) as (client, _, process):
        await client.handshake()
        await process.stdin.aclose()
        assert await process.wait() in (0, -signal.SIGTERM)
