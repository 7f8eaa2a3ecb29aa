"""AsyncOmni in the place of vLLM-Omni's on a model that paints: outputs, and pictures over vLLM-Omni's own server."""

from __future__ import annotations

import asyncio
import base64
import io

import numpy as np
import pytest
from PIL import Image

from omni_actors.vllm_omni.tiny import options

from .served import served

pytestmark = [
    pytest.mark.engine,
    pytest.mark.filterwarnings("ignore"),  # vLLM-Omni's server runs in this process: what it warns of is its own
]

SIZE = {"height": 64, "width": 64, "num_inference_steps": 4}


async def outputs(omni, prompt, **how):
    return [output async for output in omni.generate(prompt, **how)]


def outputs_are_theirs_in_type_and_shape(omni):
    from vllm_omni.diffusion.data import OmniDiffusionConfig
    from vllm_omni.inputs.data import OmniDiffusionSamplingParams
    from vllm_omni.outputs import OmniRequestOutput

    params = [OmniDiffusionSamplingParams(seed=1, num_outputs_per_prompt=2, **SIZE)]
    (made,) = asyncio.run(outputs(omni, {"prompt": "a cat"}, request_id="mine", sampling_params_list=params))
    assert type(made) is OmniRequestOutput
    assert (made.request_id, made.finished, made.final_output_type, made.stage_id) == ("mine", True, "image", 0)
    assert [picture.size for picture in made.images] == [(64, 64)] * 2
    assert made.metrics["image_num"] == 2
    assert made.metrics["stage_metrics"]["0"]["finish_reason"] == "stop"
    assert made.stage_durations["stage_0_gen_ms"] > 0
    assert isinstance(omni.get_diffusion_od_config(), OmniDiffusionConfig)
    assert omni.output_modalities == ["image"]


def pictures_come_over_http(http):
    asked = {"prompt": "a cat", "size": "64x64", "num_inference_steps": 4, "seed": 1, "n": 2}
    first, second = (http.post("/v1/images/generations", json=asked) for _ in range(2))
    assert first.status_code == 200, first.text
    pictures = [[np.asarray(Image.open(io.BytesIO(base64.b64decode(each["b64_json"])))) for each in answer["data"]]
                for answer in (first.json(), second.json())]  # fmt: skip
    assert [picture.shape[:2] for picture in pictures[0]] == [(64, 64)] * 2
    assert np.array_equal(pictures[0], pictures[1])


def what_is_wrong_is_the_callers_fault(http):
    answer = http.post("/v1/images/generations", json={"prompt": "a cat", "size": "64"})
    assert answer.status_code in (400, 422), answer.text


def test_a_model_that_paints(tiny_qwen_image):
    from omni_actors_asyncio import AsyncOmni

    omni = AsyncOmni(model=str(tiny_qwen_image), stage_init_timeout=300, **options(tiny_qwen_image))
    try:
        outputs_are_theirs_in_type_and_shape(omni)
        with served(omni) as http:
            pictures_come_over_http(http)
            what_is_wrong_is_the_callers_fault(http)
    finally:
        omni.shutdown()
