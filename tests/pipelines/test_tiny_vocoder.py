"""The vocoder makes sound of phonemes, the same sound each time; the judge hears it, and is not easily fooled."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from omni_actors._errors import InvalidRequest, UsageError
from omni_actors.engines._generator import Generator, Item
from omni_actors.pipelines._judge import Judge
from omni_actors.pipelines.tiny_omni import vocoder as vocoder_module
from omni_actors.pipelines.tiny_omni._questions import Part
from omni_actors.pipelines.tiny_omni.vocoder import SAMPLE_RATE, Vocoder

TWO_PLUS_THREE = [62, 156, 63, 16, 58, 54, 156, 138, 61, 16, 119, 123, 156, 51, 16, 102, 68, 16, 48, 156, 25, 64, 4]


@pytest.fixture(scope="module")
def vocoder() -> Vocoder:
    return Vocoder()


@pytest.fixture(scope="module")
def judge() -> Judge:
    return Judge()


def test_it_is_what_a_generation_engine_hosts(vocoder: Vocoder) -> None:
    assert isinstance(vocoder, Generator)


def test_phonemes_become_two_seconds_of_sound(vocoder: Vocoder) -> None:
    samples = vocoder.synthesize(TWO_PLUS_THREE)
    assert samples.dtype == np.float32
    assert 1.0 < len(samples) / SAMPLE_RATE < 4.0
    assert 0.05 < np.abs(samples).max() <= 1.0


def test_the_same_seed_is_the_same_sound(vocoder: Vocoder) -> None:
    first = vocoder.synthesize(TWO_PLUS_THREE, seed=1)
    assert np.array_equal(first, vocoder.synthesize(TWO_PLUS_THREE, seed=1))
    assert not np.array_equal(first, vocoder.synthesize(TWO_PLUS_THREE, seed=2))


def item(prompt: Any, **params: Any) -> Item:
    return Item(key="k", prompt=prompt, params=params)


def test_a_sentence_leaves_in_pieces_and_the_last_one_says_so(vocoder: Vocoder) -> None:
    chunks = list(vocoder.start(item({"phonemes": TWO_PLUS_THREE})))
    assert [chunk.finished for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert all(chunk.meta["sample_rate"] == SAMPLE_RATE for chunk in chunks)
    assert all(len(chunk.tensors["audio"]) <= 0.5 * SAMPLE_RATE for chunk in chunks)
    joined = np.concatenate([chunk.tensors["audio"] for chunk in chunks])
    assert np.array_equal(joined, vocoder.synthesize(TWO_PLUS_THREE))


def test_a_caller_may_choose_the_seed(vocoder: Vocoder) -> None:
    usual, other = (next(vocoder.start(item({"phonemes": TWO_PLUS_THREE}, **p))) for p in ({}, {"seed": 5}))
    assert not np.array_equal(usual.tensors["audio"], other.tensors["audio"])


@pytest.mark.parametrize("prompt", ["two plus three", None, {"text": "two"}])
def test_a_prompt_of_another_kind_is_refused(vocoder: Vocoder, prompt: Any) -> None:
    with pytest.raises(InvalidRequest, match="phonemes"):
        next(vocoder.start(item(prompt)))


@pytest.mark.parametrize(("phonemes", "words"), [([], "1 to 400"), ([16] * 401, "not 401"), ([62, 9_999], "9999")])
def test_what_has_no_sound_is_refused(vocoder: Vocoder, phonemes: list[int], words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        vocoder.synthesize(phonemes)


def test_a_missing_hibari_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(name: str) -> Any:
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(vocoder_module.importlib, "import_module", gone)
    with pytest.raises(UsageError, match=r"omni-actors\[demo\]"):
        Vocoder()


def test_the_judge_hears_a_sentence(vocoder: Vocoder, judge: Judge) -> None:
    assert judge.hear(vocoder.synthesize(TWO_PLUS_THREE), SAMPLE_RATE) == "two plus three is five"


def test_the_judge_hears_nothing_in_nothing(judge: Judge) -> None:
    assert judge.hear(np.zeros(0, np.float32), SAMPLE_RATE) == ""
    assert judge.hear(np.zeros(SAMPLE_RATE, np.float32), SAMPLE_RATE) == ""


def test_the_judge_marks_a_wrong_sum_and_a_missing_sentence_wrong(vocoder: Vocoder, judge: Judge) -> None:
    spoken = vocoder.synthesize(TWO_PLUS_THREE)
    asked = [Part(2, "plus", 3), Part(2, "plus", 4), Part(9, "minus", 4)]
    assert judge.heard_right(asked, [spoken, spoken], SAMPLE_RATE) == [True, False, False]
