"""The models of vLLM-Omni on our runtime make what they make on vLLM-Omni's own, token by token and sample by sample.

Each test makes its own model, runs theirs and then ours, in one go.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import trio

from omni_actors import Kind
from omni_actors.runtime import open_omni
from omni_actors.vllm_omni import pipeline
from omni_actors.vllm_omni._wire import OmniOutputs
from omni_actors.vllm_omni.tiny import options

from .prompts import MODALITIES, PARAMS, PROMPTS

HERE = Path(__file__).parent
START_S = 400.0

pytestmark = pytest.mark.engine


def theirs(model, names, out, parts=("tokens", "audio"), **more):
    """By name: tokens and samples, or other ``parts``. ``more``: options over those of the tiny model."""
    command = [sys.executable, str(HERE / "theirs.py"), str(model), json.dumps(more), str(out), *names]
    done = subprocess.run(command, capture_output=True, text=True, timeout=START_S, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    with np.load(out) as found:
        return {name: tuple(found[f"{name}.{part}"] for part in parts) for name in names}


async def answer(omni, name):
    """Tokens and samples."""
    tokens, speech = [], []
    async with omni.generate(PROMPTS[name](omni.spec.stages[0].model)) as stream:
        async for output in stream:
            if output.modality == "text":
                tokens += output.payload.token_ids
            elif "audio" in output.payload.tensors:
                speech.append(output.payload.tensors["audio"])
    return np.array(tokens), np.concatenate(speech)


async def pictures(omni, name):
    """What it makes of the prompt: an array for each picture."""
    stages = omni.spec.stages
    params = {stages[number].name: changed for number, changed in PARAMS[name].items()}
    asked = PROMPTS[name](stages[0].model)
    async with omni.generate(asked, sampling=params, modalities=MODALITIES[name]) as stream:
        return [output.image.numpy() async for output in stream if output.image is not None]


async def several(omni, names, answer=answer):
    found = {}

    async def one(number, name):
        found[number] = await answer(omni, name)

    async with trio.open_nursery() as nursery:
        for number, name in enumerate(names):
            nursery.start_soon(one, number, name)
    return [found[number] for number in range(len(names))]


def segments():
    """What the connectors of vLLM-Omni have left in shared memory."""
    return {name for name in os.listdir("/dev/shm") if re.match(r"(shm_)?(omni_|[0-9a-f]+-[0-9a-f]+_)", name)}


def same(ours, other):
    assert ours[0].tolist() == other[0].tolist()
    assert ours[1].shape == other[1].shape
    assert np.abs(ours[1] - other[1]).max() <= 1e-5


async def agree(model, names, tmp_path, tokens_each=16, **more):
    """``names``: prompts. ``more``: options over those of the tiny model."""
    before = segments()
    expected = theirs(model, names, tmp_path / "theirs.npz", **more)
    assert all(len(tokens) == tokens_each and samples.std() > 0 for tokens, samples in expected.values())
    leftovers = segments()
    spec = pipeline(str(model), **{**options(model), **more})
    async with open_omni(spec) as omni:
        for name in names:
            same(await answer(omni, name), expected[name])
        crowd = [*names, *names]
        for name, found in zip(crowd, await several(omni, crowd), strict=True):
            same(found, expected[name])
        await finishes_that_leave_something(omni, names[0], leftovers | before)
        await aborts(omni, names, leftovers | before)
        same(await answer(omni, names[0]), expected[names[0]])
    assert segments() <= leftovers | before


async def agree_on_pictures(model, names, tmp_path):
    """As ``agree``. Two at once, then aborts at many moments of a picture's making."""
    before = segments()
    expected = theirs(model, names, tmp_path / "theirs.npz", parts=("image",))
    assert all(len(made) == 1 and made.std() > 0 for (made,) in expected.values())
    leftovers = segments()
    async with open_omni(pipeline(str(model), **options(model))) as omni:
        for name in names:
            same_pictures(await pictures(omni, name), *expected[name])
        crowd = [*names, *names]
        for name, found in zip(crowd, await several(omni, crowd, pictures), strict=True):
            same_pictures(found, *expected[name])
        await picture_aborts(omni, names, leftovers | before)
        same_pictures(await pictures(omni, names[-1]), *expected[names[-1]])
    assert segments() <= leftovers | before


