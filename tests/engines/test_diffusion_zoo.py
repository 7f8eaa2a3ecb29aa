"""The engine runs any diffusers pipeline: of each family one, tiny, three requests at once, against diffusers alone."""

from __future__ import annotations

import inspect
import json

import numpy as np
import pytest
import torch
from PIL import Image

from omni_actors._errors import InvalidRequest
from omni_actors.engines._generator import Unloadable
from omni_actors.engines.diffusion import DiffusersModel
from omni_actors.wire.omni import Tensor

from . import tiny_pipelines
from .diffusion_batch import Batch

pytestmark = [
    pytest.mark.usefixtures("one_torch_thread"),
    pytest.mark.filterwarnings(*(f"ignore::{kind}Warning" for kind in ("Deprecation", "Future", "User", "Runtime"))),
]


def _grey(shift=0):
    return ((np.indices((32, 32)).sum(0) * 4 + shift) % 256).astype(np.uint8)[..., None].repeat(3, axis=2)


def _picture(name):
    return {name: Tensor.from_numpy(_grey())}, {name: Image.fromarray(_grey())}


def _mask():
    mask = np.zeros((32, 32), np.uint8)
    mask[8:24, 8:24] = 255
    return {"mask_image": Tensor.from_numpy(mask)}, {"mask_image": Image.fromarray(mask)}


TEXT = {"prompt": "a cat"}
SIZE = {"height": 32, "width": 32}
# maker, the pipeline's class if it is not the folder's own, what is asked, and the pictures in it (wire, diffusers)
ZOO = {
    "stable-diffusion": ("stable_diffusion", None, TEXT, ()),
    "img2img": ("stable_diffusion", "StableDiffusionImg2ImgPipeline", {**TEXT, "strength": 0.9}, (_picture("image"),)),
    "inpaint": ("stable_diffusion", "StableDiffusionInpaintPipeline", TEXT, (_picture("image"), _mask())),
    "sdxl": ("sdxl", None, TEXT, ()),
    "controlnet": ("controlnet", None, TEXT, (_picture("image"),)),
    "flux": ("flux", None, {**TEXT, "guidance_scale": 3.0, **SIZE}, ()),
    "sd3": ("sd3", None, {**TEXT, **SIZE}, ()),
    "z-image": ("z_image", None, {**TEXT, **SIZE, "guidance_scale": 3.0}, ()),
    "dit": ("dit", None, {"class_labels": [3]}, ()),
    "wan": ("wan", None, {**TEXT, "height": 16, "width": 16, "num_frames": 9}, ()),
    "stable-audio": ("stable_audio", None, {**TEXT, "audio_end_in_s": 0.1}, ()),
    "dance-diffusion": ("dance_diffusion", None, {}, ()),
}


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory):
    made = {}

    def folder(maker):
        if maker not in made:
            made[maker] = getattr(tiny_pipelines, maker)(tmp_path_factory.mktemp(maker))
        return made[maker]

    return folder


def reference(folder, kind, **args):
    import diffusers

    pipeline = getattr(diffusers, kind or "DiffusionPipeline").from_pretrained(folder, **args)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def alone(pipeline, seed, arguments):
    more = {"output_type": "np"} if "output_type" in inspect.signature(type(pipeline).__call__).parameters else {}
    made = pipeline(**arguments, generator=torch.Generator().manual_seed(seed), **more)
    for name in ("audios", "frames", "images"):
        if (found := getattr(made, name, None)) is not None:
            return np.asarray(found[0], dtype=np.float32)
    raise AssertionError("nothing was made")


def same(chunks, wanted, within=1):
    """Pictures and frames within one of 255, sound within 1e-4 of its loudest sample."""
    tensors = chunks[-1].tensors
    if "audio" in tensors:
        sound = np.concatenate([chunk.tensors["audio"] for chunk in chunks])
        mono = wanted.mean(axis=0) if wanted.ndim == 2 else wanted
        assert sound.shape == mono.shape
        return float(np.abs(sound - mono).max()) <= 1e-4 * max(1.0, float(np.abs(mono).max()))
    made = tensors["video"] if "video" in tensors else tensors["image"]
    pixels = (wanted.clip(0, 1) * 255).round()
    assert made.shape == pixels.shape
    return float(np.abs(made.astype(int) - pixels).max()) <= within


