"""Two copies of a stage that a connector feeds: either may take any request, and each has a device of its own."""

from pathlib import Path

import numpy as np
import pytest

from omni_actors.runtime import open_omni
from omni_actors.vllm_omni import pipeline

from .test_same_outputs import HERE, answer, several

pytestmark = pytest.mark.engine

NAMES = ["read", "read more", "read", "read more"]


def visible(pid):
    """What the process was started with."""
    found = dict(each.split("=", 1) for each in Path(f"/proc/{pid}/environ").read_text().split("\0") if "=" in each)
    return found["CUDA_VISIBLE_DEVICES"]


async def test_two_replicas_of_a_vocoder_say_what_one_says(tiny_qwen3_tts):
    how = {"deploy_config": str(HERE / "deploy" / "qwen3_tts.yaml"), "trust_remote_code": True}
    spec = pipeline(str(tiny_qwen3_tts), stage_1_num_replicas=2, stage_1_devices="1,2", **how)
    async with open_omni(spec) as omni:
        assert [visible(omni.pids()[f"code2wav/{replica}"]) for replica in range(2)] == ["1", "2"]
        alone = {name: await answer(omni, name) for name in dict.fromkeys(NAMES)}
        for name, (_, samples) in zip(NAMES, await several(omni, NAMES), strict=True):
            assert samples.shape == alone[name][1].shape
            assert np.abs(samples - alone[name][1]).max() <= 1e-5
