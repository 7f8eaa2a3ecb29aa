"""The client and the fake engine, in memory and on virtual time: what the simulation is made of."""

from __future__ import annotations

from contextlib import asynccontextmanager

import msgspec
import pytest
import trio
import trio.testing

from omni_actors._errors import ConfigError, EngineDead, EngineRejected, InvalidRequest, ProtocolError
from omni_actors.config.specs import StageSpec
from omni_actors.lifecycle.events import LeaseFailed, Produced, Released
from omni_actors.testing._core_kind import FakeCoreKind, FakeFrontend
from omni_actors.testing._core_wire import FakeParams
from omni_actors.testing._fake_core import FakeCore, FakeCoreBehaviour, fake_core, fake_tokens
from omni_actors.testing._launcher import Exit, open_memory_launcher
from omni_actors.transport import MemoryTransport

PROMPT = [ord(character) for character in "hello"]


class Rig:
    def __init__(self, client, frontend, core, behaviour):
        self.client, self.frontend, self.core, self.behaviour = client, frontend, core, behaviour
        self.events = {}
        self.changed = trio.Event()
        self.code = None

    async def emit(self, events):
        for event in events:
            self.events.setdefault(event.key, []).append(event)
        self.changed.set()
        self.changed = trio.Event()

    def submit(self, key, prompt="hello", params=None, *, stream=True, text=True):
        (work,) = self.frontend.prepare([key], prompt, params, stream=stream, text=text)
        self.client.submit(work)

    async def until(self, key, count=None):
        """Until ``count`` events of the key, or its end."""
        while True:
            events = self.events.get(key, [])
            last = events[-1] if events else None
            if len(events) == count or (count is None and last and getattr(last, "finished", True)):
                return events
            await self.changed.wait()

    def text(self, key):
        return "".join(e.payload.text for e in self.events.get(key, []) if isinstance(e, Produced))

    async def run_core(self):
        try:
            await self.core.run()
        except Exit as end:
            self.code = end.code


@asynccontextmanager
async def rig(**behaviour):
    spec = StageSpec(name="thinker", engine="fake-core", engine_args=behaviour)
    kind, transport, frontend = FakeCoreKind(), MemoryTransport(), FakeFrontend(spec)
    kind.check(spec)
    client = kind.client(spec, lambda: frontend, transport, replica=0, generation=1)
    payload = msgspec.msgpack.decode(kind.launch(spec, client.addresses, replica=0, generation=1).payload)
    told = msgspec.convert(payload["engine_args"], FakeCoreBehaviour)
    with trio.fail_after(1e6):
        async with trio.open_nursery() as nursery:
            one = Rig(client, frontend, FakeCore(told, payload["handshake"], transport), told)
            nursery.start_soon(one.run_core)
            yield one
            nursery.cancel_scope.cancel()
    client.close()
    transport.close()


@asynccontextmanager
async def serving(**behaviour):
    async with rig(**behaviour) as one, trio.open_nursery() as nursery:
        await one.client.handshake()
        nursery.start_soon(one.client.serve, one.emit)
        yield one
        nursery.cancel_scope.cancel()


def text_of(tokens):
    return "".join(map(chr, tokens))


async def test_its_tokens_follow_from_the_prompt_alone(autojump_clock):
    """I7"""
    async with serving(tokens=8) as stage:
        stage.submit("a")
        stage.submit("b", "other")
        stage.submit("c", text=False, stream=False)
        for key in "abc":
            await stage.until(key)
        expected = fake_tokens(PROMPT, stage.behaviour)
        assert stage.text("a") == text_of(expected)
        assert stage.text("b") != stage.text("a")
        assert stage.events["c"][0].payload.token_ids == expected
        assert len(stage.events["a"]) == 8
        assert trio.current_time() == pytest.approx(0.08)


async def test_max_tokens_stop_tokens_and_stop_strings_end_a_request(autojump_clock):
    async with serving(tokens=16) as stage:
        tokens = fake_tokens(PROMPT, stage.behaviour)
        stop_token = tokens[4]
        stage.submit("short", params={"max_tokens": 3})
        stage.submit("token", params={"stop_token_ids": [stop_token]})
        stage.submit("string", params={"stop": [text_of(tokens[2:4])]})
        ends = {key: (await stage.until(key))[-1].payload for key in ("short", "token")}
        while not isinstance(stage.events["string"][-1], Released):
            await stage.changed.wait()
        assert (stage.text("short"), ends["short"].finish_reason) == (text_of(tokens[:3]), "length")
        end = tokens.index(stop_token) + 1
        assert (stage.text("token"), ends["token"].stop_reason) == (text_of(tokens[:end]), stop_token)
        assert stage.text("string") == text_of(tokens[:2])
        assert not await stage.client.call("has_work", timeout_s=1)


async def test_one_step_is_one_batch_of_all_that_run_and_the_others_wait(autojump_clock):
    async with serving(tokens=4, max_running=2, token_s=1.0) as stage:
        for key in "abc":
            stage.submit(key)
        await stage.until("a")
        assert trio.current_time() == pytest.approx(4)
        assert len(stage.events["b"]) == 4
        assert "c" not in stage.events
        await stage.until("c")
        assert trio.current_time() == pytest.approx(8)