@pytest.mark.parametrize("name", ZOO)
def test_three_requests_at_once_are_what_each_is_alone(name, folder_of):
    maker, kind, asked, pictures = ZOO[name]
    folder = folder_of(maker)
    args = {"pipeline_class": f"diffusers:{kind}"} if kind else {}
    model = DiffusersModel(model=str(folder), **args)
    batch, pipeline = Batch(model), reference(folder, kind)
    for seed in range(3):
        prompt = {**asked, **{key: value for sent, _ in pictures for key, value in sent.items()}}
        batch.join(str(seed), prompt, num_inference_steps=3 + seed, seed=seed)
    batch.run()
    assert not batch.failed
    arguments = {**asked, **{key: value for _, given in pictures for key, value in given.items()}}
    made = []
    for seed in range(3):
        wanted = alone(pipeline, seed, {**arguments, "num_inference_steps": 3 + seed})
        assert same(batch.made[str(seed)], wanted), seed
        made.append(wanted.tobytes())
    assert len(set(made)) == 3, "three times the same proves nothing"
    assert model.counters()["shared_passes"] > 0


# ---------------------------------------------------------------------- adapters


def test_adapters_are_of_who_asked_for_them(folder_of, tmp_path):
    folder = folder_of("stable_diffusion")
    paths = {name: str(tiny_pipelines.lora(tmp_path / name, seed)) for name, seed in (("one", 1), ("two", 2))}
    model = DiffusersModel(model=str(folder), loras={"one": paths["one"]})
    assert model.load_lora("two", paths["two"]) == ["one", "two"]
    asked = {"plain": None, "one": "one", "half": {"one": 0.5}, "two": {"two": 1.0}, "one again": "one"}
    batch = Batch(model)
    for name, lora in asked.items():
        batch.join(name, "a", num_inference_steps=3, seed=1, lora=lora)
    pictures = batch.run()

    pipeline = reference(folder, None)
    for name, path in paths.items():
        pipeline.load_lora_weights(path, adapter_name=name)
    for name, lora in asked.items():
        weights = {lora: 1.0} if isinstance(lora, str) else lora
        if weights is None:
            pipeline.disable_lora()
        else:
            pipeline.enable_lora()
            pipeline.set_adapters(list(weights), list(weights.values()))
        assert same(batch.made[name], alone(pipeline, 1, {"prompt": "a", "num_inference_steps": 3})), name
    assert len({pictures[name].tobytes() for name in ("plain", "one", "half", "two")}) == 4
    assert model.counters()["shared_passes"] == 3, "the two that asked for the same"

    assert model.unload_lora("two") == model.list_loras() == ["one"]
    with pytest.raises(InvalidRequest, match="there is no adapter 'two'; loaded are: one"):
        batch.join("gone", "a", lora="two")
    with pytest.raises(ValueError, match="'one' is loaded already"):
        model.load_lora("one", paths["one"])
    with pytest.raises(FileNotFoundError, match=r"there is no adapter at .*nowhere"):
        model.load_lora("three", str(tmp_path / "nowhere"))
    assert model.unload_lora("one") == []
    batch.join("after all", "a", num_inference_steps=3, seed=1)
    assert np.array_equal(batch.run()["after all"], pictures["plain"])


# ---------------------------------------------------------------------- options


@pytest.mark.parametrize(
    "args",
    [
        {"vae_slicing": True, "vae_tiling": True},
        {"threads": 1, "scheduler": "DDPMScheduler"},
    ],
    ids=", ".join,
)
def test_it_runs_with_options(args, folder_of):
    model = DiffusersModel(model=str(folder_of("stable_diffusion")), **args)
    batch = Batch(model)
    for seed in range(2):
        batch.join(str(seed), "a", num_inference_steps=2, seed=seed)
    pictures = batch.run()
    assert [picture.shape for picture in pictures.values()] == [(32, 32, 3)] * 2
    if "scheduler" in args:
        assert type(model._pipeline.scheduler).__name__ == "DDPMScheduler"


@pytest.mark.parametrize(("dtype", "within"), [("bfloat16", 4), ("float16", 1)])
def test_half_the_bits_are_as_good_together_as_they_are_alone(dtype, within, folder_of):
    folder = folder_of("stable_diffusion")
    model, pipeline = (
        DiffusersModel(model=str(folder), dtype=dtype),
        reference(folder, None, dtype=getattr(torch, dtype)),
    )
    batch = Batch(model)
    for seed in range(3):
        batch.join(str(seed), "a", num_inference_steps=3, seed=seed)
    batch.run()
    assert model.counters()["shared_passes"] == 3
    for seed in range(3):
        assert same(batch.made[str(seed)], alone(pipeline, seed, {"prompt": "a", "num_inference_steps": 3}), within)


