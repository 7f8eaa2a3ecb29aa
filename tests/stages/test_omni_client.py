"""StageDiffusionClient against the fake engine, in memory and on virtual time."""

from __future__ import annotations

import contextlib
import math

import pytest
import trio
import trio.testing

from omni_actors._errors import EngineRejected, InvalidRequest, ProtocolError
from omni_actors.config.specs import StageSpec
from omni_actors.lifecycle.events import LeaseFailed, Produced, Released, TensorChunk, TextChunk
from omni_actors.stages.omni import KIND, OmniFrontend
from omni_actors.testing._fake_omni import FakeBehaviour, FakeOmni, fake_omni
from omni_actors.testing._launcher import Exit, open_memory_launcher
from omni_actors.testing._omni_kind import FakeOmniKind
from omni_actors.transport import MemoryTransport
from omni_actors.wire import omni as wire

SPEC = StageSpec(name="voice", engine="fake")


def work(key, prompt=(1, 2, 3)):
    (made,) = OmniFrontend(SPEC).prepare([key], list(prompt), None, stream=True, text=True)
    return made


class Talk:
    """A client, what it emitted, and what its engine's socket heard."""

    def __init__(self, behaviour, *, hold=None):
        self.transport = MemoryTransport()
        self.client = KIND.client(SPEC, lambda: OmniFrontend(SPEC), self.transport, replica=0, generation=1)
        self.engine = FakeOmni(behaviour, dict(self.client.addresses), self.transport)
        self.heard = []
        self._listen()
        self.batches, self.news, self.hold = [], trio.Event(), hold
        self.exit_code, self.gone = None, trio.Event()

    def _listen(self):
        hear = self.engine._hear
        self.engine._hear = lambda frames, nursery: (self.heard.append(wire.decode(frames)), hear(frames, nursery))

    @property
    def events(self):
        return [event for batch in self.batches for event in batch]

    def of(self, key):
        return [event for event in self.events if getattr(event, "key", None) == key]

    def ends(self, key):
        return [event for event in self.of(key) if isinstance(event, Released | LeaseFailed)]

    async def emit(self, batch):
        if self.hold is not None:
            await self.hold.wait()
        self.batches.append(batch)
        self.news.set()
        self.news = trio.Event()

    async def until(self, there):
        while not there():
            await self.news.wait()

    async def ended(self, *keys):
        await self.until(lambda: all(self.ends(key) for key in keys))

    async def run_engine(self):
        try:
            await self.engine.run()
        except Exit as end:
            self.exit_code = end.code
            self.gone.set()

    def aborts(self):
        return [message for message in self.heard if isinstance(message, wire.Abort)]


@contextlib.asynccontextmanager
async def talking(*, hold=None, **told):
    """A conversation that is being served; it may last an hour of virtual time."""
    talk = Talk(FakeBehaviour(**told), hold=hold)
    try:
        with trio.fail_after(3600):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(talk.run_engine)
                await talk.client.handshake()
                nursery.start_soon(serve, talk, nursery)
                try:
                    yield talk
                finally:
                    nursery.cancel_scope.cancel()
                    talk.client.close()
    except BaseExceptionGroup as group:
        (error,) = group.exceptions
        raise error from None


async def serve(talk, nursery):
    with contextlib.suppress(trio.ClosedResourceError):
        await talk.client.serve(talk.emit)


async def test_a_lease_streams_its_chunks_and_is_released_once(autojump_clock):
    async with talking(echo=True) as talk:
        talk.client.submit(work("a", [7, 8, 9]))
        await talk.ended("a")
        *chunks, end = talk.of("a")
        assert [bytes(chunk.payload.tensors["data"].data) for chunk in chunks] == [b"\7", b"\x08", b"\x09"]
        assert [chunk.finished for chunk in chunks] == [False, False, True]
        assert chunks[-1].payload.finish_reason == "stop"
        assert end == Released("a")
        assert talk.client.owed_since is None


async def test_an_empty_answer_is_an_end_without_content(autojump_clock):
    async with talking(echo=True) as talk:
        talk.client.submit(work("a", []))
        await talk.ended("a")
        assert talk.of("a") == [Produced("a", TensorChunk(finish_reason="stop"), True), Released("a")]


async def test_text_comes_as_text(autojump_clock):
    async with talking(text=True, chunks=2) as talk:
        talk.client.submit(work("a"))
        await talk.ended("a")
        assert [event.payload for event in talk.of("a")[:2]] == [
            TextChunk(text="0 "),
            TextChunk(text="1 ", finish_reason="stop"),
        ]


