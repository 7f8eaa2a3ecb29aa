"""What the models were kept from in training really is kept from them, so that a right answer to it is no recall."""

from __future__ import annotations

import importlib
import json
import random
from pathlib import Path
from typing import Any

import attrs
import pytest

from omni_actors.pipelines.tiny_omni._questions import BENCH_SEED, Part, Question, questions
from omni_actors.pipelines.tiny_omni._vocabulary import WEIGHTS, alphabet

TRAINING = Path(__file__).parents[2] / "training"


@pytest.fixture
def data(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(TRAINING))
    return importlib.import_module("tiny_data")


@pytest.fixture
def tokenizer(data: Any) -> Any:
    module = importlib.import_module("tiny_tokenizer")
    return module.build_tokenizer(module.build_vocabulary(), 256)


def test_the_thinker_never_sees_what_the_benchmark_asks(data: Any, tokenizer: Any) -> None:
    asked = [q for q in questions(100, BENCH_SEED) if len(q.parts) > 1]
    assert len(asked) > 50
    source = data.ThinkerData(tokenizer, random.Random(0))
    taught = {tuple(answer) for _ in range(70) for _, answer in source.batch()}
    assert len(taught) > 1_000
    assert taught.isdisjoint(tuple(source.example(q)[1]) for q in asked)
    assert all(source.holdout.touches(q) for q in asked)


def test_a_batch_has_questions_of_equally_many_parts_and_all_numbers_take_turns(data: Any, tokenizer: Any) -> None:
    source, stop = data.ThinkerData(tokenizer, random.Random(0)), tokenizer.get_vocab()["."]
    batches = [{answer.count(stop) for _, answer in source.batch()} for _ in range(7)]
    assert batches == [{1}, {2}, {3}, {4}, {2}, {3}, {4}]


def test_neighbours_and_operands_are_held_out_of_many_part_questions_only(data: Any) -> None:
    held = data.thinker_holdout()
    solo = next(iter(held.solo))
    left, right = next(pair for pair in held.apart if held.solo.isdisjoint(pair))
    assert not held.touches(Question((solo,), ""))
    assert held.touches(Question((Part(1, "plus", 1), solo), ""))
    assert held.touches(Question((left, right), ""))


def test_the_talker_never_reads_its_held_out_operands(data: Any) -> None:
    every = data.readable_sentences()
    source = data.TalkerData(alphabet(), {s: [4] for s in every}, random.Random(0))
    hidden = {part.words.capitalize() for part in source.holdout}
    assert len(hidden) == 16
    assert len(source.sentences) == len(every) - 16 * 19
    assert not any(sentence.startswith(f"{words} is") for sentence in source.sentences for words in hidden)


def test_the_training_tokenizer_is_the_shipped_one(tokenizer: Any, tmp_path: Path) -> None:
    importlib.import_module("tiny_tokenizer").save_tokenizer(tokenizer, tmp_path)
    for file in tmp_path.iterdir():
        assert file.read_bytes() == (WEIGHTS / "thinker" / file.name).read_bytes(), file.name


def test_the_training_alphabet_is_the_shipped_one(data: Any) -> None:
    train = importlib.import_module("train_tiny_omni")
    assert json.loads(json.dumps(attrs.asdict(train.talker_data(0).alphabet))) == attrs.asdict(alphabet())
