"""What the two models are taught, and what is kept from them.

Thinker. Never trained on, so that right answers to them cannot be recall:
  - ``solo``: eight of the 155 parts occur in one-part questions only;
  - ``apart``: a tenth of all ordered pairs of parts never stand next to each other;
  - the many-part questions that the benchmark asks.
Talker. Taught to read ``a op b is c`` for *any* c, right or wrong, so that it reads and does not recite; sixteen of
the 155 ``a op b`` never occur.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tiny_tokenizer import ASSISTANT, EOS, USER

from omni_actors.pipelines.tiny_omni._questions import (
    BENCH_SEED,
    NUMBERS,
    Part,
    Question,
    all_parts,
    draw,
    questions,
)

if TYPE_CHECKING:
    from omni_actors.pipelines.tiny_omni._vocabulary import Alphabet, Vocabulary

HOLDOUT_SEED = 4

Example = tuple[list[int], list[int]]
"""(prompt tokens, the tokens to produce)."""


@dataclass(frozen=True)
class Holdout:
    solo: frozenset[Part]
    apart: frozenset[tuple[Part, Part]]
    bench: frozenset[tuple[Part, ...]]

    def touches(self, question: Question) -> bool:
        """Whether the question shows something that training must not see."""
        if len(question.parts) == 1:
            return False
        pairs = zip(question.parts, question.parts[1:], strict=False)
        return (
            not self.solo.isdisjoint(question.parts)
            or any(pair in self.apart for pair in pairs)
            or question.parts in self.bench
        )


def thinker_holdout() -> Holdout:
    rng = random.Random(HOLDOUT_SEED)
    parts = all_parts()
    solo = frozenset(rng.sample(parts, 8))
    pairs = [(a, b) for a in parts for b in parts]
    apart = frozenset(rng.sample(pairs, len(pairs) // 10))
    asked = frozenset(q.parts for q in questions(2_000, BENCH_SEED) if len(q.parts) > 1)
    return Holdout(solo, apart, asked)


@dataclass
class ThinkerData:
    """An endless, seeded stream of questions with their answers."""

    words: Vocabulary
    rng: random.Random
    holdout: Holdout = field(default_factory=thinker_holdout)

    def batch(self, size: int) -> list[Example]:
        return [self.example(self._allowed()) for _ in range(size)]

    def _allowed(self) -> Question:
        while self.holdout.touches(question := draw(self.rng)):
            pass
        return question

    def example(self, question: Question) -> Example:
        prompt = [USER, *self.words.encode(question.text), ASSISTANT]
        return prompt, [*self.words.encode(question.answer), EOS]


def talker_holdout() -> frozenset[Part]:
    return frozenset(random.Random(HOLDOUT_SEED).sample(all_parts(), 16))


@dataclass
class TalkerData:
    """An endless, seeded stream of sentences with their phonemes; ``speak`` maps a sentence to phoneme ids."""

    words: Vocabulary
    alphabet: Alphabet
    speak: dict[str, list[int]]
    rng: random.Random
    holdout: frozenset[Part] = field(default_factory=talker_holdout)

    def __post_init__(self) -> None:
        hidden = {f"{part.words.capitalize()} is" for part in self.holdout}
        self.sentences = [s for s in self.speak if s.rsplit(" ", 1)[0] not in hidden]

    def batch(self, size: int) -> list[Example]:
        return [self.example(self.rng.choice(self.sentences)) for _ in range(size)]

    def example(self, sentence: str) -> Example:
        prompt = [*self.words.encode(sentence), self.alphabet.begin_audio]
        phonemes = [self.alphabet.offset + phoneme for phoneme in self.speak[sentence]]
        return prompt, [*phonemes, self.alphabet.end_audio]


def readable_sentences() -> list[str]:
    """``a op b is c`` for every c, of which 155 happen to be true."""
    return [f"{part.words.capitalize()} is {number}." for part in all_parts() for number in NUMBERS]
