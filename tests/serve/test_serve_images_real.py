"""The routes for pictures on real, if tiny, diffusers pipelines, in processes of their own."""

from __future__ import annotations

import base64
import io
import json

import numpy as np
import pytest
from PIL import Image

from omni_actors.config import PipelineSpec, StageSpec

from .test_serve_images import CHAT, EDITS, IMAGES

pytestmark = pytest.mark.process


@pytest.fixture
def folder(tiny_diffusion):
    return tiny_diffusion


def painting(folder, **args):
    painter = StageSpec(
        name="painter", engine="diffusion", model=str(folder), output="image", engine_args={"threads": 1, **args},
        params={"num_inference_steps": 4}, env={"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    return PipelineSpec(name="tiny", stages=(painter,), drain_s=5.0)


def pixels(data):
    with Image.open(io.BytesIO(base64.b64decode(data))) as picture:
        return np.asarray(picture)


def grey():
    file = io.BytesIO()
    Image.new("RGB", (32, 32), (128, 128, 128)).save(file, "PNG")
    return {"image": ("grey.png", file.getvalue())}


def test_prompts_become_pictures(serving, folder):
    async def story(served):
        two = (await served.post(IMAGES, {"prompt": "a cup", "n": 2, "size": "32x32", "seed": 1})).json()
        first, second = [pixels(made["b64_json"]) for made in two["data"]]
        assert first.shape == (32, 32, 3)
        assert not np.array_equal(first, second)
        again = (await served.post(IMAGES, {"prompt": "a cup", "size": "32x32", "seed": 2})).json()
        assert np.abs(pixels(again["data"][0]["b64_json"]).astype(int) - second).max() <= 2  # alone: not bit by bit
        await streams(served)
        await refuses(served)
        chat = {"messages": [{"role": "user", "content": "tea"}], "modalities": ["image"], "image": {"seed": 3}}
        (part,) = (await served.post(CHAT, chat)).json()["choices"][0]["message"]["images"]
        assert pixels(part["image_url"]["url"].partition(",")[2]).shape == (32, 32, 3)

    serving(painting(folder), story, within_s=90, real=True)


async def streams(served):
    told = await served.post(IMAGES, {"prompt": "a cup", "stream": True, "partial_images": 1, "seed": 1})
    events = [json.loads(line.removeprefix("data: ")) for line in told.text.split("\n\n") if line.startswith("data: ")]
    assert [event["type"].partition(".")[2] for event in events] == ["partial_image", "completed"]
    assert [pixels(event["b64_json"]).shape for event in events] == [(32, 32, 3)] * 2


async def refuses(served):
    for changes, words in (
        ({"num_inference_steps": 0}, "num_inference_steps must be a whole number from 1"),
        ({"size": "33x32"}, "width is 33; it must be a multiple of"),
        ({"prompt": "a " * 200}, "tokens; this model reads 77"),
        ({"scheduler": "NoSuch"}, "scheduler 'NoSuch' does not fit this model"),
        ({"strength": 0.5}, "takes no 'strength'"),
    ):
        answer = await served.post(IMAGES, {"prompt": "a"} | changes)
        assert (answer.status_code, words in answer.json()["error"]["message"]) == (400, True), answer.text
    answer = await served.http.post(EDITS, data={"prompt": "a"}, files=grey())
    assert answer.status_code == 400
    assert "StableDiffusionPipeline takes no 'image'" in answer.json()["error"]["message"]


def test_pictures_become_others(serving, folder):
    async def story(served):
        edit = {"prompt": "red", "seed": "1", "strength": "0.5"}
        answer = await served.http.post(EDITS, data=edit, files=grey())
        assert answer.status_code == 200, answer.text
        made = pixels(answer.json()["data"][0]["b64_json"])
        assert made.shape == (32, 32, 3)
        assert made.std() > 0
        masked = await served.http.post(EDITS, data=edit, files=grey() | {"mask": grey()["image"]})
        assert (masked.status_code, "mask_image" in masked.json()["error"]["message"]) == (400, True)
        bare = await served.post(IMAGES, {"prompt": "red"})
        assert bare.status_code == 400, bare.text

    kind = "diffusers:StableDiffusionImg2ImgPipeline"
    serving(painting(folder, pipeline_class=kind), story, within_s=90, real=True)
