"""What AsyncOmni takes for a model of vLLM-Omni, and what for a pipeline of ours."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
from omni_actors_asyncio import AsyncOmni, Omni
from omni_actors_asyncio._asked_model import is_model

from omni_actors import ConfigError, PipelineSpec, StageSpec


def spec(*engines):
    stages = tuple(StageSpec(name=f"s{number}", engine=engine, model="m") for number, engine in enumerate(engines))
    return PipelineSpec(name="p", stages=stages)


@pytest.mark.parametrize("pipeline", ["Qwen/Qwen2.5-Omni-7B", spec("vllm-omni", "vllm-omni")])
def test_models(pipeline):
    assert is_model(pipeline, {})


def test_a_model_s_folder_is_a_model_and_so_is_what_is_called_one(tmp_path):
    assert not is_model(tmp_path, {})
    (tmp_path / "config.json").write_text("{}")
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


@pytest.mark.skipif(find_spec("vllm_omni") is not None, reason="vLLM-Omni is installed")
@pytest.mark.parametrize("door", [AsyncOmni, Omni])
def test_without_vllm_omni_it_says_what_to_install(door):
    with pytest.raises(ConfigError, match=r"not installed.*install omni-actors\[omni\]"):
        door("Qwen/Qwen2.5-Omni-7B")
