"""StageEngineCoreClient against an engine that says exactly what each test makes it say. No vLLM here."""

from __future__ import annotations

from contextlib import asynccontextmanager

import msgspec
import pytest
import trio
import trio.testing

from omni_actors._errors import EngineDead, EngineRejected, InvalidRequest, ProtocolError
from omni_actors.config.specs import StageSpec
from omni_actors.lifecycle.events import LeaseFailed, Released
from omni_actors.testing._core_kind import FakeCoreKind, FakeFrontend
from omni_actors.testing._core_wire import ABORT, ADD, UTILITY, FakeAdd, FakeOutput, FakeOutputs, FakeUtility
from omni_actors.transport import MemoryTransport

SPEC = StageSpec(name="thinker", engine="fake-core")
ENGINE = b"\0\0"


class Script:
    """The engine's side, by hand."""

    def __init__(self, transport, address):
        self._transport = transport
        self._hello = transport.dealer(address, ENGINE)

    async def shake_hands(self, **response):
        self._hello.send([msgspec.msgpack.encode({"status": "HELLO"})])
        ((init,),) = await self._hello.receive()
        addresses = msgspec.msgpack.decode(init)["addresses"]
        self.input = self._transport.dealer(addresses["inputs"][0], ENGINE)
        self.output = self._transport.push(addresses["outputs"][0])
        self.input.send([msgspec.msgpack.encode(response)])
        self._hello.send([msgspec.msgpack.encode({"status": "READY"})])

    async def heard(self):
        """What has arrived once everybody is waiting: (kind, content) in order."""
        await trio.testing.wait_all_tasks_blocked()
        return [self._decode(*message) for message in self.input.drain()]

    @staticmethod
    def _decode(kind, body):
        if kind == ADD:
            return "add", msgspec.msgpack.decode(body, type=FakeAdd).request_id
        content = msgspec.msgpack.decode(body)
        return ("abort", content) if kind == ABORT else ("call", content[1:])

    def says(self, *outputs, answer=None):
        step = FakeOutputs(outputs=list(outputs), utility_output=answer)
        self.output.send([msgspec.msgpack.encode(step)])

    def answers(self, call_id, value=False, failure=None):
        self.says(answer=FakeUtility(call_id, failure) if failure else FakeUtility.answer(call_id, value))

    def leaves(self):
        for socket in (self._hello, self.input, self.output):
            socket.close()


class Stage:
    def __init__(self, client, frontend, engine):
        self.client, self.frontend, self.engine = client, frontend, engine
        self.batches = []
        self.open = trio.Event()
        self.open.set()

    async def emit(self, events):
        await self.open.wait()
        self.batches.append(events)

    @property
    def events(self):
        return [event for batch in self.batches for event in batch]

    async def seen(self):
        await trio.testing.wait_all_tasks_blocked()
        return self.events

    def submit(self, key, *, text=True, stream=True, **params):
        (work,) = self.frontend.prepare([key], "hello", params, stream=stream, text=text)
        self.client.submit(work)


@asynccontextmanager
async def connected(transport=None):
    transport = transport or MemoryTransport()
    frontend = FakeFrontend(SPEC)
    client = FakeCoreKind().client(SPEC, lambda: frontend, transport, replica=0, generation=1)
    engine = Script(transport, client.addresses["handshake"])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(engine.shake_hands)
        await client.handshake()
    yield Stage(client, frontend, engine)
    client.close()
    transport.close()


@asynccontextmanager
async def serving(transport=None):
    async with connected(transport) as stage, trio.open_nursery() as nursery:
        nursery.start_soon(stage.client.serve, stage.emit)
        yield stage
        nursery.cancel_scope.cancel()


def token(key, text, finish=None, stop=None):
    return FakeOutput(key, [ord(c) for c in text], finish_reason=finish, stop_reason=stop)


# ------------------------------------------------------------------ handshake


async def test_the_engine_is_ready_when_both_sockets_said_so():
    async with connected() as stage:
        assert stage.client.owed_since is None
        assert stage.client.last_heard <= trio.current_time()