def same_pictures(ours, other):
    assert len(ours) == len(other)
    for mine, theirs_ in zip(ours, other, strict=True):
        assert mine.dtype == theirs_.dtype == np.uint8
        assert np.array_equal(mine, theirs_)


async def picture_aborts(omni, names, before):
    """Cut off after growing times, alone and four at once: nothing stays, in shared memory or with the engines."""
    start = trio.current_time()
    await pictures(omni, names[0])
    whole_s = trio.current_time() - start

    async def cut_off(name, share):
        with trio.move_on_after(share * whole_s):
            await pictures(omni, name)

    for share in (0, 0.1, 0.3, 0.5, 0.7, 0.9):
        await cut_off(names[-1], share)
    async with trio.open_nursery() as nursery:
        for share in (0.2, 0.5, 0.8, 1.1):
            nursery.start_soon(cut_off, names[0], share)
    await gone(before)


async def aborts(omni, names, before):
    """At many points of a request, one at a time and several at once: nothing of it stays in shared memory."""
    for read in (0, 1, 2, 7, 15, 16, 17):
        await left_after(omni, names[0], read)
    async with trio.open_nursery() as nursery:
        for read in range(0, 18, 3):
            nursery.start_soon(left_after, omni, names[-1], read)
    await gone(before)


async def gone(before):
    with trio.fail_after(10):  # the workers' threads clean up behind the abort
        while not segments() <= before:  # noqa: ASYNC110  # a folder tells nobody when it changes
            await trio.sleep(0.05)


async def finishes_that_leave_something(omni, name, before):
    """What is made for a stage that the request does not go to, or that has enough before all has come, goes too."""
    prompt, stages = PROMPTS[name](omni.spec.stages[0].model), omni.spec.stages
    if stages[0].output == "text":
        async with omni.generate(prompt, modalities=["text"]) as stream:
            assert (await stream.result()).kind is Kind.FINISHED
    if stages[1].output is None:
        async with omni.generate(prompt, {stages[1].name: {"max_tokens": 1}}) as stream:
            assert (await stream.result()).kind is Kind.FINISHED
    await gone(before)


async def left_after(omni, name, read):
    """``read`` outputs of it are read, or all if there are fewer."""
    async with omni.generate(PROMPTS[name](omni.spec.stages[0].model)) as stream:
        for _ in range(read):
            if await anext(stream, None) is None:
                break


def count_told(monkeypatch):
    """Of each time that an engine tells its host something from now on: how many tokens that brings."""
    told, process = [], OmniOutputs.process

    def counted(self, outputs, step):
        told.append(sum(len(output.new_token_ids) for output in outputs))
        return process(self, outputs, step)

    monkeypatch.setattr(OmniOutputs, "process", counted)
    return told


async def test_qwen2_5_omni(tiny_qwen2_5_omni, tmp_path, monkeypatch):
    """Four of five tokens are the talker's, whom nobody listens to: they come by the handful."""
    told = count_told(monkeypatch)
    names = ["text", "image", "audio", "both"]
    await agree(tiny_qwen2_5_omni, names, tmp_path)
    assert len(told) < sum(told) / 2


async def test_qwen3_omni_in_chunks(tiny_qwen3_omni, tmp_path):
    await agree(tiny_qwen3_omni, ["hello", "story"], tmp_path)


async def test_qwen3_omni_whole(tiny_qwen3_omni, tmp_path):
    await agree(tiny_qwen3_omni, ["hello", "story"], tmp_path, async_chunk=False)


async def test_qwen3_tts_whole(tiny_qwen3_tts, tmp_path):
    await agree(tiny_qwen3_tts, ["read", "read more"], tmp_path, tokens_each=0, async_chunk=False)


async def test_qwen3_tts_in_chunks(tiny_qwen3_tts, tmp_path):
    await agree(tiny_qwen3_tts, ["read", "read more"], tmp_path, tokens_each=0)


async def test_qwen_image(tiny_qwen_image, tmp_path):
    await agree_on_pictures(tiny_qwen_image, ["cat", "dog"], tmp_path)


async def test_bagel_with_companions(tiny_bagel, tmp_path):
    await agree_on_pictures(tiny_bagel, ["bagel cat", "bagel red"], tmp_path)


async def test_glm_image(tiny_glm_image, tmp_path):
    await agree_on_pictures(tiny_glm_image, ["glm cat", "glm red"], tmp_path)