def test_a_component_can_be_left_out(folder_of):
    left_out = {"text_encoder_3": None, "tokenizer_3": None}
    model = DiffusersModel(model=str(folder_of("sd3")), components=left_out)
    batch = Batch(model)
    batch.join("a", "a", num_inference_steps=2, seed=1, **SIZE)
    batch.run()
    pipeline = reference(folder_of("sd3"), None, **left_out)
    assert same(batch.made["a"], alone(pipeline, 1, {"prompt": "a", "num_inference_steps": 2, **SIZE}), 0)


def test_what_a_request_must_not_bring_is_refused(folder_of):
    """IP adapters change the denoiser for everybody."""
    model = DiffusersModel(model=str(folder_of("stable_diffusion")))
    for name in ("ip_adapter_image", "cross_attention_kwargs", "callback_on_step_end"):
        with pytest.raises(InvalidRequest, match=f"StableDiffusionPipeline takes no '{name}'"):
            Batch(model).join("a", {**TEXT, name: {}})


@pytest.mark.parametrize("args", [{"device": "cuda"}, {"device": "nowhere"}, {"offload": "model"}])
def test_what_this_machine_lacks_is_said_in_one_line(args, folder_of):
    if torch.cuda.is_available():
        pytest.skip("this machine lacks nothing")
    with pytest.raises(Unloadable, match="cannot be loaded: ") as caught:
        DiffusersModel(model=str(folder_of("stable_diffusion")), **args)
    assert "\n" not in str(caught.value)


def test_code_that_comes_with_a_model_runs_only_if_asked_for(folder_of, tmp_path):
    folder = tmp_path / "own"
    reference(folder_of("dit"), None).save_pretrained(folder)
    (folder / "pipeline.py").write_text(
        "from diffusers import DiTPipeline\n\n\nclass OwnPipeline(DiTPipeline):\n    pass\n"
    )
    index = json.loads((folder / "model_index.json").read_text())
    index["_class_name"] = ["pipeline", "OwnPipeline"]
    (folder / "model_index.json").write_text(json.dumps(index))
    with pytest.raises(Unloadable, match=r"custom code in pipeline\.py .*Read it, then set trust_remote_code"):
        DiffusersModel(model=str(folder))
    model = DiffusersModel(model=str(folder), trust_remote_code=True)
    batch = Batch(model)
    batch.join("a", {"class_labels": [1]}, num_inference_steps=2, seed=1)
    assert batch.run()["a"].ndim == 3


# ---------------------------------------------------------------------- calls and previews


def test_who_sleeps_takes_no_requests(folder_of):
    model = DiffusersModel(model=str(folder_of("stable_diffusion")))
    batch = Batch(model)
    model.sleep()
    assert model.is_sleeping()
    with pytest.raises(RuntimeError, match="the engine sleeps"):
        batch.join("a", "a")
    model.wake_up()
    batch.join("b", "b", num_inference_steps=2, seed=1)
    assert "b" in batch.run()


def test_memory_is_reported(folder_of):
    model = DiffusersModel(model=str(folder_of("stable_diffusion")))
    report = model.memory_report()
    assert 100_000 < report["weights"] < 50 << 20
    assert report["weights"] < report["resident"] <= report["peak_resident"]


def test_a_profile_is_of_the_steps(folder_of, tmp_path):
    model = DiffusersModel(model=str(folder_of("stable_diffusion")))
    batch, file = Batch(model), tmp_path / "trace.json"
    model.start_profile(str(file))
    with pytest.raises(RuntimeError, match="already"):
        model.start_profile(str(file))
    batch.join("a", "a", num_inference_steps=2, seed=1)
    batch.run()
    model.stop_profile()
    batch.join("b", "b", num_inference_steps=1, seed=1)
    batch.run()
    names = {event.get("name") for event in json.loads(file.read_text())["traceEvents"]}
    assert "aten::conv2d" in names