async def test_a_stranger_in_the_handshake_is_a_protocol_error_by_itself():
    transport = MemoryTransport()
    client = FakeCoreKind().client(SPEC, lambda: FakeFrontend(SPEC), transport, replica=0, generation=1)
    transport.dealer(client.addresses["handshake"], b"who").send([b"hi"])

    with pytest.raises(ProtocolError, match="stranger"):
        await client.handshake()
    client.close()


async def test_the_engines_shorter_limit_is_followed():
    transport, frontend = MemoryTransport(), FakeFrontend(SPEC)
    client = FakeCoreKind().client(SPEC, lambda: frontend, transport, replica=0, generation=1)
    engine = Script(transport, client.addresses["handshake"])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: engine.shake_hands(max_model_len=4))
        await client.handshake()

    with pytest.raises(InvalidRequest, match="limit of 4"):
        frontend.check("hello", None)


async def test_a_client_that_never_shook_hands_has_nothing_to_drain():
    transport = MemoryTransport()
    client = FakeCoreKind().client(SPEC, lambda: FakeFrontend(SPEC), transport, replica=0, generation=1)
    assert client.drain() == []
    client.close()


# ------------------------------------------------------------------ producing


async def test_one_wake_up_is_one_batch_in_order():
    async with serving() as stage:
        stage.submit("a")
        stage.submit("b")
        assert await stage.engine.heard() == [("add", "a"), ("add", "b")]

        stage.engine.says(token("a", "x"), token("b", "y"))
        stage.engine.says(token("a", "z", finish=1))
        await stage.seen()

        (batch,) = stage.batches
        assert [(e.key, e.payload.text, e.finished, e.released) for e in batch] == [
            ("a", "x", False, False),
            ("b", "y", False, False),
            ("a", "z", True, True),
        ]
        assert batch[2].payload.finish_reason == "length"
        assert batch[0].payload.prompt_tokens == 5


async def test_token_ids_that_nobody_reads_as_text_come_once_at_the_end():
    async with serving() as stage:
        stage.submit("a", text=False, stream=False)
        stage.engine.says(token("a", "x"))
        stage.engine.says(token("a", "y"))
        assert await stage.seen() == []

        stage.engine.says(token("a", "z", finish=0, stop=122))
        (event,) = await stage.seen()
        assert event.payload.token_ids == [ord(c) for c in "xyz"]
        assert (event.payload.text, event.payload.finish_reason, event.payload.stop_reason) == ("", "stop", 122)
        assert event.finished
        assert event.released


async def test_streamed_token_ids_come_step_by_step():
    async with serving() as stage:
        stage.submit("a", text=False)
        stage.engine.says(token("a", "x"), token("a", ""))
        stage.engine.says(token("a", "yz", finish=1))
        assert [e.payload.token_ids for e in await stage.seen()] == [[120], [121, 122]]


async def test_a_lease_that_the_engine_fails_is_released_and_the_others_go_on():
    async with serving() as stage:
        stage.submit("a")
        stage.submit("b", text=False)
        stage.submit("c")
        stage.engine.says(token("a", "", finish=3), token("b", "", finish=2), token("c", "x"))
        bad, aborted, good = await stage.seen()
        assert isinstance(bad, LeaseFailed)
        assert isinstance(bad.error, EngineRejected)
        assert bad.error.stage == "thinker"
        assert isinstance(aborted, LeaseFailed)
        assert "shutting down" in str(aborted.error)
        assert good.payload.text == "x"
        stage.client.abort(["a", "b"])
        assert await stage.engine.heard() == [("add", "a"), ("add", "b"), ("add", "c")]


# ------------------------------------------------------------------ aborting


async def test_all_aborts_of_one_pass_are_one_abort_and_one_barrier():
    async with serving() as stage:
        for key in "abcd":
            stage.submit(key)
        await stage.engine.heard()

        stage.client.abort(["a", "b"])
        stage.client.abort(["c", "a", "unknown"])
        abort, call = await stage.engine.heard()
        assert abort == ("abort", ["a", "b", "c"])
        assert call[1][1:] == ["is_sleeping", []]
        assert await stage.seen() == []

        stage.engine.answers(call[1][0])
        assert await stage.seen() == [Released("a"), Released("b"), Released("c")]


