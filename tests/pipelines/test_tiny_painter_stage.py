"""The painter as a stage, in its own process: what the judge reads of pictures that were painted at the same time."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from omni_actors import InvalidRequest, open_omni
from omni_actors.config import PipelineSpec
from omni_actors.pipelines.tiny_omni import pipeline

pytestmark = [pytest.mark.process, pytest.mark.filterwarnings("ignore")]

TRAINING = Path(__file__).parents[2] / "training"


@pytest.fixture(scope="module")
def judge() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(TRAINING))
        return importlib.import_module("painter_data").DigitJudge()


def painter_alone() -> PipelineSpec:
    """Its prompts are what the transform makes of sentences."""
    painter = attrs.evolve(pipeline().stage("painter"), inputs=(), transform=None)
    return PipelineSpec(name="painter", stages=(painter,))


async def picture(omni: Any, number: Any, **params: Any) -> Any:
    async with omni.generate({"number": number}, params, timeout_s=60) as stream:
        (output,) = [output async for output in stream]
    return output


async def test_of_100_two_digit_answers_the_judge_reads_95_as_asked(judge: Any) -> None:
    asked = [10 + number % 9 for number in range(100)]
    read: dict[int, str] = {}

    async def ask(seed: int) -> None:
        output = await picture(omni, asked[seed], seed=seed)
        read[seed] = judge.read_picture(output.image.numpy())

    async with open_omni(painter_alone()) as omni, trio.open_nursery() as nursery:
        for seed in range(100):
            nursery.start_soon(ask, seed)
    assert sum(read[seed] == str(number) for seed, number in enumerate(asked)) >= 95


async def test_a_picture_is_the_same_each_time_and_in_company() -> None:
    async with open_omni(painter_alone()) as omni:
        alone, again = [await picture(omni, 15) for _ in range(2)]
        assert (alone.modality, alone.image.shape, alone.image.dtype) == ("image", (160, 304, 3), "uint8")
        assert alone.image == again.image
        assert {name: alone.payload.meta[name] for name in ("seed", "steps")} == {"seed": 0, "steps": 10}
        several: list[Any] = []

        async def ask(number: int, steps: int) -> None:
            several.append(await picture(omni, number, num_inference_steps=steps))

        async with trio.open_nursery() as nursery:
            for number, steps in ((15, 10), (7, 20), (123, 10)):
                nursery.start_soon(ask, number, steps)
        (company,) = [output for output in several if output.image.shape == (160, 304, 3)]
        apart = abs(company.image.numpy().astype(int) - alone.image.numpy())
        assert apart.max() <= 1  # another batch may round the last bit otherwise
        assert len(several) == 3
        omni.check()


async def test_what_cannot_be_painted_is_the_callers_fault_and_the_next_is_painted() -> None:
    async with open_omni(painter_alone()) as omni:
        for prompt, params in (
            (10_000, {}),
            ("ten", {}),
            (1, {"num_inference_steps": 0}),
            (1, {"guidance_scale": "much"}),
        ):
            with pytest.raises(InvalidRequest):
                await picture(omni, prompt, **params)
        assert (await picture(omni, 9)).image.shape == (160, 160, 3)
        omni.check()
