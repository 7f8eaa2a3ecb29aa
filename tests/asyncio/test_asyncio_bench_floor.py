"""The floors of ``bench asyncio`` and ``serve``: little code, but correct, or else their numbers would say nothing."""

import asyncio
import threading
from types import SimpleNamespace

import pytest
import uvloop
from omni_actors_asyncio.benches.floor import Threaded
from omni_actors_asyncio.benches.floor_server import _Served
from vllm.sampling_params import RequestOutputKind, SamplingParams
from vllm.v1.engine.output_processor import RequestOutputCollector

DELTA = SamplingParams(output_kind=RequestOutputKind.DELTA)


def output(text, *, finished=False):
    return SimpleNamespace(text=text, finished=finished)


class FakeLLM:
    """As AsyncLLM is used: a collector for each request, and what ``script`` says in one step after the other."""

    model_config, renderer = "config", "renderer"

    def __init__(self):
        self.acts, self.collectors, self.thread, self.more = [], {}, threading.get_ident(), []

    async def get_supported_tasks(self):
        self._here("tasks", None)
        return ("generate",)

    async def add_request(self, request_id, prompt, params, **more):
        await asyncio.sleep(0)
        self.more.append(more)
        self._here("add", request_id)
        if prompt == "bad":
            raise ValueError("a bad prompt")
        collector = self.collectors[request_id] = RequestOutputCollector(params.output_kind, request_id)
        if prompt == "early":
            collector.put(output("early", finished=True))
        return collector

    async def abort(self, request_id):
        self._here("abort", request_id)

    def shutdown(self):
        self._here("shutdown", None)

    def step(self, *puts):
        """In its thread, all in one pass of the loop."""
        for request_id, item in puts:
            self.collectors[request_id].put(item)

    def _here(self, act, request_id):
        assert threading.get_ident() == self.thread != threading.main_thread().ident
        self.acts.append((act, request_id))


class WatchedLoop:
    """A loop that counts what comes from other threads."""

    def __init__(self, loop):
        self._loop, self.crossed = loop, 0

    def __getattr__(self, name):
        return getattr(self._loop, name)

    def call_soon_threadsafe(self, *args):
        self.crossed += 1
        return self._loop.call_soon_threadsafe(*args)


def conversation(test, kind=Threaded):
    """Runs ``test(llm, fake, loop)`` on uvloop; the thread must be gone afterwards."""

    async def run():
        loop = WatchedLoop(asyncio.get_running_loop())
        made = []
        llm = kind(loop, lambda: made.append(FakeLLM()) or made[0])
        await llm.start()
        try:
            await asyncio.wait_for(test(llm, made[0], loop), 10)
        finally:
            llm.stop()
        assert made[0].acts[-1] == ("shutdown", None)
        assert all(thread.name != "engine client" for thread in threading.enumerate())

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())


async def read(llm, prompt, request_id):
    return [item.text async for item in llm.generate(prompt, DELTA, request_id)]


async def settled(llm):
    """What was asked so far has been done over there, and its outputs are here."""
    done = asyncio.get_running_loop().create_future()
    here = asyncio.get_running_loop()

    async def pong():
        here.call_soon_threadsafe(done.set_result, None)

    await asyncio.sleep(0)
    llm._inward.add(pong)
    await done


def test_what_an_engine_step_says_comes_in_one_wake_up_in_order():
    async def test(llm, fake, loop):
        assert (llm.model_config, llm.renderer) == ("config", "renderer")
        names = [f"r{number}" for number in range(20)]
        readers = [asyncio.ensure_future(read(llm, "hello", name)) for name in names]
        await settled(llm)
        assert fake.acts == [("add", name) for name in names]
        before = loop.crossed
        for text, finished in (("a", False), ("b", True)):
            step = [(name, output(f"{name}{text}", finished=finished)) for name in names]
            llm._there.call_soon_threadsafe(fake.step, *step)
            await settled(llm)
        assert await asyncio.gather(*readers) == [[f"{name}a", f"{name}b"] for name in names]
        assert loop.crossed - before == 2

    conversation(test)


def test_requests_cross_in_batches():
    async def test(llm, fake, loop):
        crossings, send = [], llm._inward._send
        llm._inward._send = lambda asks: crossings.append(len(asks)) or send(asks)
        readers = [asyncio.ensure_future(read(llm, "early", f"r{number}")) for number in range(20)]
        assert await asyncio.gather(*readers) == [["early"]] * 20
        assert crossings == [8, 8, 4]

    conversation(test)


def test_who_leaves_early_has_aborted_and_no_abort_overtakes_its_request():
    async def test(llm, fake, loop):
        stream = llm.generate("hello", DELTA, "r")
        reading = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0)
        reading.cancel()
        await asyncio.wait([reading])
        await settled(llm)
        assert fake.acts == [("add", "r"), ("abort", "r")]

    conversation(test)


def test_who_was_answered_aborts_nothing():
    async def test(llm, fake, loop):
        assert await read(llm, "early", "r") == ["early"]
        await settled(llm)
        assert fake.acts == [("add", "r")]

    conversation(test)


def test_a_request_that_is_refused_raises_where_it_was_asked_and_the_next_is_answered():
    async def test(llm, fake, loop):
        with pytest.raises(ValueError, match="a bad prompt"):
            await read(llm, "bad", "r1")
        assert await read(llm, "early", "r2") == ["early"]

    conversation(test)


def test_an_engine_that_dies_fails_its_readers():
    async def test(llm, fake, loop):
        reader = asyncio.ensure_future(read(llm, "hello", "r"))
        await settled(llm)
        llm._there.call_soon_threadsafe(fake.step, ("r", RuntimeError("the engine died")))
        with pytest.raises(RuntimeError, match="the engine died"):
            await reader

    conversation(test)


def test_a_server_gets_the_rest_of_an_engine_client():
    async def test(llm, fake, loop):
        assert await llm.get_supported_tasks() == ("generate",)
        assert llm.collectors is fake.collectors
        outputs = [item.text async for item in llm.generate("early", DELTA, "r", priority=3)]
        assert (outputs, fake.more) == (["early"], [{"priority": 3}])
        assert fake.acts == [("tasks", None), ("add", "r")]

    conversation(test, _Served)


def test_what_cannot_be_made_is_said():
    async def run():
        def make():
            raise OSError("no engine")

        llm = Threaded(asyncio.get_running_loop(), make)
        with pytest.raises(OSError, match="no engine"):
            await asyncio.wait_for(llm.start(), 10)

    asyncio.run(run())