@pytest.mark.parametrize("maker", ["stable_diffusion", "sd3", "flux"])
def test_a_preview_is_what_the_vae_makes_of_the_latents(maker, folder_of):
    model, pipeline = DiffusersModel(model=str(folder_of(maker))), reference(folder_of(maker), None)
    size = {"height": 32, "width": 48}
    batch = Batch(model)
    batch.join("a", "a", num_inference_steps=3, seed=1, preview_every=1, **size)
    batch.run()
    latents = []

    def keep(pipe, step, time, kwargs):
        latents.append(kwargs["latents"])
        return {}

    alone(pipeline, 1, {"prompt": "a", "num_inference_steps": 3, "callback_on_step_end": keep, **size})
    assert [step.preview is not None for step in batch.steps["a"]] == [False, True, True]
    for step, made in zip(batch.steps["a"][1:], latents, strict=False):
        plane = pipeline._unpack_latents(made, 32, 48, pipeline.vae_scale_factor) if maker == "flux" else made
        config = pipeline.vae.config
        shown = pipeline.vae.decode(plane / config.scaling_factor + (config.shift_factor or 0)).sample
        (wanted,) = pipeline.image_processor.postprocess(shown.detach(), output_type="np")
        assert np.abs(step.preview - (wanted * 255).round()).max() <= 1


def test_films_have_no_previews(folder_of):
    model = DiffusersModel(model=str(folder_of("wan")))
    with pytest.raises(InvalidRequest, match="the latents of WanPipeline cannot be shown"):
        Batch(model).join("a", TEXT, preview_every=1)


# ---------------------------------------------------------------------- who shares, whatever else is asked


def test_guidance_or_none_the_pass_is_shared(folder_of):
    """Where guidance doubles a request's rows, and its time step is given per row."""
    model, pipeline = DiffusersModel(model=str(folder_of("sd3"))), reference(folder_of("sd3"), None)
    asked = {str(scale): {"num_inference_steps": 3, "guidance_scale": scale, **SIZE} for scale in (1.0, 5.0)}
    batch = Batch(model)
    for name, params in asked.items():
        batch.join(name, "a", seed=1, **params)
    batch.run()
    for name, params in asked.items():
        assert same(batch.made[name], alone(pipeline, 1, {"prompt": "a", **params})), name
    assert model.counters()["shared_passes"] == model.counters()["passes"] == 3


def test_lists_of_texts_of_several_lengths_are_joined(folder_of):
    model, pipeline = DiffusersModel(model=str(folder_of("z_image"))), reference(folder_of("z_image"), None)
    prompts = ["a", "a rather longer text, of more than thirty-two letters", "b" * 100]
    batch = Batch(model)
    for prompt in prompts:
        batch.join(prompt, prompt, seed=1, num_inference_steps=3, **SIZE)
    batch.run()
    for prompt in prompts:
        assert same(batch.made[prompt], alone(pipeline, 1, {"prompt": prompt, "num_inference_steps": 3, **SIZE}))
    assert model.counters()["shared_passes"] == model.counters()["passes"] == 3


class Offloading:
    """Loads a pipeline whose models come when they are called, as with ``offload``; here from the CPU to the CPU."""

    @classmethod
    def from_pretrained(cls, model, **args):
        pipeline = reference(model, None)
        pipeline.enable_model_cpu_offload()
        return pipeline


def test_offloading_takes_the_denoiser_from_nobody(folder_of, tmp_path, monkeypatch):
    from diffusers import StableDiffusionPipeline

    offload = StableDiffusionPipeline.enable_model_cpu_offload
    monkeypatch.setattr(
        StableDiffusionPipeline, "enable_model_cpu_offload", lambda self, **_: offload(self, device="cpu")
    )
    model = DiffusersModel(model=str(folder_of("stable_diffusion")), pipeline_class=f"{__name__}:Offloading")
    for _ in range(2):
        batch = Batch(model)
        batch.join("short", "a", num_inference_steps=2, seed=1)
        batch.join("long", "a", num_inference_steps=4, seed=1)
        batch.run()
        assert batch.passes == [0, 2, 2, 1, 1], "who ends first must not free the models of who goes on"
    batch.join("plain", "a", num_inference_steps=2, seed=1)
    batch.round()
    model.load_lora("one", str(tiny_pipelines.lora(tmp_path, 1)))
    batch.join("adapted", "a", num_inference_steps=2, seed=1, lora="one")
    pictures = batch.run()
    assert batch.passes[5:] == [0, 1, 2, 1], "loading an adapter puts new hooks on the models"
    assert len(batch.steps["adapted"]) == 2
    assert not np.array_equal(pictures["plain"], pictures["adapted"])
