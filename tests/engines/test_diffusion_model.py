"""DiffusersModel, in this process: what requests get together, against diffusers' own pipeline alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from omni_actors._errors import InvalidRequest
from omni_actors.engines._generator import Unloadable
from omni_actors.engines.diffusion import DiffusersModel
from omni_actors.engines.diffusion._run import NotFinite
from omni_actors.wire.omni import Tensor

from . import tiny_pipelines
from .diffusion_batch import Batch

pytestmark = [
    pytest.mark.usefixtures("one_torch_thread"),
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),  # Heun's, of its numpy
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_pipelines.stable_diffusion(tmp_path_factory.mktemp("sd"))


@pytest.fixture(scope="module")
def diffusers_own(folder):
    from diffusers import StableDiffusionPipeline

    pipeline = StableDiffusionPipeline.from_pretrained(folder)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


@pytest.fixture
def model(folder):
    return DiffusersModel(model=str(folder))


def alone(pipeline, *args, seed, **params):
    made = pipeline(*args, generator=torch.Generator().manual_seed(seed), output_type="np", **params)
    return (made.images[0] * 255).round().astype(np.uint8)


def asked(number):
    return f"picture number {number}", {
        "seed": number, "num_inference_steps": 3 + number % 3, "guidance_scale": (7.5, 1.0, 3.0, 5.0)[number % 4],
        "negative_prompt": "dull" if number % 2 else None,
    }  # fmt: skip


def differ(one, other):
    return int(np.abs(one.astype(int) - other.astype(int)).max())


def test_a_request_does_not_look_through_all_models_for_their_device(model, monkeypatch):
    from diffusers import DiffusionPipeline

    looks = []
    found = DiffusionPipeline._execution_device
    counting = property(lambda pipeline: looks.append(type(pipeline)) or found.fget(pipeline))
    monkeypatch.setattr(DiffusionPipeline, "_execution_device", counting)
    prompt, params = asked(1)
    batch = Batch(model)
    batch.join("a", prompt, **params)
    assert batch.run()["a"].any()
    assert looks == []


def test_a_request_alone_is_bit_by_bit_what_diffusers_makes(model, diffusers_own):
    batch = Batch(model)
    batch.join("a", "a cat", num_inference_steps=4, seed=7)
    picture = batch.run()["a"]
    assert np.array_equal(picture, alone(diffusers_own, "a cat", seed=7, num_inference_steps=4))
    assert batch.made["a"][0].meta == {"seed": 7, "steps": 4, "height": 32, "width": 32}
    assert picture.std() > 1, "a picture of one colour proves nothing"


def test_together_they_are_what_they_are_alone(model, diffusers_own):
    batch = Batch(model)
    for number in range(6):
        prompt, params = asked(number)
        batch.join(str(number), prompt, **params)
    pictures = batch.run()
    for number in range(6):
        prompt, params = asked(number)
        # What is stated in docs/diffusion.md: in float32 a shared pass moves no value by more than one of 255.
        assert differ(pictures[str(number)], alone(diffusers_own, prompt, **params)) <= 1
    assert max(batch.passes) == 6
    assert len({pictures[str(number)].tobytes() for number in range(6)}) == 6


def test_unshared_they_are_the_same_bit_by_bit(folder, diffusers_own):
    batch = Batch(DiffusersModel(model=str(folder), share=False))
    for number in range(4):
        prompt, params = asked(number)
        batch.join(str(number), prompt, **params)
    pictures = batch.run()
    for number in range(4):
        prompt, params = asked(number)
        assert np.array_equal(pictures[str(number)], alone(diffusers_own, prompt, **params))


def test_six_requests_are_few_passes(model):
    seen = []
    inner = model._gather._forwards["unet"]

    def counted(sample, *args, **kwargs):
        seen.append(sample.shape[0])
        return inner(sample, *args, **kwargs)

    model._gather._forwards["unet"] = counted
    batch = Batch(model)
    for number in range(6):
        batch.join(str(number), f"picture {number}", num_inference_steps=4, seed=number)
    batch.run()
    assert seen == [12, 2, 12, 12, 12], "two rows each, and the first shared pass is proved by one of them alone"


def test_requests_join_and_leave_between_steps(model, diffusers_own):
    batch = Batch(model)
    batch.join("early", "a", num_inference_steps=6, seed=1)
    for _ in range(3):
        batch.round()
    batch.join("late", "b", num_inference_steps=4, seed=2)
    batch.join("gone", "c", num_inference_steps=6, seed=3)
    batch.round()
    batch.round()
    batch.leave("gone")
    pictures = batch.run()
    assert set(pictures) == {"early", "late"}
    assert differ(pictures["early"], alone(diffusers_own, "a", seed=1, num_inference_steps=6)) <= 1
    assert differ(pictures["late"], alone(diffusers_own, "b", seed=2, num_inference_steps=4)) <= 1
    assert batch.passes == [0, 1, 1, 1, 3, 2, 2, 1], "none for who has left, and the late go on alone"


def test_sizes_share_no_pass_and_are_right(model, diffusers_own):
    batch = Batch(model)
    batch.join("small", "a", num_inference_steps=3, seed=1, height=16, width=16)
    batch.join("wide", "a", num_inference_steps=3, seed=1, height=16, width=48)
    batch.join("usual", "a", num_inference_steps=3, seed=1)
    pictures = batch.run()
    assert [pictures[key].shape for key in ("small", "wide", "usual")] == [(16, 16, 3), (16, 48, 3), (32, 32, 3)]
    assert np.array_equal(
        pictures["wide"], alone(diffusers_own, "a", seed=1, num_inference_steps=3, height=16, width=48)
    )


def test_each_request_may_have_its_own_scheduler(model, diffusers_own):
    from diffusers import DDIMScheduler, EulerAncestralDiscreteScheduler

    batch = Batch(model)
    batch.join("euler", "a", num_inference_steps=4, seed=1, scheduler="EulerAncestralDiscreteScheduler")
    batch.join("own", "a", num_inference_steps=4, seed=1)
    pictures = batch.run()
    own = diffusers_own.scheduler
    diffusers_own.scheduler = EulerAncestralDiscreteScheduler.from_config(own.config)
    try:
        wanted = alone(diffusers_own, "a", seed=1, num_inference_steps=4)
    finally:
        diffusers_own.scheduler = own
    assert isinstance(own, DDIMScheduler)
    assert differ(pictures["euler"], wanted) <= 1
    assert differ(pictures["euler"], pictures["own"]) > 5


def test_samples_have_seeds_one_after_the_other(model):
    batch = Batch(model)
    batch.join("first", "a", num_inference_steps=2, seed=5)
    batch.join("second", "a", index=1, num_inference_steps=2, seed=4)
    batch.join("unseeded", "a", num_inference_steps=2)
    pictures = batch.run()
    assert differ(pictures["first"], pictures["second"]) <= 1
    told = batch.made["unseeded"][0].meta["seed"]
    again = Batch(model)
    again.join("again", "a", num_inference_steps=2, seed=told)
    assert differ(again.run()["again"], pictures["unseeded"]) <= 1


# ---------------------------------------------------------------------- steps and previews


def test_steps_are_counted_and_previewed(model):
    batch = Batch(model)
    batch.join("a", "a", num_inference_steps=5, seed=1, preview_every=2)
    final = batch.run()["a"]
    steps = batch.steps["a"]
    assert [(step.done, step.total) for step in steps] == [(number, 5) for number in range(5)]
    assert [step.preview is not None for step in steps] == [False, False, True, False, True]
    assert steps[2].preview.shape == final.shape
    assert steps[0].eta_s is None
    assert steps[4].eta_s > 0


def test_a_scheduler_of_two_passes_per_step_counts_right(model):
    batch = Batch(model)
    batch.join("heun", "a", num_inference_steps=3, seed=1, scheduler="HeunDiscreteScheduler")
    batch.run()
    assert [(step.done, step.total) for step in batch.steps["heun"]] == [(number, 5) for number in range(5)]


# ---------------------------------------------------------------------- what is refused, and what goes wrong


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"num_inference_steps": 0}, "num_inference_steps must be a whole number from 1 to 1000, not 0"),
        ({"num_inference_steps": 10**6}, "from 1 to 1000, not 1000000"),
        ({"num_inference_steps": True}, "not True"),
        ({"height": 33}, "height is 33; it must be a multiple of 2, for example 32"),
        ({"height": 0}, "height must be"),
        ({"height": 32}, "height and width go together"),
        ({"height": 100_000, "width": 100_000}, "100000 x 100000 are more than"),
        ({"scheduler": "Nope"}, "scheduler 'Nope' does not fit this model; these do: DDIMScheduler"),
        ({"scheduler": 3}, "scheduler must be a name"),
        ({"guidance": 3}, "StableDiffusionPipeline takes no 'guidance'; it takes: "),
        ({"generator": 3}, "takes no 'generator'"),
        ({"guidance_scale": "much"}, "StableDiffusionPipeline: "),
        ({"seed": -1}, "seed must be"),
        ({"seed": "x"}, "seed must be"),
        ({"lora": "pixel"}, "there is no adapter 'pixel'; loaded are: none"),
        ({"lora": 3}, "lora must be a name"),
        ({"preview_every": -1}, "preview_every must be"),
        ({"negative_prompt": 5}, "StableDiffusionPipeline: "),
    ],
)
def test_what_cannot_be_asked_is_the_callers_fault(model, params, words):
    batch = Batch(model)
    with pytest.raises(InvalidRequest) as caught:
        batch.join("a", "a", **params)
        batch.round()
        raise batch.failed["a"]
    assert words in str(caught.value)


def test_a_text_that_is_too_long_is_refused_or_cut_with_a_word(model):
    batch = Batch(model)
    with pytest.raises(InvalidRequest, match=r"prompt has \d+ tokens; this model reads 77"):
        batch.join("a", "cat " * 50)
    batch.join("b", "cat " * 50, num_inference_steps=2, truncate_prompt=True)
    batch.run()
    assert batch.made["b"][0].meta["warnings"] == ["tokenizer reads 77 of the 152 tokens of prompt"]


def test_a_prompt_is_text_or_a_mapping(model):
    batch = Batch(model)
    with pytest.raises(InvalidRequest, match="text or a mapping"):
        batch.join("a", ["a"])
    batch.join("b", {"prompt": "a", "num_inference_steps": 2, "seed": 1})
    assert batch.run()["b"].shape == (32, 32, 3)


def _spoil(model, key_of, what):
    """Let the denoiser do this to the rows that ``key_of`` picks."""
    inner = model._gather._forwards["unet"]

    def spoilt(sample, *args, **kwargs):
        return what(inner, key_of(sample), sample, args, kwargs)

    model._gather._forwards["unet"] = spoilt


def test_a_latent_that_is_no_number_fails_its_request_alone(model, diffusers_own):
    def nan(inner, rows, sample, args, kwargs):
        (noise,) = inner(sample, *args, **kwargs)
        noise[rows] = float("nan")
        return (noise,)

    _spoil(model, lambda sample: slice(0, 2) if sample.shape[0] == 4 else slice(0, 0), nan)
    batch = Batch(model)
    model._gather._proved["unet", ("sample", "timestep", "encoder_hidden_states", "timestep_cond",
                                   "cross_attention_kwargs", "added_cond_kwargs", "return_dict")] = True  # fmt: skip
    batch.join("bad", "a", num_inference_steps=4, seed=1)
    batch.join("good", "b", num_inference_steps=4, seed=2)
    pictures = batch.run()
    assert isinstance(batch.failed["bad"], NotFinite)
    assert "not finite after step 1 of 4" in str(batch.failed["bad"])
    assert differ(pictures["good"], alone(diffusers_own, "b", seed=2, num_inference_steps=4)) <= 1


def test_memory_that_is_not_enough_for_one_fails_that_one(model, diffusers_own):
    def overflow(inner, large, sample, args, kwargs):
        if large:
            raise torch.OutOfMemoryError("out of memory: 64 GiB")
        return inner(sample, *args, **kwargs)

    _spoil(model, lambda sample: sample.shape[-1] > 20, overflow)
    batch = Batch(model)
    batch.join("large", "a", num_inference_steps=3, seed=1, height=64, width=64)
    batch.join("good", "b", num_inference_steps=3, seed=2)
    pictures = batch.run()
    assert isinstance(batch.failed["large"], torch.OutOfMemoryError)
    assert differ(pictures["good"], alone(diffusers_own, "b", seed=2, num_inference_steps=3)) <= 1


def test_memory_that_is_not_enough_for_all_at_once_makes_smaller_passes_and_less_room(model):
    def overflow(inner, large, sample, args, kwargs):
        if large:
            raise torch.OutOfMemoryError("out of memory")
        return inner(sample, *args, **kwargs)

    _spoil(model, lambda sample: sample.shape[0] > 4, overflow)
    batch = Batch(model)
    for key in "abc":
        batch.join(key, key, num_inference_steps=3, seed=1)
    items = [item for item, _ in batch.live.values()]
    assert model.fits(items[2], items[:2]), "nothing is known yet"
    pictures = batch.run()
    assert len(pictures) == 3
    assert not batch.failed
    assert not model.fits(items[2], items[:2])
    assert model.fits(items[1], items[:1])


def test_a_model_that_mixes_its_rows_gets_passes_of_one_request(model, diffusers_own, caplog):
    def mixing(inner, shift, sample, args, kwargs):
        (noise,) = inner(sample, *args, **kwargs)
        return (noise + (shift if sample.shape[0] > 2 else 0),)

    _spoil(model, lambda sample: sample.mean() * 50 + 3, mixing)
    batch = Batch(model)
    batch.join("a", "a", num_inference_steps=3, seed=1)
    batch.join("b", "b", num_inference_steps=3, seed=2)
    pictures = batch.run()
    assert np.array_equal(pictures["a"], alone(diffusers_own, "a", seed=1, num_inference_steps=3))
    assert "each gets its own pass" in caplog.text


def test_numbers_that_are_none_prove_nothing_of_the_model(model, caplog):
    def nan(inner, bad, sample, args, kwargs):
        (noise,) = inner(sample, *args, **kwargs)
        return (torch.where(bad, torch.nan, noise),)

    _spoil(model, lambda sample: sample.abs().amax(dim=(1, 2, 3), keepdim=True) > 1e3, nan)
    batch = Batch(model)
    batch.join("bad", {"prompt": "a", "latents": Tensor.from_numpy(np.full((1, 4, 16, 16), 1e4, np.float32))})
    for key in ("good", "also good"):
        batch.join(key, key, num_inference_steps=3, seed=2)
    assert set(batch.run()) == {"good", "also good"}
    assert isinstance(batch.failed["bad"], NotFinite)
    assert model.counters()["shared_passes"] == 3, "the others share on"
    assert "each gets its own pass" not in caplog.text


def test_arguments_that_a_denoiser_does_not_take_fail_their_request_alone(model):
    batch = Batch(model)
    batch.join("good", "a", num_inference_steps=2, seed=1)
    batch.join("bad", "b", num_inference_steps=2, seed=1)
    batch.round()
    (item, _) = batch.live["bad"]
    item.state.pending.kwargs = {**item.state.pending.kwargs, "no_such_argument": 1}
    assert set(batch.run()) == {"good"}
    assert "no_such_argument" in str(batch.failed["bad"])


def test_what_a_pass_raises_fails_only_whom_it_concerns(model):
    def broken(inner, wide, sample, args, kwargs):
        if wide:
            raise RuntimeError("no kernel for this")
        return inner(sample, *args, **kwargs)

    _spoil(model, lambda sample: sample.shape[-1] > 20, broken)
    batch = Batch(model)
    batch.join("bad", "a", num_inference_steps=3, seed=1, height=64, width=64)
    batch.join("good", "b", num_inference_steps=3, seed=2)
    assert set(batch.run()) == {"good"}
    assert str(batch.failed["bad"]) == "no kernel for this"


def test_gradients_stay_off_while_requests_come_and_go(model):
    batch = Batch(model)
    batch.join("short", "a", num_inference_steps=2, seed=1)
    batch.join("long", "b", num_inference_steps=5, seed=2)
    while batch.live:
        batch.round()
        assert not torch.is_grad_enabled()
    assert set(batch.made) == {"short", "long"}


def test_the_denoiser_still_works_for_others(model):
    sample = torch.zeros(1, 4, 16, 16)
    states = torch.zeros(1, 77, 32)
    made = model._pipeline.unet(sample, 1, encoder_hidden_states=states, return_dict=False)[0]
    assert made.shape == sample.shape


def test_a_folder_that_is_broken_says_so_in_one_line(folder, tmp_path):
    with pytest.raises(Unloadable, match=r"nowhere.* cannot be loaded: "):
        DiffusersModel(model=str(tmp_path / "nowhere"))
    (tmp_path / "model_index.json").write_text('{"_class_name": "StableDiffusionPipeline", "unet": ["diffusers", "X"]}')
    with pytest.raises(Unloadable) as caught:
        DiffusersModel(model=str(tmp_path))
    assert "\n" not in str(caught.value)


def test_a_scheduler_that_does_not_fit_is_refused_at_the_start(folder):
    with pytest.raises(Unloadable, match="scheduler 'Nope' does not fit this model; these do"):
        DiffusersModel(model=str(folder), scheduler="Nope")


# ---------------------------------------------------------------------- pictures in


def test_a_picture_goes_in_as_a_tensor(folder):
    from diffusers import StableDiffusionImg2ImgPipeline
    from PIL import Image

    model = DiffusersModel(model=str(folder), pipeline_class="diffusers:StableDiffusionImg2ImgPipeline")
    reference = StableDiffusionImg2ImgPipeline.from_pretrained(folder)
    reference.set_progress_bar_config(disable=True)
    image = np.random.default_rng(0).integers(0, 255, (32, 32, 3), dtype=np.uint8)
    batch = Batch(model)
    for seed in (1, 2):
        prompt = {"prompt": "a", "image": Tensor.from_numpy(image)}
        batch.join(str(seed), prompt, num_inference_steps=5, strength=0.6, seed=seed)
    pictures = batch.run()
    for seed in (1, 2):
        wanted = alone(reference, "a", image=Image.fromarray(image), seed=seed, num_inference_steps=5, strength=0.6)
        assert differ(pictures[str(seed)], wanted) <= 1
    assert max(batch.passes) == 2
    assert batch.steps["1"][0].total == 3, "what strength leaves of the steps"
