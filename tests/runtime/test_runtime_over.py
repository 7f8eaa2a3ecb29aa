"""A kind that wants to know is told of each request that its stages worked for and that did not finish, once."""

from __future__ import annotations

import signal

import pytest
import trio

from omni_actors import Kind, StageFailed, open_omni
from omni_actors.config import InputSpec
from omni_actors.testing import FAKE_CORE
from omni_actors.testing.rigs import core, pipeline

REPEAT = "omni_actors.testing.pipelines:repeat_prompt"
LONG = {"a": {"max_tokens": 1000}}


@pytest.fixture
def told(monkeypatch):
    found = []
    monkeypatch.setattr(type(FAKE_CORE), "request_over", lambda self, key: found.append(key), raising=False)
    return found


async def test_of_an_abort_it_is_told_when_all_engines_have_confirmed_it(world, autojump_clock, told):
    async with open_omni(pipeline(core("a", output="text", tokens=1000)), world=world) as omni:
        async with omni.generate("x", LONG) as stream:
            await anext(stream)
            assert told == []
            key = stream.key
        with trio.fail_after(10):
            await omni.abort(stream.request_id)
        assert told == [key]
        omni.check()


async def test_of_two_stages_of_one_kind_it_is_told_once(world, autojump_clock, told):
    spec = pipeline(core("a", tokens=1000, output="text"), core("b", inputs=(InputSpec(stage="a"),), output="audio"))
    async with open_omni(spec, world=world) as omni:
        async with omni.generate("x", LONG) as stream:
            await anext(stream)
            key = stream.key
            world.launcher.find("a").kill(signal.SIGKILL)
            with pytest.raises(StageFailed):
                async for _ in stream:
                    pass
        assert told == [key]


async def test_of_a_finish_nobody_is_told(world, autojump_clock, told):
    async with open_omni(pipeline(core("a", output="text")), world=world) as omni:
        async with omni.generate("x", {"a": {"max_tokens": 2}}) as stream:
            await stream.result()
        omni.check()
    assert told == []


@pytest.mark.parametrize("modalities", [["audio"], ["text"]])
async def test_where_stages_hand_each_other_chunks_it_is_told_of_every_end(world, autojump_clock, told, modalities):
    """A stage that nobody listened to, or whose listener had had enough, has made chunks that nobody reads."""
    edge = InputSpec(stage="a", mode="chunks")
    spec = pipeline(core("a", output="text"), core("b", inputs=(edge,), transform=REPEAT, output="audio"))
    async with open_omni(spec, world=world) as omni:
        async with omni.generate("x", {"a": {"max_tokens": 2}}, modalities=modalities) as stream:
            assert (await stream.result()).kind is Kind.FINISHED
        omni.check()
    assert told == [stream.key]
