"""What AsyncOmni takes for a model of vLLM-Omni, and what for a pipeline of ours."""

from __future__ import annotations

import pytest
from omni_actors_asyncio._asked_model import is_model

from omni_actors import PipelineSpec, StageSpec


def spec(*engines):
    stages = tuple(StageSpec(name=f"s{number}", engine=engine, model="m") for number, engine in enumerate(engines))
    return PipelineSpec(name="p", stages=stages)


@pytest.mark.parametrize("pipeline", ["Qwen/Qwen2.5-Omni-7B", spec("vllm-omni", "vllm-omni")])
def test_models(pipeline):
    assert is_model(pipeline, {})


def test_a_folder_is_a_model_and_so_is_what_is_called_one(tmp_path):
    assert is_model(str(tmp_path), {})
    assert is_model(tmp_path, {})
    assert is_model(None, {"model": "anything"})


@pytest.mark.parametrize(
    "pipeline",
    ["tiny-omni", "mine.yaml", "deploy/mine.yaml", "./mine.yml", spec("vllm"), spec("vllm-omni", "diffusion")],
)
def test_pipelines(pipeline):
    assert not is_model(pipeline, {})
    assert not is_model(None, {})