async def test_nothing_of_an_aborted_key_is_emitted_after_the_abort():
    """I3"""
    async with serving() as stage:
        stage.submit("a")
        stage.submit("b", text=False)
        stage.engine.says(token("a", "x"), token("b", "x"))
        await stage.seen()

        stage.engine.says(token("a", "y"), token("b", "y"))
        stage.client.abort(["a", "b"])
        stage.engine.says(token("a", "z", finish=1), token("b", "z", finish=1))
        *_, (_, (barrier, *_rest)) = await stage.engine.heard()
        stage.engine.answers(barrier)
        assert (await stage.seen())[2:] == [Released("a"), Released("b")]


async def test_the_shutdown_answer_releases_too():
    async with serving() as stage:
        stage.submit("a")
        stage.client.abort(["a"])
        *_, (_, (barrier, *_rest)) = await stage.engine.heard()
        stage.engine.answers(barrier, failure="Server shutting down")
        assert await stage.seen() == [Released("a")]


async def test_an_abort_that_races_the_finish_gives_one_release():
    """I11: the finish was under way; it is dropped, the barrier releases."""
    async with serving() as stage:
        stage.submit("a")
        stage.engine.says(token("a", "x", finish=1))
        stage.client.abort(["a"])
        *_, (_, (barrier, *_rest)) = await stage.engine.heard()
        stage.engine.answers(barrier)
        assert await stage.seen() == [Released("a")]
        stage.client.abort(["a"])
        assert await stage.engine.heard() == []


async def test_an_abort_after_the_finish_is_ignored():
    async with serving() as stage:
        stage.submit("a")
        stage.engine.says(token("a", "x", finish=1))
        await stage.seen()
        stage.client.abort(["a"])
        assert await stage.engine.heard() == [("add", "a")]


async def test_an_add_that_never_left_is_taken_back_and_released_at_once():
    transport = MemoryTransport(hwm=1)
    async with serving(transport) as stage:
        stage.submit("first")
        stage.submit("second")
        stage.client.abort(["second"])
        assert await stage.seen() == [Released("second")]
        assert await stage.engine.heard() == [("add", "first")]
        assert stage.client.owed_since is not None


async def test_an_abort_leaves_while_the_router_is_stuck():
    """I15"""
    async with serving() as stage:
        stage.submit("a")
        stage.submit("b")
        stage.open = trio.Event()
        stage.engine.says(token("a", "x"))
        await stage.engine.heard()
        stage.client.abort(["b"])
        assert [kind for kind, _ in await stage.engine.heard()] == ["abort", "call"]
        stage.open.set()


async def test_a_stop_string_ends_it_here_and_is_confirmed_by_a_barrier():
    async with serving() as stage:
        stage.submit("a", stop=["."])
        stage.engine.says(token("a", "x."))
        (event,) = await stage.seen()
        assert (event.payload.text, event.payload.finish_reason, event.payload.stop_reason) == ("x", "stop", ".")
        assert event.finished
        assert not event.released

        _, abort, call = await stage.engine.heard()
        assert abort == ("abort", ["a"])
        stage.client.abort(["a"])
        stage.engine.says(token("a", "more"))
        stage.engine.answers(call[1][0])
        assert (await stage.seen())[1:] == [Released("a")]


# ------------------------------------------------------------------ calls and debts


async def test_a_call_returns_its_answer_or_the_engines_words():
    async with serving() as stage:
        results = {}

        async def ask(method):
            try:
                results[method] = await stage.client.call(method, 1, timeout_s=5)
            except EngineRejected as error:
                results[method] = str(error)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask, "good")
            (first,) = await stage.engine.heard()
            nursery.start_soon(ask, "bad")
            (second,) = await stage.engine.heard()
            stage.engine.answers(-1, value="a notification")
            stage.engine.answers(second[1][0], failure="no such method")
            stage.engine.answers(first[1][0], value=[1, 2])

        assert results == {"good": [1, 2], "bad": "thinker/0: no such method"}


async def test_a_late_call_raises_and_its_answer_is_ignored(autojump_clock):
    async with serving() as stage:
        with pytest.raises(trio.TooSlowError):
            await stage.client.call("slow", timeout_s=3)
        assert trio.current_time() == pytest.approx(3)
        ((_, (call_id, *_rest)),) = await stage.engine.heard()
        stage.engine.answers(call_id)
        assert await stage.seen() == []
        assert stage.client.owed_since is None


