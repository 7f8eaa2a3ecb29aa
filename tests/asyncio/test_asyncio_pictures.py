"""A stage that paints, seen from asyncio: steps, previews and the picture in one stream, and what leaving it stops."""

from __future__ import annotations

import pytest
from omni_actors_asyncio import AsyncOmni, AsyncOmniEngine
from vllm.exceptions import VLLMValidationError

from omni_actors import InvalidRequest, Kind, StepChunk
from omni_actors.testing import MemoryWorld
from omni_actors.testing.rigs import omni_stage, pipeline

RED = {"tensors": {"image": {"dtype": "uint8", "shape": [1, 1, 3], "data": b"\xff\0\0"}}, "meta": {"seed": 7}}


def pictures(**more):
    return pipeline(omni_stage("painter", output="image", script=[[RED]], **{"steps": 5, "chunk_s": 0.001, **more}))


async def all_of(stream):
    return [output async for output in stream]


def test_steps_previews_and_the_picture_come_in_one_stream(run):
    async def main():
        async with AsyncOmni(pictures(), world=MemoryWorld()) as omni:
            shown = await all_of(omni.generate_omni("a", {"progress": True, "preview_every": 2}))
            quiet = await all_of(omni.generate_omni("a"))
        return shown, quiet

    (*steps, picture), quiet = run(main)
    assert all(isinstance(step.payload, StepChunk) and step.image is None for step in steps)
    assert [step.payload.done for step in steps] == sorted({step.payload.done for step in steps})
    assert {2, 4} <= {step.payload.done for step in steps if step.payload.preview is not None}
    assert picture.image.numpy().tolist() == [[[255, 0, 0]]]
    assert (picture.modality, picture.payload.meta["seed"]) == ("image", 7)
    assert [output.image.shape for output in quiet] == [(1, 1, 3)]


def test_each_sample_is_a_picture(run):
    async def main():
        async with AsyncOmni(pictures(), world=MemoryWorld()) as omni:
            stream = omni.generate_omni("a", {"n": 3})
            made = await all_of(stream)
        return made, stream.terminal

    made, terminal = run(main)
    assert sorted(output.index for output in made) == [0, 1, 2]
    assert [result.tensors["image"][0].shape for result in terminal.results["painter"]] == [(1, 1, 3)] * 3


def test_leaving_at_a_step_stops_the_painting(run):
    async def main():
        async with AsyncOmni(pictures(steps=100_000), world=MemoryWorld()) as omni:
            async with omni.generate_omni("a", {"progress": True}) as stream:
                assert (await anext(stream)).payload.total == 100_000
            assert stream.terminal.kind is Kind.ABORTED
            assert (await omni.statistics()).leases == 0

    run(main)


def test_a_param_that_cannot_be_is_the_callers_fault(run):
    async def main():
        async with AsyncOmni(pictures(), world=MemoryWorld()) as omni:
            with pytest.raises(InvalidRequest, match="num_inference_steps must be a whole number"):
                await all_of(omni.generate_omni("a", {"num_inference_steps": 0}))
            with pytest.raises(VLLMValidationError, match=r"use generate_omni\(\)"):  # vLLM has no outputs for it
                await anext(omni.generate("a", None, "a"))

    run(main)


def test_an_engine_shaped_client_gets_them_as_messages():
    with AsyncOmniEngine(pictures(), world=MemoryWorld()) as engine:
        engine.add_request("a", "a", sampling_params_list=[{"progress": True}])
        messages = []
        while not messages or not messages[-1].finished:
            messages.append(engine.try_get_output(20))
    outputs = [output for message in messages for output in message.engine_outputs]
    assert any(isinstance(output.payload, StepChunk) for output in outputs)
    assert [output.image.shape for output in outputs if output.image is not None] == [(1, 1, 3)]