async def test_an_abort_in_the_middle_is_released_and_nothing_follows(autojump_clock):
    async with talking(chunks=100, chunk_s=1) as talk:
        talk.client.submit(work("a"))
        await talk.until(lambda: len(talk.of("a")) == 2)
        talk.client.abort(["a"])
        await talk.ended("a")
        assert [type(event) for event in talk.of("a")] == [Produced, Produced, Released]
        await trio.sleep(200)
        assert len(talk.of("a")) == 3


async def test_an_abort_drops_the_outputs_that_cross_it(autojump_clock):
    async with talking(chunks=100, chunk_s=0.1, release_s=5) as talk:
        talk.client.submit(work("a"))
        await talk.until(lambda: talk.of("a"))
        address = talk.client.addresses["address"]
        talk.transport.stall(address)
        await trio.sleep(1)
        talk.client.abort(["a"])
        await trio.sleep(1)
        talk.transport.resume(address)
        await talk.ended("a")
        assert [type(event) for event in talk.of("a")] == [Produced, Released]


async def test_an_abort_of_what_never_left_is_answered_at_once(autojump_clock):
    async with talking(chunks=100, chunk_s=1) as talk:
        # A pipe that is full keeps the Submit in our own queue.
        talk.client._socket._hwm = 0
        await trio.testing.wait_all_tasks_blocked()
        talk.client.submit(work("a"))
        talk.client.abort(["a"])
        await talk.ended("a")
        assert talk.of("a") == [Released("a")]
        assert talk.heard == [wire.Hello()]


async def test_a_release_of_our_own_waits_for_the_router_like_any_other(autojump_clock):
    hold = trio.Event()
    async with talking(hold=hold, chunks=100, chunk_s=1) as talk:
        talk.client.submit(work("a"))
        await trio.sleep(2)
        talk.client._socket._hwm = 0
        talk.client.submit(work("b"))
        talk.client.abort(["b"])
        hold.set()
        await talk.ended("b")
        assert talk.of("b") == [Released("b")]


async def test_all_aborts_of_one_pass_are_one_message(autojump_clock):
    async with talking(chunks=100, chunk_s=1) as talk:
        keys = [f"k{number}" for number in range(20)]
        for key in keys:
            talk.client.submit(work(key))
        await talk.until(lambda: len(talk.events) >= 8)
        for key in keys:
            talk.client.abort([key])
        await talk.ended(*keys)
        assert [abort.keys for abort in talk.aborts()] == [keys]
        assert all(talk.ends(key) == [Released(key)] for key in keys)


async def test_aborts_leave_while_the_router_takes_nothing(autojump_clock):
    hold = trio.Event()
    async with talking(hold=hold, chunks=100, chunk_s=1) as talk:
        talk.client.submit(work("a"))
        await trio.sleep(3)
        talk.client.abort(["a"])
        await trio.sleep(3)
        assert talk.aborts() == [wire.Abort(["a"])]
        hold.set()
        await talk.ended("a")


async def test_aborts_of_unknown_ended_and_aborting_leases_say_nothing(autojump_clock):
    async with talking(release_s=50) as talk:
        talk.client.abort(["never"])
        talk.client.submit(work("a"))
        await talk.until(lambda: talk.of("a") and talk.of("a")[-1].finished)
        talk.client.abort(["a"])
        talk.client.submit(work("b"))
        await talk.until(lambda: talk.of("b"))
        talk.client.abort(["b", "b"])
        await trio.sleep(1)
        talk.client.abort(["b"])
        await talk.ended("a", "b")
        talk.client.abort(["a", "b"])
        await trio.sleep(1)
        assert talk.aborts() == [wire.Abort(["b"])]
        assert talk.ends("a") == [Released("a")]
        assert talk.ends("b") == [Released("b")]


async def test_a_key_may_be_used_again_after_its_release(autojump_clock):
    async with talking(chunks=1) as talk:
        for _ in range(2):
            talk.client.submit(work("a"))
            await talk.ended("a")
            assert [type(event) for event in talk.of("a")] == [Produced, Released]
            talk.batches.clear()


async def test_one_lease_fails_and_the_other_does_not_notice(autojump_clock):
    async with talking(echo=True, fail_at_chunk=3) as talk:
        talk.client.submit(work("bad", [1, 2, 3, 4]))
        talk.client.submit(work("good", [1, 2, 3]))
        await talk.ended("bad", "good")
        error = talk.ends("bad")[0].error
        assert isinstance(error, EngineRejected)
        assert (error.message, error.stage, error.replica) == ("failed at chunk 3, as told", "voice", 0)
        assert talk.ends("good") == [Released("good")]


