"""Leaving a request early, in every way that asyncio has, frees its engines."""

from __future__ import annotations

import asyncio
import gc
import time
from contextlib import aclosing

import pytest
from omni_actors_asyncio import AsyncOmni

from omni_actors.testing import MemoryWorld
from omni_actors.testing.rigs import core, pipeline

from .conftest import endless, idle_within

SOON_S = 0.1


def begin(omni, name: str = "mine", how: str = "vllm"):
    if how == "vllm":
        return omni.generate("hello", {"output_kind": 1}, name)
    return omni.generate_omni("hello", request_id=name)


async def listen(stream, heard: asyncio.Event) -> None:
    async for _ in stream:
        heard.set()


async def hung(omni) -> None:
    """Until the engine answers nobody any more."""
    with pytest.raises(TimeoutError):
        while True:
            await omni.call("llm", "is_sleeping", timeout_s=0.1)


@pytest.mark.parametrize("how", ["vllm", "ours"])
def test_cancelling_its_task(run, how):
    async def main():
        async with endless() as omni:
            heard = asyncio.Event()
            task = asyncio.ensure_future(listen(begin(omni, how=how), heard))
            await heard.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            return await idle_within(omni, SOON_S)

    assert run(main)


@pytest.mark.parametrize("way", ["aclose", "abort", "garbage"])
def test_leaving_in_the_turn_in_which_it_was_asked(run, way):
    """The request is not even across then, and must not come across behind its abort."""

    async def main():
        async with endless() as omni:
            stream = begin(omni, "mine", "ours")
            if way == "aclose":
                async with asyncio.timeout(1):
                    await stream.aclose()
            elif way == "abort":
                (report,) = await omni.abort("mine")
                assert report.known
                assert report.unconfirmed == ()
            else:
                del stream
                gc.collect()
            assert await idle_within(omni, SOON_S)
            assert (await omni.statistics()).requests == 0

    run(main)


@pytest.mark.parametrize("how", ["vllm", "ours"])
def test_aclose_returns_when_the_engine_has_forgotten(run, how):
    async def main():
        async with endless() as omni:
            async with aclosing(begin(omni, how=how)) as stream:
                await anext(stream)
                assert await omni.call("llm", "has_work") == [True]
            assert await omni.call("llm", "has_work") == [False]
            assert (await omni.statistics()).requests == 0

    run(main)


@pytest.mark.parametrize("how", ["vllm", "ours"])
def test_break(run, how):
    async def main():
        async with endless() as omni:
            async for _ in begin(omni, how=how):
                break
            return await idle_within(omni, SOON_S)

    assert run(main)


@pytest.mark.parametrize("how", ["vllm", "ours"])
def test_garbage(run, how):
    async def main():
        async with endless() as omni:
            stream = begin(omni, how=how)
            await anext(stream)
            circle = [stream]
            circle.append(circle)
            del stream, circle
            gc.collect()
            return await idle_within(omni, SOON_S)

    assert run(main)


def test_an_error_of_the_readers_own(run):
    async def main():
        async with endless() as omni:
            with pytest.raises(KeyError):
                async with omni.generate_omni("hello") as stream:
                    async for _ in stream:
                        raise KeyError
            return await omni.call("llm", "has_work")

    assert run(main) == [False]


@pytest.mark.parametrize("when", ["before it was asked for", "while it is prepared", "before the first output"])
def test_cancelling_before_anything_was_heard(run, when):
    async def main():
        stage = core("llm", output="text", tokens=8_000, params={"max_tokens": None}, token_s=0.05)
        async with AsyncOmni(pipeline(stage), world=MemoryWorld()) as omni:
            task = asyncio.ensure_future(listen(begin(omni), asyncio.Event()))
            if when != "before it was asked for":
                await asyncio.sleep(0)
            if when == "before the first output":
                while not (await omni.statistics()).leases:
                    pass
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert await idle_within(omni, SOON_S)
            assert (await omni.statistics()).requests == 0

    run(main)


def test_a_second_cancellation_ends_the_waiting_and_not_the_abort(run):
    """An engine that hangs confirms nothing: the first cancellation waits for it, the second does not."""

    async def main():
        stage = core("llm", output="text", tokens=8_000, params={"max_tokens": None}, die_at=3, death="stall")
        async with AsyncOmni(pipeline(stage, abort_s=2.0), world=MemoryWorld()) as omni:
            heard = asyncio.Event()
            task = asyncio.ensure_future(listen(begin(omni), heard))
            await heard.wait()
            await hung(omni)
            began = time.monotonic()
            task.cancel()
            await asyncio.wait((task,), timeout=0.2)
            assert not task.done()
            task.cancel()
            await asyncio.wait((task,), timeout=1)
            assert task.cancelled()
            assert time.monotonic() - began < 1
            assert (await omni.statistics()).unsettled == 0

    run(main)


def test_an_engine_that_does_not_confirm_is_waited_for_no_longer_than_abort_s(run):
    async def main():
        stage = core("llm", output="text", tokens=8_000, params={"max_tokens": None}, die_at=3, death="stall")
        async with AsyncOmni(pipeline(stage, abort_s=0.5), world=MemoryWorld()) as omni:
            stream = begin(omni)
            await anext(stream)
            await hung(omni)
            began = time.monotonic()
            await stream.aclose()
            assert 0.3 < time.monotonic() - began < 1.5

    run(main)


def test_many_leave_at_once(run):
    async def main():
        async with endless() as omni:
            heard = [asyncio.Event() for _ in range(64)]
            tasks = [asyncio.ensure_future(listen(begin(omni, str(n)), heard[n])) for n in range(64)]
            await asyncio.gather(*(one.wait() for one in heard))
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            assert await omni.call("llm", "has_work") == [False]
            assert (await omni.statistics()).requests == 0

    run(main)


def test_reading_with_two_tasks_is_a_mistake_that_says_so(run):
    async def main():
        async with endless(token_s=0.2) as omni:
            async with omni.generate_omni("hello") as stream:
                first = asyncio.ensure_future(anext(stream))
                await asyncio.sleep(0)
                with pytest.raises(RuntimeError, match="another task"):
                    await anext(stream)
                assert (await first).text

    run(main)
