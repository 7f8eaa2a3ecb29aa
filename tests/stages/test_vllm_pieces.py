"""The client and input that comes in pieces: their order on the wire, above all beside an ABORT. No vLLM here."""

from __future__ import annotations

from contextlib import asynccontextmanager

import msgspec
import pytest
import trio
import trio.testing

from omni_actors._errors import EngineRejected, ProtocolError
from omni_actors.config.specs import StageSpec
from omni_actors.lifecycle.events import Released
from omni_actors.stages import Work
from omni_actors.stages.vllm import StageEngineCoreClient
from omni_actors.testing._core_kind import FakeFrontend
from omni_actors.testing._core_wire import ADD, FakeAdd, FakeOutputs, FakeParams, FakeText, FakeUtility
from omni_actors.transport import MemoryTransport

ENGINE = b"\0\0"


class PatientText(FakeText):
    """A piece changes nothing about the text so far."""

    def add(self, body, index, sink, prompt=None):
        if body.request_id not in self._texts:
            super().add(body, index, sink, prompt)


class Frontend(FakeFrontend):
    def __init__(self, asks=()):
        super().__init__(StageSpec(name="t", engine="fake-core"))
        self.asks, self.said = asks, {}

    def processor(self, *how):
        return PatientText()

    def answered(self, method, answer):
        self.said[method] = answer


def work(key, prompt="hi", *, resumable=True):
    tokens, params = [ord(c) for c in prompt], FakeParams(output_kind=1)
    body = FakeAdd(key, tokens, None, params, None, 0.0, None, None, None, resumable=resumable, external_req_id=key)
    return Work(key=key, body=body, resumable=resumable)


class Engine:
    def __init__(self, transport, address):
        self._transport, self._hello = transport, transport.dealer(address, ENGINE)

    async def shake_hands(self):
        self._hello.send([msgspec.msgpack.encode({"status": "HELLO"})])
        ((init,),) = await self._hello.receive()
        addresses = msgspec.msgpack.decode(init)["addresses"]
        self.input = self._transport.dealer(addresses["inputs"][0], ENGINE)
        self.output = self._transport.push(addresses["outputs"][0])
        self.input.send([msgspec.msgpack.encode({})])
        self._hello.send([msgspec.msgpack.encode({"status": "READY"})])

    async def answer(self, value=None, failure=None):
        """Answer the next call; what it was."""
        ((_, body),) = await self.input.receive(1)
        _, call_id, *call = msgspec.msgpack.decode(body)
        answer = FakeUtility(call_id, failure) if failure else FakeUtility.answer(call_id, value)
        self.output.send([msgspec.msgpack.encode(FakeOutputs(utility_output=answer))])
        return call

    async def heard(self):
        await trio.testing.wait_all_tasks_blocked()
        return [self._short(*message) for message in self.input.drain()]

    @staticmethod
    def _short(kind, body):
        if kind == ADD:
            return "".join(map(chr, msgspec.msgpack.decode(body, type=FakeAdd).prompt_token_ids))
        content = msgspec.msgpack.decode(body)
        return content if isinstance(content[0], str) else content[2]


@asynccontextmanager
async def serving(hwm=64, queue_limit=64):
    transport, events = MemoryTransport(hwm=hwm, queue_limit=queue_limit), []

    async def emit(batch):
        await trio.lowlevel.checkpoint()
        events.extend(batch)

    client = StageEngineCoreClient(Frontend, transport, stage="t", replica=0, generation=1)
    engine = Engine(transport, client.addresses["handshake"])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(engine.shake_hands)
        await client.handshake()
        nursery.start_soon(client.serve, emit)
        yield client, engine, events
        nursery.cancel_scope.cancel()
    client.close()
    transport.close()


async def test_pieces_follow_the_first_in_order():
    async with serving() as (client, engine, _):
        client.submit(work("k", "one"))
        client.extend(work("k", "two"))
        client.extend(work("k", "three"))
        client.extend(work("k", "-", resumable=False))
        assert await engine.heard() == ["one", "two", "three", "-"]


async def test_a_piece_for_nobody_is_not_sent():
    async with serving() as (client, engine, _):
        client.extend(work("k", "one"))
        assert await engine.heard() == []
        assert client.owed_since is None


async def test_an_abort_takes_back_the_pieces_that_have_not_left():
    """Behind an ABORT the engine would take one for a new request."""
    async with serving(hwm=1) as (client, engine, events):
        client.submit(work("k", "one"))
        client.extend(work("k", "two"))
        client.extend(work("k", "three"))
        client.abort(["k"])
        assert (await engine.heard())[0] == "one"
        assert await engine.heard() == [["k"]]
        assert await engine.answer(False) == ["is_sleeping", []]
        await trio.testing.wait_all_tasks_blocked()
        assert events == [Released("k")]
        assert await engine.heard() == []


async def test_an_abort_of_a_session_that_never_left_takes_all_of_it_back():
    async with serving(hwm=1) as (client, engine, events):
        client.submit(work("other", "other"))
        client.submit(work("k", "one"))
        client.extend(work("k", "two"))
        client.abort(["k"])
        assert await engine.heard() == ["other"]
        assert await engine.heard() == []
        assert events == [Released("k")]


async def test_what_is_told_comes_before_work_and_its_answer_is_owed():
    async with serving() as (client, engine, _):
        client.tell("pause_scheduler", "keep", False)
        client.submit(work("k", "one"))
        assert client.owed_since is not None
        assert await engine.heard() == ["pause_scheduler", "one"]


# ---------------------------------------------------------------------- what a front-end asks of a new engine


@asynccontextmanager
async def asked(frontend):
    transport = MemoryTransport()
    client = StageEngineCoreClient(lambda: frontend, transport, stage="t", replica=0, generation=1)
    engine = Engine(transport, client.addresses["handshake"])
    await trio.lowlevel.checkpoint()
    yield client, engine
    client.close()
    transport.close()


async def test_an_engine_is_ready_when_it_has_answered():
    frontend = Frontend(asks=("get_supported_tasks",))
    async with asked(frontend) as (client, engine), trio.open_nursery() as nursery:
        nursery.start_soon(client.handshake)
        await engine.shake_hands()
        await trio.testing.wait_all_tasks_blocked()
        assert len(nursery.child_tasks) == 1
        assert await engine.answer(["embed"]) == ["get_supported_tasks", []]
    assert frontend.said == {"get_supported_tasks": ["embed"]}
    assert client.owed_since is None


async def test_an_engine_that_cannot_answer_does_not_become_ready():
    async with asked(Frontend(asks=("get_supported_tasks",))) as (client, engine):
        with pytest.RaisesGroup(pytest.RaisesExc(ProtocolError, match="no such method")):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(client.handshake)
                await engine.shake_hands()
                await engine.answer(failure="no such method")


async def test_a_full_queue_is_said_to_who_gives_the_piece():
    async with serving(hwm=1, queue_limit=2) as (client, engine, _):
        client.submit(work("k", "one"))
        client.extend(work("k", "two"))
        client.extend(work("k", "three"))
        with pytest.raises(EngineRejected, match="does not take its work in"):
            client.extend(work("k", "four"))
        client.abort(["k"])
        assert (await engine.heard())[0] == "one"
        assert await engine.heard() == [["k"]]