async def test_a_double_release_is_ignored(autojump_clock):
    async with talking(release="double", chunks=1) as talk:
        for key in "ab":
            talk.client.submit(work(key))
            await talk.ended(key)
        assert talk.ends("a") == [Released("a")]
        assert talk.client._side.late_releases >= 1


async def test_a_missing_release_stays_owed(autojump_clock):
    async with talking(release="missing", chunks=1) as talk:
        before = trio.current_time()
        talk.client.submit(work("a"))
        await trio.sleep(100)
        assert talk.ends("a") == []
        assert talk.client.owed_since == before
        # The engine lives and knows that it owes: heartbeats keep coming.
        assert trio.current_time() - talk.client.last_heard <= 1


async def test_calls_answer_fail_and_time_out(autojump_clock):
    async with talking() as talk:
        assert await talk.client.call("echo", 1, "two", timeout_s=1) == [1, "two"]
        with pytest.raises(EngineRejected, match="no method 'nope'"):
            await talk.client.call("nope", timeout_s=1)
        with pytest.raises(InvalidRequest, match="cannot call echo"):
            await talk.client.call("echo", object(), timeout_s=1)
        began = trio.current_time()
        with pytest.raises(trio.TooSlowError):
            await talk.client.call("hang", timeout_s=7)
        assert trio.current_time() - began == 7
        assert talk.client.owed_since is None
        assert talk.client.hang_extension == -math.inf


async def test_a_pending_call_extends_the_hang_and_ends_with_the_client(autojump_clock):
    async with talking() as talk, trio.open_nursery() as nursery:

        async def hang():
            with pytest.raises(EngineRejected, match="ended before it answered hang"):
                await talk.client.call("hang", timeout_s=70)

        nursery.start_soon(hang)
        await trio.testing.wait_all_tasks_blocked()
        assert talk.client.hang_extension == trio.current_time() + 70
        talk.client.close()


async def test_a_ping_moves_last_heard(autojump_clock):
    async with talking() as talk:
        await trio.sleep(50)
        assert talk.client.last_heard <= trio.current_time() - 50
        talk.client.ping()
        assert talk.client.owed_since == trio.current_time()
        await trio.sleep(0.001)
        assert talk.client.owed_since is None
        assert talk.client.last_heard >= trio.current_time() - 0.001


async def test_an_idle_engine_is_silent_and_a_frozen_one_answers_no_ping(autojump_clock):
    async with talking(stall_at_chunk=1) as talk:
        heard = talk.client.last_heard
        await trio.sleep(1000)
        assert talk.client.last_heard == heard
        talk.client.submit(work("a"))
        await talk.until(lambda: talk.of("a"))
        heard = talk.client.last_heard
        talk.client.ping()
        await trio.sleep(100)
        assert talk.client.last_heard == heard


async def test_a_stuck_engine_lives_but_makes_nothing(autojump_clock):
    async with talking(stuck_at_chunk=1) as talk:
        talk.client.submit(work("a"))
        await trio.sleep(100)
        assert talk.client.made == 1
        assert trio.current_time() - talk.client.last_heard <= 1
        talk.client.abort(["a"])
        await talk.ended("a")


async def test_whoever_watches_is_woken_once(autojump_clock):
    async with talking(chunks=1) as talk:
        woken = []
        talk.client.watch_owed(lambda: woken.append("later"))
        assert woken == []
        talk.client.submit(work("a"))
        assert woken == ["later"]
        talk.client.watch_owed(lambda: woken.append("at once"))
        assert woken == ["later", "at once"]
        talk.client.submit(work("b"))
        await talk.ended("a", "b")
        talk.client.submit(work("c"))
        assert woken == ["later", "at once"]


async def test_garbage_is_a_protocol_error_after_what_came_before_it(autojump_clock):
    async def talk_garbage():
        async with talking(garbage_at_chunk=1) as talk:
            talks.append(talk)
            talk.client.submit(work("a"))
            await trio.sleep_forever()

    talks = []
    with pytest.raises(ProtocolError, match="version 255") as caught:
        await talk_garbage()
    (talk,) = talks
    assert (caught.value.stage, caught.value.generation) == ("voice", 1)
    assert len(talk.of("a")) == 1
    assert talk.client.drain() == []


async def test_drain_brings_what_had_arrived_before_the_death(autojump_clock):
    talk = Talk(FakeBehaviour(chunks=100, chunk_s=1, die_at_chunk=3, exit_code=-9))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(talk.run_engine)
        await talk.client.handshake()
        talk.client.submit(work("a"))
    assert talk.exit_code == -9
    assert [type(event) for event in talk.client.drain()] == [Produced] * 3
    talk.client.submit(work("b"))
    talk.client.abort(["a"])
    talk.client.close()
    talk.client.close()


