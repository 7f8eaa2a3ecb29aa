"""What is said of a diffusion stage before anything is started."""

from __future__ import annotations

import json

import pytest

from omni_actors._errors import ConfigError, InvalidRequest
from omni_actors.config import StageSpec
from omni_actors.stages.omni import DIFFUSION, DiffusionFrontend


@pytest.fixture
def folder(tmp_path):
    """As much of a pipeline as is looked at."""
    (tmp_path / "unet").mkdir()
    index = {
        "_class_name": "SomePipeline",
        "_diffusers_version": "0",
        "unet": ["diffusers", "UNet"],
        "vae": [None, None],
    }
    (tmp_path / "model_index.json").write_text(json.dumps(index))
    return tmp_path


def stage(model, **engine_args):
    return StageSpec(name="painter", engine="diffusion", model=str(model), engine_args=engine_args, output="image")


def refusal(model, **engine_args):
    with pytest.raises(ConfigError) as caught:
        DIFFUSION.check(stage(model, **engine_args))
    assert caught.value.stage == "painter"
    return str(caught.value)


def test_a_folder_an_id_and_a_class_are_models(folder):
    DIFFUSION.check(stage(folder, max_batch=4, dtype="float32", scheduler="DDIMScheduler", share=False))
    DIFFUSION.check(stage("some-org/some-model", revision="main"))
    DIFFUSION.check(stage("omni_actors.testing.fake_omni:Anything", whatever=3))


def test_a_folder_that_is_no_pipeline(folder, tmp_path):
    assert "it has no model" in refusal("")
    assert "there is no such folder" in refusal(tmp_path / "missing")
    assert "there is no module 'nowhere_at_all'" in refusal("nowhere_at_all:Class")
    (folder / "unet").rmdir()
    assert "is incomplete: there is no unet" in refusal(folder)
    (folder / "model_index.json").write_text("{}")
    assert "names no pipeline class" in refusal(folder)
    (folder / "model_index.json").write_text("{")
    assert "model_index.json is broken" in refusal(folder)
    (folder / "model_index.json").unlink()
    assert "has no model_index.json: it is no diffusers pipeline" in refusal(folder)


def test_code_of_its_own_is_not_run_unasked(folder):
    index = {"_class_name": ["pipeline", "Own"], "unet": ["diffusers", "UNet"]}
    (folder / "model_index.json").write_text(json.dumps(index))
    assert "comes with code of its own (pipeline.py); it is not run unasked" in refusal(folder)
    DIFFUSION.check(stage(folder, trust_remote_code=True))


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({"dtyp": "float32"}, "'dtyp' is not known"),
        ({"dtype": "float8"}, "dtype is 'float8'; it can be auto, float32, float16, bfloat16"),
        ({"offload": True}, "offload is True; it can be none, model, sequential"),
        ({"max_batch": 0}, "max_batch must be a whole number from 1"),
        ({"max_steps": "many"}, "max_steps must be a whole number from 1, not 'many'"),
        ({"max_batch_pixels": -1}, "max_batch_pixels must be"),
        ({"components": object()}, "engine_args"),
    ],
)
def test_options_that_cannot_be(folder, args, words):
    assert words in refusal(folder, **args)


def test_a_misspelt_option_is_guessed(folder):
    with pytest.raises(ConfigError) as caught:
        DIFFUSION.check(stage(folder, dtyp="float32"))
    assert caught.value.hint == "did you mean 'dtype'?"


def test_what_is_not_installed_is_named_unless_another_python_runs_it(folder, monkeypatch):
    import importlib.util

    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "diffusers" else find(name))
    assert "diffusers cannot be imported" in refusal(folder)
    DIFFUSION.check(StageSpec(name="painter", engine="diffusion", model=str(folder), python="other/python"))


def test_the_child_gets_the_folder_and_the_options(folder, monkeypatch):
    monkeypatch.chdir(folder.parent)
    payload = DIFFUSION.payload(stage(f"./{folder.name}", max_batch=3, dtype="float32"))
    assert payload["class"] == "omni_actors.engines.diffusion:DiffusersModel"
    assert payload["args"] == {"model": str(folder), "dtype": "float32"}
    assert payload["max_batch"] == 3


def test_images_per_prompt_are_samples(folder):
    frontend = DiffusionFrontend(stage(folder))
    assert frontend.samples({"num_images_per_prompt": 3}) == frontend.samples({"n": 3}) == 3
    assert len(frontend.prepare(["a", "b"], "cat", {"n": 2, "seed": 1}, stream=True, text=False)) == 2
    with pytest.raises(InvalidRequest, match="n is 2 and num_images_per_prompt is 3; they mean the same"):
        frontend.samples({"n": 2, "num_images_per_prompt": 3})
