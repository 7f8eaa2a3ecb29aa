"""Submitting in one synchronous step, as adapters do: the same request, the same refusals, no task, no checkpoint."""

from __future__ import annotations

import pytest
import trio

from omni_actors import InvalidRequest, Kind, Overloaded, RuntimeClosed, ShuttingDown, open_omni
from omni_actors.config import Limits
from omni_actors.testing import FakeFrontend
from omni_actors.testing.rigs import core, pipeline, speech


class Reader:
    """A sink that keeps what it gets."""

    def __init__(self):
        self.outputs, self.terminal, self.ended = [], None, trio.Event()

    def push(self, output):
        self.outputs.append(output)
        return True

    def close(self, terminal):
        self.terminal = terminal
        self.ended.set()

    @property
    def text(self):
        return "".join(output.text for output in self.outputs)


async def test_it_is_the_same_request_without_a_checkpoint(world, autojump_clock):
    async with open_omni(pipeline(core("llm", output="text", tokens=5)), world=world) as omni:
        async with omni.generate("hello") as stream:
            expected = await stream.result()
        reader, generation = Reader(), omni.generate("hello", request_id="mine")
        before = trio.lowlevel.current_statistics().tasks_living
        with trio.testing.assert_no_checkpoints():
            assert generation.submit_now(reader)
        assert trio.lowlevel.current_statistics().tasks_living == before
        assert omni.in_flight == 1
        await reader.ended.wait()
        assert (reader.terminal.kind, reader.terminal.request_id) == (Kind.FINISHED, "mine")
        assert reader.text == expected.text()
        assert not generation.leave()
        omni.check()


async def test_leaving_it_is_the_abort(world, autojump_clock):
    async with open_omni(pipeline(core("llm", output="text", tokens=50, token_s=0.1)), world=world) as omni:
        reader, generation = Reader(), omni.generate("hello")
        assert generation.submit_now(reader)
        await trio.sleep(0.25)
        assert generation.leave()
        await generation.left()
        assert reader.terminal.kind is Kind.ABORTED
        assert await omni.call("llm", "has_work") == [False]
        assert omni.statistics().requests == 0


async def test_what_needs_a_thread_is_not_taken_and_leaves_nothing(world, autojump_clock, monkeypatch):
    async with open_omni(pipeline(core("llm", output="text")), world=world) as omni:
        monkeypatch.setattr(FakeFrontend, "heavy", lambda self, prompt: True)
        generation = omni.generate("hello")
        assert not generation.submit_now(Reader())
        assert omni.statistics().requests == 0
        reader = Reader()
        await generation.submit(reader)
        await reader.ended.wait()
        assert reader.terminal.kind is Kind.FINISHED


async def test_a_stage_with_a_transform_is_not_taken(world, autojump_clock):
    stage = core("llm", output="text", transform="omni_actors.testing.pipelines:repeat_prompt")
    async with open_omni(pipeline(stage), world=world) as omni:
        assert not omni.generate("hello").submit_now(Reader())


async def test_refusals_are_raised_and_nothing_is_left(world, autojump_clock):
    spec = pipeline(core("llm", output="text", tokens=50, token_s=0.1), limits=Limits(max_requests=1))
    async with open_omni(spec, world=world) as omni:
        with pytest.raises(InvalidRequest):
            omni.generate("").submit_now(Reader())
        with pytest.raises(InvalidRequest):
            omni.generate("x", {"n": "many"}).submit_now(Reader())
        assert omni.generate("x").submit_now(Reader())
        with pytest.raises(Overloaded):
            omni.generate("x").submit_now(Reader())
        assert omni.statistics().requests == 1
        omni.request_shutdown(drain_s=0)
        with pytest.raises(ShuttingDown):
            omni.generate("x").submit_now(Reader())
        await omni.shutdown()
        with pytest.raises(RuntimeClosed):
            omni.generate("x").submit_now(Reader())


async def test_options_are_the_prompts_stages_and_trace_headers_everybodys(world, autojump_clock, monkeypatch):
    seen = {}
    prepare = FakeFrontend.prepare

    def watched(self, *args, options, **how):
        seen[self._spec.name] = dict(options)
        return prepare(self, *args, options=options, **how)

    monkeypatch.setattr(FakeFrontend, "prepare", watched)
    async with open_omni(speech(), world=world) as omni:
        async with omni.generate("x", lora_request="adapter", trace_headers={"traceparent": "1"}) as stream:
            await stream.result()
    assert seen["thinker"] == {"lora_request": "adapter", "trace_headers": {"traceparent": "1"}}
    assert seen["talker"] == {"trace_headers": {"traceparent": "1"}}