async def test_an_abort_frees_its_place_and_is_confirmed_within_a_step(autojump_clock):
    async with serving(tokens=1000, max_running=1, token_s=1.0) as stage:
        stage.submit("a")
        stage.submit("b")
        stage.submit("c")
        await stage.until("a", 3)
        begun = trio.current_time()
        stage.client.abort(["a", "c"])
        await stage.until("a", 4)
        assert trio.current_time() - begun <= 1.0
        assert stage.events["a"][-1] == Released("a")
        assert stage.events["c"] == [Released("c")]
        await stage.until("b", 1)
        assert not await stage.client.call("reset_prefix_cache", timeout_s=10)
        stage.client.abort(["b"])
        await stage.until("b")
        assert await stage.client.call("reset_prefix_cache", timeout_s=10)


async def test_echo_repeats_the_prompt(autojump_clock):
    async with serving(echo=True, tokens=100) as stage:
        stage.submit("a", "One. Two.", {"max_tokens": None})
        assert (await stage.until("a"))[-1].payload.finish_reason == "stop"
        assert stage.text("a") == "One. Two."


async def test_a_rejected_prompt_fails_alone(autojump_clock):
    async with serving(reject="bad") as stage:
        stage.submit("a", "bad prompt")
        stage.submit("b", "good prompt")
        (event,) = await stage.until("a")
        assert isinstance(event, LeaseFailed)
        assert (await stage.until("b"))[-1].finished


async def test_calls(autojump_clock):
    async with serving() as stage:
        assert await stage.client.call("echo", 1, "two", timeout_s=1) == [1, "two"]
        with pytest.raises(EngineRejected, match="no such method"):
            await stage.client.call("nonsense", timeout_s=1)


@pytest.mark.parametrize(("death", "code"), [("exit", 7), ("kill", -9)])
async def test_it_dies_without_a_word(autojump_clock, death, code):
    async with serving(die_at=3, death=death, exit_code=7) as stage:
        stage.submit("a")
        await stage.until("a", 2)
        await trio.sleep(1)
        assert stage.code == code
        assert len(stage.events["a"]) == 2


async def test_it_dies_with_the_sentinel(autojump_clock):
    async with rig(die_at=3, death="sentinel") as stage:
        await stage.client.handshake()
        stage.submit("a")
        with pytest.raises(EngineDead):
            await stage.client.serve(stage.emit)
        assert len(stage.events["a"]) == 2
        await trio.sleep(1)
        assert stage.code == 1


async def test_it_talks_garbage(autojump_clock):
    async with rig(die_at=3, death="garbage") as stage:
        await stage.client.handshake()
        stage.submit("a")
        with pytest.raises(ProtocolError):
            await stage.client.serve(stage.emit)


async def test_it_stalls(autojump_clock):
    async with serving(die_at=3, death="stall") as stage:
        stage.submit("a")
        await stage.until("a", 2)
        with pytest.raises(trio.TooSlowError):
            await stage.client.call("is_sleeping", timeout_s=60)
        stage.client.ping()
        await trio.sleep(60)
        assert stage.client.owed_since == 0
        assert stage.client.last_heard == pytest.approx(0.02)


async def test_a_silent_start_and_a_short_one(autojump_clock):
    async with rig(handshake="silent") as stage:
        with trio.move_on_after(30) as scope:
            await stage.client.handshake()
        assert scope.cancelled_caught
    async with rig(handshake="exit", exit_code=3) as stage:
        await trio.testing.wait_all_tasks_blocked()
        assert stage.code == 3


async def test_a_clean_stop_says_what_it_aborts(autojump_clock):
    async with serving(tokens=100) as stage:
        stage.submit("a")
        await stage.until("a", 2)
        stage.core.stop()
        await stage.until("a", 3)
        assert isinstance(stage.events["a"][-1], LeaseFailed)
        assert stage.code == 0


@pytest.mark.parametrize("ignores", [False, True])
async def test_as_a_process_of_the_memory_launcher(autojump_clock, ignores):
    args = {"stderr": "hello from below", "ignore_sigterm": ignores}
    spec = StageSpec(name="thinker", engine="fake-core", engine_args=args)
    kind, transport, frontend = FakeCoreKind(), MemoryTransport(), FakeFrontend(spec)
    client = kind.client(spec, lambda: frontend, transport, replica=0, generation=1)
    launch = kind.launch(spec, client.addresses, replica=0, generation=1)
    async with open_memory_launcher({"omni_actors.testing.fake_core": fake_core}, transport) as launcher:
        process = await launcher.spawn(launch)
        await client.handshake()
        assert process.tail() == ("hello from below",)
        process.terminate()
        with trio.move_on_after(10) as waiting:
            assert await process.wait() == 0
        assert waiting.cancelled_caught == ignores
        await process.destroy(1)
    client.close()


def test_samples_differ_by_seed():
    spec = StageSpec(name="t", engine="fake-core")
    works = FakeFrontend(spec).prepare(["a", "b"], "hello", {"n": 2, "seed": 4}, stream=True, text=True)
    assert [work.body.sampling_params.seed for work in works] == [4, 5]
    one, two = (fake_tokens(PROMPT, FakeCoreBehaviour(), work.body.sampling_params) for work in works)
    assert one != two
    assert fake_tokens(PROMPT, FakeCoreBehaviour(), FakeParams(seed=4)) == one


@pytest.mark.parametrize(
    ("prompt", "params"),
    [("", None), (b"x", None), ("x" * 5000, None), ("x", {"colour": 1}), ("x", {"max_tokens": 0}), ("x", 7)],
)
def test_bad_requests_are_refused(prompt, params):
    with pytest.raises(InvalidRequest, match="stage 't'"):
        FakeFrontend(StageSpec(name="t", engine="fake-core")).check(prompt, params)


def test_an_unknown_behaviour_is_refused():
    with pytest.raises(ConfigError, match="manners"):
        FakeCoreKind().check(StageSpec(name="t", engine="fake-core", engine_args={"manners": "bad"}))