async def test_a_pending_call_excuses_silence_until_its_deadline(autojump_clock):
    async with serving() as stage:
        assert stage.client.hang_extension == float("-inf")
        with trio.move_on_after(1):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(lambda: stage.client.call("slow", timeout_s=100))
                await trio.testing.wait_all_tasks_blocked()
                assert stage.client.hang_extension == pytest.approx(100)
        assert stage.client.hang_extension == float("-inf")


async def test_closing_fails_whoever_waits():
    async with connected() as stage, trio.open_nursery() as nursery:

        async def wait():
            with pytest.raises(EngineDead):
                await stage.client.call("slow", timeout_s=100)

        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        stage.client.close()


async def test_something_is_owed_from_the_first_lease_to_the_last_release(autojump_clock):
    async with serving() as stage:
        woken = []
        stage.client.watch_owed(lambda: woken.append(trio.current_time()))
        await trio.sleep(5)
        stage.submit("a")
        assert (stage.client.owed_since, woken) == (5, [5])
        stage.client.watch_owed(lambda: woken.append("at once"))
        assert woken == [5, "at once"]

        await trio.sleep(1)
        stage.engine.says(token("a", "x", finish=1))
        await stage.seen()
        assert stage.client.owed_since is None
        assert stage.client.last_heard == 6

        stage.client.ping()
        stage.client.ping()
        assert stage.client.owed_since == 6
        _, (_, (ping, *_rest)) = await stage.engine.heard()
        stage.engine.answers(ping)
        await stage.seen()
        assert stage.client.owed_since is None


# ------------------------------------------------------------------ the end


async def test_the_sentinel_ends_serving_after_what_came_before_it():
    async with connected() as stage:
        stage.submit("a")
        stage.engine.says(token("a", "x"))
        stage.engine.output.send([b"ENGINE_CORE_DEAD"])
        with pytest.raises(EngineDead) as caught:
            await stage.client.serve(stage.emit)
        assert (caught.value.verdict, caught.value.stage) == ("sentinel", "thinker")
        assert [event.payload.text for event in stage.events] == ["x"]


async def test_garbage_ends_serving_after_what_came_before_it():
    async with connected() as stage:
        stage.submit("a")
        stage.engine.says(token("a", "x"))
        stage.engine.output.send([b"\xc1"])
        stage.engine.says(token("a", "never"))
        with pytest.raises(ProtocolError, match="thinker/0"):
            await stage.client.serve(stage.emit)
        assert [event.payload.text for event in stage.events] == ["x"]
        assert stage.client.drain() == []


async def test_a_word_on_the_input_socket_is_a_protocol_error():
    async with connected() as stage:
        stage.engine.input.send([b"hello?"])
        with pytest.raises(ProtocolError, match="after its handshake"):
            await stage.client.serve(stage.emit)


async def test_cancelled_serving_loses_nothing():
    async with connected() as stage:
        stage.submit("a")
        stage.open = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stage.client.serve, stage.emit)
            stage.engine.says(token("a", "x"))
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        stage.engine.says(token("a", "y"))
        stage.engine.output.send([b"ENGINE_CORE_DEAD"])
        assert [event.payload.text for event in stage.client.drain()] == ["x", "y"]
        assert stage.client.drain() == []


async def test_what_emit_raises_leaves_as_itself():
    async with connected() as stage:
        stage.submit("a")
        stage.engine.says(token("a", "x"))

        async def emit(events):
            raise KeyError("router")

        with pytest.raises(KeyError):
            await stage.client.serve(emit)


async def test_work_for_a_dead_engine_raises_nothing():
    async with serving() as stage:
        stage.submit("a")
        stage.engine.leaves()
        stage.submit("b")
        stage.client.abort(["a"])
        stage.client.ping()
        assert await stage.seen() == []
        stage.client.close()
        stage.submit("c")
        stage.client.abort(["b"])
        stage.client.ping()


def test_utility_frames_name_the_client_the_call_and_the_method():
    frames = FakeFrontend(SPEC).codec().encode_utility(7, "is_sleeping", ())
    assert frames[0] == UTILITY
    assert msgspec.msgpack.decode(frames[1]) == [0, 7, "is_sleeping", []]
