"""For who watches a runtime: each stage's load, and news of it."""

from __future__ import annotations

import signal

import pytest
import trio
import trio.testing

from omni_actors import open_omni
from omni_actors.testing.rigs import core, pipeline, speech

LONG = {"max_tokens": 1000}


def rows(omni):
    return {name: (load.running, load.waiting, load.restarts) for name, load in omni.loads().items()}


async def test_work_is_counted_where_it_is(world, autojump_clock):
    async with open_omni(speech(vocoder={"chunks": 1000}), world=world) as omni:
        assert rows(omni) == {"thinker": (0, 0, 0), "talker": (0, 0, 0), "vocoder": (0, 0, 0)}
        async with omni.generate("x", modalities=["audio"]) as stream:
            await anext(stream)
            assert rows(omni) == {"thinker": (0, 0, 0), "talker": (0, 0, 0), "vocoder": (1, 0, 0)}
        assert rows(omni)["vocoder"] == (0, 0, 0)


async def test_what_has_no_replica_waits(world, autojump_clock):
    async with open_omni(pipeline(core("llm", output="text", tokens=1000)), world=world) as omni:
        world.launcher.find("llm").kill(signal.SIGKILL)
        with trio.fail_after(60):
            await omni.wait_health(lambda health: not health.ready)
            async with omni.generate("x", LONG) as stream:
                await trio.testing.wait_all_tasks_blocked()
                assert rows(omni) == {"llm": (0, 1, 0)}
                await anext(stream)
                assert rows(omni) == {"llm": (1, 0, 1)}
        assert omni.statistics().jobs == 0


@pytest.mark.parametrize("what", ["request", "death", "shutdown"])
async def test_news_of_requests_stages_and_the_shutdown(world, autojump_clock, what):
    async with open_omni(pipeline(core("llm", output="text", tokens=1000)), world=world) as omni:
        heard = trio.Event()

        async def listen(task_status=trio.TASK_STATUS_IGNORED):
            task_status.started()
            await omni.wait_news()
            heard.set()

        async with trio.open_nursery() as nursery:
            await nursery.start(listen)
            await trio.testing.wait_all_tasks_blocked()
            assert not heard.is_set()
            await tell(omni, world, what)
            with trio.fail_after(60):
                await heard.wait()


async def tell(omni, world, what):
    if what == "request":
        async with omni.generate("x", LONG):
            pass
    elif what == "death":
        world.launcher.find("llm").kill(signal.SIGKILL)
    else:
        omni.request_shutdown()


async def test_nobody_is_told_of_nothing(world, autojump_clock):
    async with open_omni(pipeline(core("llm", output="text")), world=world) as omni:
        with trio.move_on_after(60) as waited:
            await omni.wait_news()
        assert waited.cancelled_caught
