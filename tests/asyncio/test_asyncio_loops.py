"""Whatever happens to the loops: one runtime for several of them, and it outlives each."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import trio
import uvloop
from omni_actors_asyncio import AsyncOmni
from omni_actors_asyncio._bridge import PER_PASS, Bridge
from omni_actors_asyncio._tenure import Owned

from omni_actors import Kind, RuntimeClosed, StartupFailed
from omni_actors.testing import MemoryWorld
from omni_actors.testing.rigs import core, pipeline

from .conftest import LOOPS, endless, idle_within, llm

NEW_LOOPS = [asyncio.new_event_loop, uvloop.new_event_loop]


async def text_of(omni, prompt: str) -> str:
    return "".join([output.text async for output in omni.generate_omni(prompt)])


def test_two_loops_in_two_threads_and_an_abort_from_the_other(run):
    async def main():
        async with endless() as omni:
            with ThreadPoolExecutor(2) as threads:
                loop = asyncio.get_running_loop()
                stream = omni.generate_omni("x", request_id="mine")
                await anext(stream)
                done = [loop.run_in_executor(threads, other, omni, asked) for asked in LOOPS]
                assert await asyncio.gather(*done) == [["mine"], []]
                assert [output async for output in stream] == []
            assert stream.terminal.kind is Kind.ABORTED

    def other(omni, kind):
        async def talk():
            async for _ in omni.generate_omni("y"):
                break
            return [report.request_id for report in await omni.abort("mine") if report.known]

        with lock:
            return LOOPS[kind](talk())

    lock = threading.Lock()
    run(main)


def test_an_answer_for_each_of_many_loops(run):
    async def main():
        async with llm(token_s=0.001) as omni:
            alone = [await text_of(omni, str(number)) for number in range(8)]
            with ThreadPoolExecutor(8) as threads:
                loop = asyncio.get_running_loop()
                kinds = list(LOOPS.values()) * 4
                asked = [loop.run_in_executor(threads, kinds[n], text_of(omni, str(n))) for n in range(8)]
                assert await asyncio.gather(*asked) == alone

    run(main)


@pytest.mark.parametrize("new_loop", NEW_LOOPS)
@pytest.mark.parametrize("reader", ["waits", "is busy"])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # pending tasks are the point
def test_a_loop_that_is_closed_with_requests_running(new_loop, reader):
    omni = endless()
    heard = asyncio.Semaphore(0)

    async def listen(stream):
        async for _ in stream:
            heard.release()
            if reader == "is busy":
                await asyncio.Event().wait()

    async def begin():
        streams = (omni.generate("x", {"output_kind": 1}, "a"), omni.generate_omni("y"))
        quiet = anext(omni.generate("z", {"output_kind": 2}, "quiet"))
        return [asyncio.ensure_future(one) for one in (*map(listen, streams), quiet)]

    async def until_heard():
        await heard.acquire()
        await heard.acquire()

    loop = new_loop()
    loop.run_until_complete(omni.__aenter__())
    tasks = loop.run_until_complete(begin())
    loop.run_until_complete(until_heard())
    loop.close()

    async def afterwards():
        async with asyncio.timeout(10):
            assert await idle_within(omni, 1)
            statistics = await omni.statistics()
            assert (statistics.requests, statistics.ended[Kind.ABORTED]) == (0, 3)
            await omni.close()

    asyncio.run(afterwards())
    for task in tasks:
        task._log_destroy_pending = False
    del tasks, task
    gc.collect()


def test_a_loop_that_is_stopped_and_resumed_has_missed_nothing():
    omni, loop = llm(token_s=0.001), asyncio.new_event_loop()
    loop.run_until_complete(omni.__aenter__())
    stream = omni_text = None

    async def begin():
        nonlocal stream
        stream = omni.generate("x", {"output_kind": 1}, "x")
        return (await anext(stream)).outputs[0].text

    omni_text = loop.run_until_complete(begin())
    assert asyncio.run(idle_within(omni, 5))  # another loop, while the first one is stopped

    async def go_on():
        return "".join([output.outputs[0].text async for output in stream])

    omni_text += loop.run_until_complete(go_on())
    assert omni_text == loop.run_until_complete(text_of(omni, "x"))
    loop.run_until_complete(omni.close())
    loop.close()


def test_shutdown_from_another_thread_as_vllms_server_does_it(run):
    async def main():
        async with endless() as omni:
            stream = omni.generate("x", {"output_kind": 1}, "x")
            await anext(stream)
            await asyncio.get_running_loop().run_in_executor(None, omni.shutdown, 0)
            assert [output.outputs[0].finish_reason async for output in stream] == ["abort"]
            assert not omni.is_running
            await asyncio.get_running_loop().run_in_executor(None, omni.shutdown)

    run(main)


def test_it_does_not_open_and_says_why(run):
    async def main():
        broken = core("llm", output="text", handshake="exit", stderr="no such weights")
        with pytest.raises(StartupFailed, match="no such weights"):
            await AsyncOmni.open(pipeline(broken), world=MemoryWorld())

    run(main)


def test_opening_is_cancelled(run):
    async def main():
        omni = llm(handshake="silent")
        opening = asyncio.ensure_future(omni.__aenter__())
        await asyncio.sleep(0)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        await omni.close()
        assert not omni.is_running

    began = time.monotonic()
    run(main)
    assert time.monotonic() - began < 5


def test_it_is_not_open_yet(run):
    async def main():
        with pytest.raises(RuntimeClosed, match="not open"):
            llm().generate_omni("x")

    run(main)


def test_closed_before_it_was_opened(run):
    async def main():
        omni = llm()
        assert (await omni.close()).stopped == ()
        with pytest.raises(RuntimeClosed):
            await omni.__aenter__()

    run(main)


def test_a_bug_in_the_runtime_ends_everything_and_leaves_by_close(run, monkeypatch):
    from omni_actors import OmniError
    from omni_actors.runtime._router import Router

    def bug(self, batch):
        raise ZeroDivisionError

    async def main():
        async with endless() as omni:
            monkeypatch.setattr(Router, "apply", bug)
            stream = omni.generate_omni("x")
            assert [output async for output in stream] == []
            assert stream.terminal.kind is Kind.ABORTED

    with pytest.raises(OmniError, match="ZeroDivisionError"):
        run(main)


def test_what_was_posted_is_taken_though_the_run_ends_between_two_passes():
    class Ending:
        """A run that is asked for one pass, and is over then."""

        def __init__(self):
            self.passes = []

        def run_sync_soon(self, act):
            if self.passes:
                raise trio.RunFinishedError
            self.passes.append(act)

    bridge, token, taken = Bridge(Owned("tiny-omni")), Ending(), []
    bridge.arrived(token)
    for number in range(3 * PER_PASS):
        bridge.post(partial(taken.append, number))
    token.passes[0]()
    assert taken == list(range(3 * PER_PASS))
