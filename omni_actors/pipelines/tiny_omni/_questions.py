"""The little world of tiny-omni: sums and differences of digits, as questions with known answers.

One grammar serves the training script, the benchmark and the tests. A question has one to four parts; its answer has
one sentence per part, in the order asked. Everything is drawn from a seeded generator: same seed, same questions.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["BENCH_SEED", "NUMBERS", "Part", "Question", "all_parts", "draw", "questions"]

NUMBERS = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
    "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen",
)  # fmt: skip

MAX_PARTS = 4

BENCH_SEED = 20_260
"""The benchmark's seed. Training skips every many-part question whose parts, in order, the first 2,000 of it ask."""

_OPENINGS = (
    "What is {}?", "What is {}?", "How much is {}?", "{}?", "Tell me {}.", "Please tell me {}.", "Can you tell me {}?",
)  # fmt: skip
_LAST_JOINS = (", and ", ", and ", " and ", ", and what is ", " and how much is ")


@attrs.frozen
class Part:
    """One sum or difference of two digits; differences are never negative."""

    left: int
    operator: str
    right: int

    @property
    def value(self) -> int:
        """The result, 0 … 18."""
        return self.left + self.right if self.operator == "plus" else self.left - self.right

    @property
    def words(self) -> str:
        """``two plus three``."""
        return f"{NUMBERS[self.left]} {self.operator} {NUMBERS[self.right]}"

    @property
    def sentence(self) -> str:
        """``Two plus three is five.``"""
        return f"{self.words.capitalize()} is {NUMBERS[self.value]}."


@attrs.frozen
class Question:
    """A question and the one right answer to it."""

    parts: tuple[Part, ...]
    text: str

    @property
    def answer(self) -> str:
        """One sentence per part, in the order asked."""
        return " ".join(part.sentence for part in self.parts)


def all_parts() -> tuple[Part, ...]:
    """All 155: a hundred sums, fifty-five differences."""
    return tuple(_every_part())


def _every_part() -> Iterator[Part]:
    for left in range(10):
        for right in range(10):
            yield Part(left, "plus", right)
            if left >= right:
                yield Part(left, "minus", right)


_ALL = all_parts()


def draw(rng: random.Random, parts: int | None = None) -> Question:
    """One question of ``parts`` parts (default: one to four, evenly), in any of the phrasings."""
    count = parts or rng.randint(1, MAX_PARTS)
    asked = tuple(rng.choice(_ALL) for _ in range(count))
    text = rng.choice(_OPENINGS).format(_join(rng, [part.words for part in asked]))
    text = text[0].upper() + text[1:]
    return Question(asked, _casual(rng, text) if rng.random() < 0.2 else text)


def _join(rng: random.Random, phrases: list[str]) -> str:
    *first, last = phrases
    if not first:
        return last
    inner = rng.choice((", ", ", ", " and "))
    return inner.join(first) + rng.choice(_LAST_JOINS) + last


def _casual(rng: random.Random, text: str) -> str:
    """As people type: no capital, or no mark at the end, or neither."""
    style = rng.randrange(3)
    text = text[0].lower() + text[1:] if style != 0 else text
    return text.rstrip("?.") if style != 1 else text


def questions(n: int, seed: int, parts: int | None = None) -> list[Question]:
    """``n`` questions with their answers; the same ones for the same seed, and the first ones for a smaller ``n``."""
    rng = random.Random(seed)
    return [draw(rng, parts) for _ in range(n)]
