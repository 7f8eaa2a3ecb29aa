"""``bench demo``: a hundred questions, in text and speech, marked by their text and by a judge who listens.

One question at a time, so that the times are those that a single user sees. ``heard_right`` and ``text_right`` are per
hundred: of the sums that were spoken, and of the questions whose whole text is right.
"""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

import attrs
import trio

from omni_actors.cli._answers import Answer
from omni_actors.cli._bench import BenchOptions, BenchResult, Bound
from omni_actors.cli._demo import PIPELINE, require
from omni_actors.cli._exit import Missing
from omni_actors.pipelines.tiny_omni._questions import BENCH_SEED, Question, questions
from omni_actors.runtime import open_omni

if TYPE_CHECKING:
    from omni_actors.pipelines._judge import Judge
    from omni_actors.runtime import OmniRuntime

__all__ = ["QUESTIONS", "Asked", "run", "summary"]

QUESTIONS = 100
_WARM_UP = 3
_TIMEOUT_S = 60.0
_WANTED = ("text", "audio")
"""No pictures: they are `bench branch`'s, and would share the processor with what is timed here."""


@attrs.frozen(kw_only=True)
class Asked:
    """One question's outcome. Seconds count from the request's begin; ``heard``: per part, whether it was right."""

    question: Question
    answer: Answer
    heard: tuple[bool, ...]
    total_s: float

    @property
    def text_right(self) -> bool:
        """Whether the text is the one right answer."""
        return self.answer.text.strip() == self.question.answer

    @property
    def rtf(self) -> float:
        """Seconds of waiting per second of sound."""
        return self.total_s / self.answer.audio_s if self.answer.audio_s else float("inf")

    @property
    def heard_while_thinking(self) -> bool:
        """Whether its first sentence could be heard before the last text had come."""
        first, last = self.answer.first_audio_s, self.answer.last_text_s
        return first is not None and last is not None and first < last


async def run(options: BenchOptions) -> BenchResult:
    """Start tiny-omni, ask, listen. Raises Missing without the engines, the vocoder or the judge."""
    require()
    judge = await trio.to_thread.run_sync(_judge)
    asked = []
    async with open_omni(PIPELINE) as omni:
        for question in questions(_WARM_UP, BENCH_SEED + 1):
            await _ask(omni, question, judge)
        for number, question in enumerate(questions(QUESTIONS, BENCH_SEED), start=1):
            asked.append(await _ask(omni, question, judge))
            if number % 10 == 0:
                options.progress(f"{number} of {QUESTIONS} questions asked")
    return summary(asked)


def _judge() -> Judge:
    from omni_actors._errors import UsageError
    from omni_actors.pipelines._judge import Judge

    try:
        return Judge()
    except UsageError as missing:
        raise Missing(str(missing)) from missing


async def _ask(omni: OmniRuntime, question: Question, judge: Judge) -> Asked:
    import numpy as np

    answer, began_at = Answer(), trio.current_time()
    async with omni.generate(question.text, modalities=_WANTED, timeout_s=_TIMEOUT_S) as stream:
        async for item in stream:
            answer.take(item, trio.current_time() - began_at)
    total_s = trio.current_time() - began_at
    spoken = [np.array(sentence.samples(), dtype=np.float32) for sentence in answer.spoken()]
    rate = answer.spoken()[0].sample_rate if spoken else 0
    heard = await trio.to_thread.run_sync(judge.heard_right, question.parts, spoken, rate)
    return Asked(question=question, answer=answer, heard=tuple(heard), total_s=total_s)


def summary(asked: list[Asked]) -> BenchResult:
    """The metrics of everything asked."""
    sums = [right for one in asked for right in one.heard]
    many = [one for one in asked if len(one.question.parts) > 1]
    samples = {
        "heard_right": [100 * statistics.fmean(one.heard) for one in asked],
        "text_right": [100.0 * one.text_right for one in asked],
        "audio_s": [one.answer.audio_s for one in asked],
        "first_text_ms": [_ms(one.answer.first_text_s) for one in asked],
        "first_audio_ms": [_ms(one.answer.first_audio_s) for one in asked],
        "rtf": [one.rtf for one in asked],
        "heard_while_thinking": [float(one.heard_while_thinking) for one in many],
    }
    metrics = {
        "heard_right": 100 * statistics.fmean(sums),
        "text_right": 100 * statistics.fmean(one.text_right for one in asked),
        "audio_s": sum(samples["audio_s"]),
        "first_text_ms": statistics.median(samples["first_text_ms"]),
        "first_audio_ms": statistics.median(samples["first_audio_ms"]),
        "rtf": statistics.median(samples["rtf"]),
        "heard_while_thinking": _mean(samples["heard_while_thinking"]),
    }
    bounds = {"heard_right": Bound(low=95), "text_right": Bound(low=99), "heard_while_thinking": Bound(low=0.95)}
    return BenchResult(metrics=metrics, samples=samples, notes=_notes(asked, sums, many), bounds=bounds)


def _ms(seconds: float | None) -> float:
    return float("nan") if seconds is None else 1000 * seconds


def _mean(values: list[float]) -> float:
    return statistics.fmean(values) if values else float("nan")


def _notes(asked: list[Asked], sums: list[bool], many: list[Asked]) -> tuple[str, ...]:
    wrong = [f"{one.question.text!r} was answered {one.answer.text!r}" for one in asked if not one.text_right]
    return (
        f"{len(asked)} questions with {len(sums)} sums, one at a time; {sum(sums)} sums were heard right",
        f"heard_while_thinking: the fraction of the {len(many)} questions with two parts or more whose first sentence "
        "could be heard before the thinker's last letter had come",
        *wrong[:5],
    )
