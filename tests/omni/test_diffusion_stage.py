"""A diffusion stage of vLLM-Omni's in our host: aborts act within a picture, errors are said, deaths are survived."""

from __future__ import annotations

import os
import signal

import attrs
import numpy as np
import pytest
import trio

from omni_actors import InvalidRequest, StageFailed, StepChunk
from omni_actors.runtime import open_omni
from omni_actors.vllm_omni import pipeline
from omni_actors.vllm_omni.tiny import options

from .test_same_outputs import START_S, pictures, same_pictures

pytestmark = [pytest.mark.engine, pytest.mark.process]

ENDLESS = 1_000_000
"""Steps of a picture that nobody waits for."""
PASS_S = 3.0
"""More than a pass of the tiny model takes on a busy machine, and far less than a picture of so many steps."""


def spec_of(model, more=None, **deadlines):
    """``more``: options over those of the tiny model."""
    spec = pipeline(str(model), **{**options(model), **(more or {})})
    (stage,) = spec.stages
    limits = attrs.evolve(stage.deadlines, start_s=START_S, placement_s=START_S, backoff_first_s=0.1, **deadlines)
    return attrs.evolve(spec, stages=(attrs.evolve(stage, deadlines=limits),))


def endless(omni):
    return omni.generate({"prompt": "a cat"}, {"num_inference_steps": ENDLESS})


async def at_work(omni):
    """Wait until the engine has the request in a pass."""
    client = omni._stages["diffusion"].replicas[0].client
    made = client.made
    with trio.fail_after(60):
        while client.made < made + 3:
            client.ping()
            await trio.sleep(0.02)


async def how_many(omni, params):
    async with omni.generate({"prompt": "a cat"}, params) as stream:
        return len([output async for output in stream if output.image is not None])


async def aborts_act_within_a_picture(omni):
    for _ in range(3):
        async with endless(omni) as stream:
            await at_work(omni)
            begun = trio.current_time()
            report = await omni.abort(stream.request_id)
            assert report.unconfirmed == ()
            assert trio.current_time() - begun < PASS_S


async def what_is_wrong_is_said(omni):
    for params, words in (
        ({"num_inference_step": 4}, "did you mean 'num_inference_steps'"),
        ({"n": 0}, "at least 1"),
        ([1], "a mapping of its fields, not list"),
        ({"lora_scale": object()}, "cannot be sent"),
    ):
        with pytest.raises(InvalidRequest, match=words) as caught:
            async with omni.generate({"prompt": "a cat"}, params) as stream:
                await stream.result()
        assert caught.value.stage == "diffusion"


async def a_death_fails_its_request_and_no_other(omni, signum):
    async with endless(omni) as stream:
        await at_work(omni)
        os.kill(omni.pids()["diffusion/0"], signum)
        with pytest.raises(StageFailed) as caught:
            await stream.result()
    assert caught.value.stage == "diffusion"


async def test_a_diffusion_stage(tiny_qwen_image):
    async with open_omni(spec_of(tiny_qwen_image, silence_s=2.0, hang_s=5.0)) as omni:
        expected = await pictures(omni, "cat")
        await aborts_act_within_a_picture(omni)
        await what_is_wrong_is_said(omni)
        same_pictures(await pictures(omni, "cat"), expected)
        for signum in (signal.SIGKILL, signal.SIGSTOP):
            await a_death_fails_its_request_and_no_other(omni, signum)
            same_pictures(await pictures(omni, "cat"), expected)
        assert await how_many(omni, {"n": 3, "seed": 1}) == 3


async def steps_and_picture(omni, seed):
    """How far it said it was, and what came of it."""
    steps, made = [], []
    async with omni.generate({"prompt": "a cat"}, {"seed": seed, "progress": True}) as stream:
        async for output in stream:
            if isinstance(output.payload, StepChunk):
                steps.append((output.payload.done, output.payload.total))
            elif output.image is not None:
                made.append(output.image.numpy())
    return steps, made


async def test_step_by_step(tiny_qwen_image):
    """One step is of all requests at work; each is told, an abort acts between two, and the pictures are the same."""
    alone = {}
    async with open_omni(spec_of(tiny_qwen_image, {"step_execution": True, "max_num_seqs": 4})) as omni:
        for seed in (1, 2):
            steps, alone[seed] = await steps_and_picture(omni, seed)
            assert steps == sorted(steps)
            assert {total for _, total in steps} == {4}
            assert len(steps) >= 3

        async def crowd(seed):
            _, made = await steps_and_picture(omni, seed)
            assert np.abs(made[0].astype(int) - alone[seed][0]).max() <= 1

        async with trio.open_nursery() as nursery, endless(omni):
            for seed in (1, 2, 1, 2):
                nursery.start_soon(crowd, seed)
            await aborts_act_within_a_picture(omni)
        same_pictures(await pictures(omni, "cat"), alone[1])
