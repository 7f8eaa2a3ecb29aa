"""``AsyncOmni.over``: an asyncio library in a trio program, on the runtime that the program has open."""

from __future__ import annotations

import threading

import pytest
import trio
import trio_asyncio
import uvloop
from omni_actors_asyncio import AsyncOmni
from trio_asyncio import aio_as_trio

from omni_actors import Kind, RuntimeClosed, ShuttingDown, UsageError, open_omni
from omni_actors.testing import MemoryWorld
from omni_actors.testing.rigs import core, pipeline


def opened(**more):
    return open_omni(pipeline(core("llm", **{"output": "text", **more}), drain_s=1.0), world=MemoryWorld())


def endless():
    return opened(tokens=8_000, token_s=0.002, params={"max_tokens": None})


async def library(client) -> str:
    """Somebody's asyncio code, written for vLLM's EngineClient."""
    texts = [output.outputs[0].text async for output in client.generate("x", {"output_kind": 1}, "theirs")]
    return "".join(texts)


async def begin(client):
    stream = client.generate_omni("x")
    await anext(stream)
    return stream


async def ask(omni) -> str:
    async with omni.generate("x") as stream:
        return "".join([output.text async for output in stream])


async def test_one_runtime_and_one_thread_for_both_worlds():
    async with opened() as omni, trio_asyncio.open_loop():
        async with aio_as_trio(AsyncOmni.over(omni)) as client:
            assert await aio_as_trio(library)(client) == await ask(omni)
            assert "omni-actors" not in [thread.name for thread in threading.enumerate()]
            assert (await aio_as_trio(client.statistics)()).ended[Kind.FINISHED] == 2
        assert (client.is_running, omni.health().ready) == (False, True)
        with pytest.raises(RuntimeClosed):
            await aio_as_trio(begin)(client)
        assert await ask(omni)


async def test_closing_ends_its_own_requests_only():
    async with endless() as omni, trio_asyncio.open_loop():
        async with omni.generate("x", request_id="ours") as ours:
            await anext(ours)
            client = AsyncOmni.over(omni)
            await aio_as_trio(client.__aenter__)()
            theirs = await aio_as_trio(begin)(client)
            report = await aio_as_trio(client.close)(drain_s=0)
            assert report.stopped == ()
            assert theirs.terminal.kind is Kind.ABORTED
            assert omni.statistics().requests == 1
            await anext(ours)


async def test_closing_lets_a_running_request_finish_and_takes_no_new_one():
    async with opened(token_s=0.02) as omni, trio_asyncio.open_loop():
        async with aio_as_trio(AsyncOmni.over(omni)) as client:
            stream = await aio_as_trio(begin)(client)
            client.request_close()
            assert client.health().reason == "the runtime is being closed"
            await trio.lowlevel.checkpoint()
            with pytest.raises(ShuttingDown):
                await aio_as_trio(begin)(client)
        assert stream.terminal.kind is Kind.FINISHED
        assert omni.health().ready


async def test_a_loop_that_ends_without_a_close_aborts_what_came_through_it():
    async with endless() as omni:
        async with trio_asyncio.open_loop():
            client = AsyncOmni.over(omni)
            await aio_as_trio(client.__aenter__)()
            stream = await aio_as_trio(begin)(client)
        assert stream.terminal.kind is Kind.ABORTED
        assert not client.is_running
        assert omni.statistics().requests == 0


async def test_a_program_that_is_cancelled():
    with trio.move_on_after(60) as scope:
        async with endless() as omni, trio_asyncio.open_loop(), aio_as_trio(AsyncOmni.over(omni)) as client:
            await aio_as_trio(begin)(client)
            scope.cancel()
            await trio.lowlevel.checkpoint()
    assert (client.is_running, omni.closed) == (False, True)


async def test_the_runtimes_own_end_shows():
    async with endless() as omni, trio_asyncio.open_loop(), aio_as_trio(AsyncOmni.over(omni)) as client:
        stream = await aio_as_trio(begin)(client)
        await omni.shutdown(drain_s=0)
        assert stream.terminal.kind is Kind.ABORTED
        await trio.testing.wait_all_tasks_blocked()
        assert client.health().reason.startswith("the runtime is closed")


async def test_it_cannot_be_waited_for_in_its_own_thread():
    async with opened() as omni, trio_asyncio.open_loop(), aio_as_trio(AsyncOmni.over(omni)) as client:
        with pytest.raises(UsageError, match="in its own thread"):
            client.shutdown()
        client = AsyncOmni.over(omni)
        await aio_as_trio(client.__aenter__)()
        await trio.to_thread.run_sync(client.shutdown)
        assert not client.is_running


async def test_it_belongs_into_a_loop_of_the_same_run():
    async def enter():
        await AsyncOmni.over(omni).__aenter__()

    async def in_another_run():
        async with trio_asyncio.open_loop():
            await aio_as_trio(enter)()

    loop = uvloop.new_event_loop()
    async with opened() as omni:
        with pytest.raises(UsageError, match="trio-asyncio loop"):
            await trio.to_thread.run_sync(loop.run_until_complete, enter())
        with pytest.raises(ExceptionGroup) as refused:
            await trio.to_thread.run_sync(trio.run, in_another_run)
        assert refused.group_contains(UsageError, match="another trio run")
        assert await ask(omni)
    loop.close()
