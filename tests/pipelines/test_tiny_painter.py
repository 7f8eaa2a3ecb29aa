"""The painter paints what it is asked, as somebody reads who learned from other images and knows no painted one."""

from __future__ import annotations

import importlib
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from omni_actors.pipelines.tiny_omni._vocabulary import WEIGHTS

TRAINING = Path(__file__).parents[2] / "training"
FOLDER = WEIGHTS / "painter"


@pytest.fixture(scope="module")
def data() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(TRAINING))
        return importlib.import_module("painter_data")


@pytest.fixture(scope="module")
def judge(data: Any) -> Any:
    return data.DigitJudge()


@pytest.fixture(scope="module")
def painter() -> Any:
    from omni_actors.pipelines.tiny_omni.painter import DigitPainter

    torch.set_num_threads(1)
    return DigitPainter.from_pretrained(FOLDER)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def paint(painter: Any, number: Any, seed: int = 0, **how: Any) -> np.ndarray:
    picture: np.ndarray = painter(number, generator=seeded(seed), **how).images[0]
    return picture


# ---------------------------------------------------------------------- the judge


def test_painter_and_judge_learn_from_different_images(data: Any) -> None:
    mine, theirs = data.painter_digits(), data.judge_digits()
    assert (len(mine.labels), len(theirs.labels)) == (1198, 599)
    seen = {image.tobytes() for image in mine.images}
    assert seen.isdisjoint(image.tobytes() for image in theirs.images)


def test_the_judge_reads_real_digits_that_it_never_saw(data: Any, judge: Any) -> None:
    others = data.painter_digits()
    assert np.mean(judge.read(others.images) == others.labels) > 0.97


# ---------------------------------------------------------------------- what is painted


def test_of_200_digits_the_judge_reads_95_percent_as_asked(painter: Any, judge: Any) -> None:
    digits = list(range(10)) * 20
    random.Random(0).shuffle(digits)
    asked = [digits[first : first + 4] for first in range(0, len(digits), 4)]
    read = "".join(judge.read_picture(paint(painter, four, seed)) for seed, four in enumerate(asked))
    assert sum(wanted == int(got) for wanted, got in zip(digits, read, strict=True)) >= 190


def test_a_number_is_its_digits_side_by_side_dark_on_white(painter: Any) -> None:
    picture = paint(painter, 15)
    assert (picture.shape, picture.dtype) == ((160, 16 + 2 * 144, 3), np.float32)
    assert 0 <= picture.min() < 0.2
    assert np.all(picture[:16] == 1)  # the paper above
    assert np.all(picture[:, 144:160] == 1)  # and between the two
    assert np.array_equal(picture, np.repeat(np.repeat(picture[8::16, 8::16], 16, 0), 16, 1))


def test_a_digit_does_not_depend_on_its_neighbours(painter: Any) -> None:
    alone, first = paint(painter, 1), paint(painter, 158)
    assert np.abs(alone[:, :144] - first[:, :144]).max() < 1e-4


def test_the_same_seed_is_the_same_picture(painter: Any) -> None:
    first = paint(painter, 7, seed=3)
    assert np.array_equal(first, paint(painter, 7, seed=3))
    assert not np.array_equal(first, paint(painter, 7, seed=4))


def test_the_tiles_of_a_double_digit_differ(painter: Any) -> None:
    picture = paint(painter, 11)
    assert np.abs(picture[:, 16:144] - picture[:, 160:288]).max() > 0.1


def test_guidance_and_steps_are_the_callers(painter: Any) -> None:
    usual = paint(painter, 3)
    assert not np.array_equal(usual, paint(painter, 3, guidance_scale=1.0))
    assert not np.array_equal(usual, paint(painter, 3, num_inference_steps=5))


def test_without_a_number_it_paints_some_digit(painter: Any, judge: Any) -> None:
    read = {judge.read_picture(paint(painter, None, seed)) for seed in range(6)}
    assert len(read) > 1


def test_images_come_in_every_form_that_diffusers_has(painter: Any) -> None:
    array = paint(painter, 42)
    (image,) = painter(42, generator=seeded(0), output_type="pil", return_dict=False)[0]
    assert (image.size, image.mode) == ((304, 160), "RGB")
    assert np.array_equal(np.asarray(image), (array * 255).round().astype(np.uint8))


@pytest.mark.parametrize(
    ("number", "words"), [(-1, "-1"), (10_000, "10000"), ([], "1 to 4"), ([1, 2, 3, 4, 5], "1 to 4"), ([11], "11")]
)
def test_a_number_that_cannot_be_painted_is_named(painter: Any, number: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        painter(number)


@pytest.mark.parametrize("steps", [0, -1, 1_000_000])
def test_a_number_of_steps_that_cannot_be_is_refused(painter: Any, steps: int) -> None:
    with pytest.raises(ValueError, match=str(steps)):
        painter(1, num_inference_steps=steps)


def test_a_guidance_that_is_no_number_is_refused(painter: Any) -> None:
    with pytest.raises(ValueError, match="nan"):
        painter(1, guidance_scale=float("nan"))


def test_digits_may_be_given_one_by_one(painter: Any) -> None:
    assert np.array_equal(paint(painter, 15), paint(painter, [1, 5.0]))


# ---------------------------------------------------------------------- the folder


def test_what_is_shipped_is_the_diffusers_folder_that_training_makes(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(TRAINING))
        train = importlib.import_module("train_painter")
    train.save(train.make_unet(), train.DDPMScheduler(), tmp_path)
    made, shipped = ({str(f.relative_to(d)) for d in [folder] for f in d.rglob("*")} for folder in (tmp_path, FOLDER))
    assert made == shipped
    for name in ("unet/config.json", "scheduler/scheduler_config.json", "model_index.json"):
        assert json.loads((tmp_path / name).read_text()) == json.loads((FOLDER / name).read_text())