async def test_what_arrives_after_close_is_nobodys_fault(autojump_clock):
    talk = Talk(FakeBehaviour(chunks=3, chunk_s=1))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(talk.run_engine)
        await talk.client.handshake()
        talk.client.submit(work("a"))
        await trio.sleep(10)
        # As when serve is cancelled with a batch in its hands.
        talk.client._unread = talk.client._socket.drain()
        talk.client.close()
        with pytest.raises(trio.ClosedResourceError):
            await talk.client.serve(talk.emit)
        nursery.cancel_scope.cancel()
    assert talk.events == talk.client.drain() == []


async def test_cancelled_while_the_router_is_full_serve_loses_nothing(autojump_clock):
    talk = Talk(FakeBehaviour(chunks=3, chunk_s=1), hold=trio.Event())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(talk.run_engine)
        await talk.client.handshake()
        talk.client.submit(work("a"))
        with trio.move_on_after(10):
            await talk.client.serve(talk.emit)
        nursery.cancel_scope.cancel()
    assert talk.batches == []
    assert [type(event) for event in talk.client.drain()] == [Produced] * 3 + [Released]


async def test_a_silent_engine_leaves_the_handshake_to_its_deadline(autojump_clock):
    talk = Talk(FakeBehaviour(silent_at_start=True))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(talk.run_engine)
        with pytest.raises(trio.TooSlowError), trio.fail_after(600):
            await talk.client.handshake()
        nursery.cancel_scope.cancel()


async def test_a_stranger_and_a_wrong_version_break_the_handshake(autojump_clock):
    for identity, frames, words in (
        (b"stranger", wire.encode(wire.Hello()), "unknown peer"),
        (b"voice-0-1", [b"\x63..."], "version 99"),
        (b"voice-0-1", wire.encode(wire.Ready()), "Ready in state hello"),
    ):
        talk = Talk(FakeBehaviour())
        talk.engine._socket.close()
        talk.transport.dealer(talk.client.addresses["address"], identity).send(frames)
        with pytest.raises(ProtocolError, match=words):
            await talk.client.handshake()


async def test_stop_ends_the_engine_and_every_lease(autojump_clock):
    async with talking(chunks=100, chunk_s=1) as talk:
        talk.client.submit(work("a"))
        await talk.until(lambda: talk.of("a"))
        talk.client.stop()
        await talk.ended("a")
        assert isinstance(talk.ends("a")[0], LeaseFailed)
        await talk.gone.wait()
        assert talk.exit_code == 0


@contextlib.asynccontextmanager
async def launched(**told):
    """(client, its in-memory process), once the engine is ready."""
    kind, spec = FakeOmniKind(), StageSpec(name="voice", engine="fake", engine_args=told)
    transport = MemoryTransport()
    client = kind.client(spec, lambda: OmniFrontend(spec), transport, replica=0, generation=1)
    launch = kind.launch(spec, client.addresses, replica=0, generation=1)
    with trio.fail_after(3600):
        async with open_memory_launcher({kind.module: fake_omni}, transport) as launcher:
            process = await launcher.spawn(launch)
            if "exit_at_start" not in told:
                await client.handshake()
            yield client, process
            await process.destroy(1)
            client.close()


async def test_a_launched_fake_exits_as_told_with_its_last_words(autojump_clock):
    async with launched(exit_at_start=3, stderr="out of luck") as (_, process):
        assert await process.wait() == 3
        assert process.tail() == ("out of luck",)


async def test_a_launched_fake_dies_by_its_signal(autojump_clock):
    async with launched(die_at_chunk=0, exit_code=-9) as (client, process):
        client.submit(work("a"))
        assert await process.wait() == -9


async def test_sigterm_ends_every_lease_of_a_launched_fake(autojump_clock):
    async with launched(chunks=100, chunk_s=1) as (client, process):
        client.submit(work("a"))
        await trio.sleep(2.5)
        process.terminate()
        assert await process.wait() == 0
        assert [type(event) for event in client.drain()] == [Produced, Produced, LeaseFailed]


@pytest.mark.parametrize("told", [{"ignore_sigterm": True}, {"stall_at_chunk": 0}])
async def test_a_deaf_or_frozen_fake_must_be_killed(autojump_clock, told):
    async with launched(**told) as (client, process):
        client.submit(work("a"))
        await trio.sleep(2)
        process.terminate()
        with trio.move_on_after(1000) as waited:
            await process.wait()
        assert waited.cancelled_caught
        assert await process.destroy(1) == ()
        assert process.returncode == -9
