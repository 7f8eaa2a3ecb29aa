"""What the models were kept from in training really is kept from them, so that a right answer to it is no recall."""

from __future__ import annotations

import importlib
import random
from pathlib import Path
from typing import Any

import pytest

from omni_actors.pipelines.tiny_omni._questions import BENCH_SEED, Part, Question, questions
from omni_actors.pipelines.tiny_omni._vocabulary import WEIGHTS, alphabet, vocabulary

TRAINING = Path(__file__).parents[2] / "training"


@pytest.fixture
def data(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(TRAINING))
    return importlib.import_module("tiny_data")


def test_the_thinker_never_sees_what_the_benchmark_asks(data: Any) -> None:
    asked = {q.parts for q in questions(100, BENCH_SEED) if len(q.parts) > 1}
    assert len(asked) > 50
    source = data.ThinkerData(vocabulary(), random.Random(0))
    prompts = [tuple(prompt) for prompt, _ in source.batch(3_000)]
    bench = {tuple(source.example(q)[0]) for q in questions(100, BENCH_SEED) if len(q.parts) > 1}
    assert bench.isdisjoint(prompts)
    assert all(source.holdout.touches(q) for q in questions(100, BENCH_SEED) if len(q.parts) > 1)


def test_neighbours_and_operands_are_held_out_of_many_part_questions_only(data: Any) -> None:
    held = data.thinker_holdout()
    solo = next(iter(held.solo))
    left, right = next(pair for pair in held.apart if held.solo.isdisjoint(pair))
    assert not held.touches(Question((solo,), ""))
    assert held.touches(Question((Part(1, "plus", 1), solo), ""))
    assert held.touches(Question((left, right), ""))


def test_the_talker_never_reads_its_held_out_operands(data: Any) -> None:
    every = data.readable_sentences()
    source = data.TalkerData(vocabulary(), alphabet(), {s: [4] for s in every}, random.Random(0))
    hidden = {part.words.capitalize() for part in source.holdout}
    assert len(hidden) == 16
    assert len(source.sentences) == len(every) - 16 * 19
    assert not any(sentence.startswith(f"{words} is") for sentence in source.sentences for words in hidden)


def test_the_training_vocabulary_is_the_shipped_one(data: Any) -> None:
    tokenizer = importlib.import_module("tiny_tokenizer")
    assert tokenizer.build_vocabulary() == vocabulary().ids


def test_the_training_tokenizer_is_the_shipped_one(data: Any, tmp_path: Path) -> None:
    tokenizer = importlib.import_module("tiny_tokenizer")
    tokenizer.save_tokenizer(tokenizer.build_tokenizer(tokenizer.build_vocabulary(), 128), tmp_path)
    for file in tmp_path.iterdir():
        assert file.read_bytes() == (WEIGHTS / "thinker" / file.name).read_bytes(), file.name
