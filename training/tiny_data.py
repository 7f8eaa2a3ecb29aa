"""What the two models are taught, and what is kept from them.

Thinker. Never trained on, so that right answers to them cannot be recall:
  - ``solo``: eight of the 155 parts occur in one-part questions only;
  - ``apart``: a tenth of all ordered pairs of parts never stand next to each other;
  - the many-part questions that the benchmark asks.
Talker. Taught to read ``a op b is c`` for *any* c, right or wrong, so that it reads and does not recite; sixteen of
the 155 ``a op b`` never occur.
"""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tiny_tokenizer import ASSISTANT, EOS, UNKNOWN, USER

from omni_actors.pipelines.tiny_omni._questions import (
    BENCH_SEED,
    NUMBERS,
    Part,
    Question,
    all_parts,
    draw,
    questions,
)
from omni_actors.pipelines.tiny_omni._vocabulary import Vocabulary

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from omni_actors.pipelines.tiny_omni._vocabulary import Alphabet

HOLDOUT_SEED = 4
TALKER_EXAMPLES = 96

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


PARTS_IN_TURN = (1, 2, 3, 4, 2, 3, 4)
EXAMPLES = {1: 64, 2: 40, 3: 30, 4: 24}
"""Examples per batch, by the parts of each: as many as make much the same number of tokens, so little is padding."""

NOISE = 0.1
"""How often a question begins with words that mean nothing to the thinker."""


@dataclass
class ThinkerData:
    """An endless, seeded stream of questions with their answers."""

    tokenizer: PreTrainedTokenizerFast
    rng: random.Random
    holdout: Holdout = field(default_factory=thinker_holdout)

    def __post_init__(self) -> None:
        self.letters = Vocabulary(self.tokenizer.get_vocab())
        self._turns = itertools.cycle(PARTS_IN_TURN)

    def batch(self) -> list[Example]:
        """Questions of equally many parts; the next batch has another number."""
        parts = next(self._turns)
        return [self._noisy(self.example(self._allowed(parts))) for _ in range(EXAMPLES[parts])]

    def _allowed(self, parts: int) -> Question:
        while self.holdout.touches(question := draw(self.rng, parts)):
            pass
        return question

    def _noisy(self, example: Example) -> Example:
        prompt, answer = example
        if self.rng.random() < NOISE:
            prompt = [prompt[0], *[UNKNOWN] * self.rng.randint(1, 3), *prompt[1:]]
        return prompt, answer

    def example(self, question: Question) -> Example:
        words = self.tokenizer(question.text, add_special_tokens=False).input_ids
        return [USER, *words, ASSISTANT], [*self.letters.encode(question.answer), EOS]


def talker_holdout() -> frozenset[Part]:
    return frozenset(random.Random(HOLDOUT_SEED).sample(all_parts(), 16))


@dataclass
class TalkerData:
    """An endless, seeded stream of sentences with their pieces; ``tokens`` maps a sentence to the talker's tokens."""

    alphabet: Alphabet
    tokens: dict[str, list[int]]
    rng: random.Random
    holdout: frozenset[Part] = field(default_factory=talker_holdout)

    def __post_init__(self) -> None:
        hidden = {f"{part.words.capitalize()} is" for part in self.holdout}
        self.sentences = [s for s in self.tokens if s.rsplit(" ", 1)[0] not in hidden]

    def batch(self) -> list[Example]:
        return [self.example(self.rng.choice(self.sentences)) for _ in range(TALKER_EXAMPLES)]

    def example(self, sentence: str) -> Example:
        return self.alphabet.read(sentence), [*self.tokens[sentence], self.alphabet.end_audio]


def readable_sentences() -> list[str]:
    """``a op b is c`` for every c, of which 155 happen to be true."""
    return [f"{part.words.capitalize()} is {number}." for part in all_parts() for number in NUMBERS]
