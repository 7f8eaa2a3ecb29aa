"""What ``bench demo`` makes of the answers it got."""

from __future__ import annotations

import pytest

from omni_actors.cli._answers import Answer
from omni_actors.cli.benches.demo import Asked, summary
from omni_actors.lifecycle.events import Output, TensorChunk, TextChunk
from omni_actors.pipelines.tiny_omni._questions import Question, questions
from omni_actors.wire.omni import Tensor

SECOND = TensorChunk(tensors={"audio": Tensor("float32", (24_000,), bytes(96_000))}, meta={"sample_rate": 24_000})


def asked(question: Question, text: str, *, audio_at: float, text_at: float, heard: bool = True) -> Asked:
    answer = Answer()
    answer.take(Output("r", "thinker", "text", TextChunk(text=text[:1])), 0.01)
    answer.take(Output("r", "vocoder", "audio", SECOND), audio_at)
    answer.take(Output("r", "thinker", "text", TextChunk(text=text[1:])), text_at)
    return Asked(question=question, answer=answer, heard=(heard,) * len(question.parts), total_s=0.5)


def test_each_metric_counts_what_it_says():
    one, two, three = (questions(1, 1, parts=parts)[0] for parts in (1, 2, 3))
    result = summary(
        [
            asked(one, one.answer, audio_at=0.2, text_at=0.1),  # a single sentence can't be heard early: not counted
            asked(two, two.answer, audio_at=0.1, text_at=0.2),
            asked(three, "wrong", audio_at=0.3, text_at=0.2, heard=False),
        ]
    )
    assert result.metrics["text_right"] == pytest.approx(200 / 3)
    assert result.metrics["heard_right"] == pytest.approx(50)  # three of six sums
    assert result.metrics["heard_while_thinking"] == 0.5
    assert result.metrics["audio_s"] == pytest.approx(3)
    assert result.metrics["first_audio_ms"] == pytest.approx(200)
    assert result.metrics["rtf"] == pytest.approx(0.5)
    assert any("'wrong'" in note for note in result.notes)
