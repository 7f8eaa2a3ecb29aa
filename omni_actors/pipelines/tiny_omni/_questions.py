"""The little world of tiny-omni: sums and differences of digits, as questions with known answers.

One grammar serves the training script, the benchmark and the tests. A question has one to four parts; its answer has
one sentence per part, in the order asked. Everything is drawn from a seeded generator: same seed, same questions.
"""

from __future__ import annotations

import random
import re
from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["BENCH_SEED", "NUMBERS", "Part", "Question", "all_parts", "draw", "number_of", "questions"]

NUMBERS = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
    "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen",
)  # fmt: skip

MAX_PARTS = 4

BENCH_SEED = 20_260
"""The benchmark's seed. Training skips every many-part question whose parts, in order, the first 2,000 of it ask."""

_OPENINGS = (
    "What is {}?", "What is {}?", "What's {}?", "How much is {}?", "{}?", "Tell me {}.", "Calculate {}.",
    "Can you tell me {}?", "Could you tell me what {} is?", "I would like to know {}.", "Hello, what is {}?",
)  # fmt: skip
_NEXT_OPENINGS = (
    "What is {}?", "And what is {}?", "And {}?", "And how much is {}?", "How much is {}?", "Then what is {}?",
    "And then {}?", "What's {}?", "Also, what is {}?",
)  # fmt: skip
_JOINS = (", ", ", and ", " and ", "; ", ", then ", " and then ")
_LAST_JOINS = (
    ", and ", ", and ", " and ", " and ", ", ", "; ", "; and ", ", and what is ", " and what is ",
    ", and how much is ", " and how much is ", ", and then ", " and also ",
)  # fmt: skip
_POLITE = ("Please {}", "Please, {}", "{}, please", "{} please")
_AS_DIGITS = {word: str(number) for number, word in enumerate(NUMBERS[:10])}
_SUM = re.compile(rf"\b({'|'.join(NUMBERS[:10])}) (plus|minus) ({'|'.join(NUMBERS[:10])})\b", re.IGNORECASE)


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


def number_of(word: str) -> int | None:
    """``fifteen`` and ``15`` are 15; a word that is no number of at most four digits is None."""
    if word in NUMBERS:
        return NUMBERS.index(word)
    return int(word) if word.isascii() and word.isdigit() and len(word) <= 4 else None


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
    """One question of ``parts`` parts (default: one to four, evenly), as people phrase and type them."""
    count = parts or rng.randint(1, MAX_PARTS)
    asked = tuple(rng.choice(_ALL) for _ in range(count))
    phrases = [part.words for part in asked]
    text = _separately(rng, phrases) if rng.random() < 0.25 else rng.choice(_OPENINGS).format(_join(rng, phrases))
    text = text[0].upper() + text[1:]
    if rng.random() < 0.2:
        text = _politely(rng, text)
    if rng.random() < 0.15:
        text = _in_digits(rng, text)
    return Question(asked, _casual(rng, text) if rng.random() < 0.3 else text)


def _separately(rng: random.Random, phrases: list[str]) -> str:
    """``What is two plus three? And what is nine minus four?``"""
    first, *others = phrases
    asked = [rng.choice(_OPENINGS).format(first), *(rng.choice(_NEXT_OPENINGS).format(other) for other in others)]
    return " ".join(asked)


def _join(rng: random.Random, phrases: list[str]) -> str:
    """In one question: ``…, … and …``, or one join throughout, or whatever comes to mind."""
    *first, last = phrases
    if not first:
        return last
    style = rng.random()
    inner = [rng.choice(_JOINS)] * len(first) if style < 0.7 else [rng.choice(_JOINS) for _ in first]
    if style < 0.4:
        inner[-1] = rng.choice(_LAST_JOINS)
    return "".join(phrase + join for phrase, join in zip(first, inner, strict=True)) + last


def _politely(rng: random.Random, text: str) -> str:
    style = rng.choice(_POLITE)
    if style.startswith("Please"):
        return style.format(text[0].lower() + text[1:])
    return style.format(text[:-1]) + text[-1]


def _in_digits(rng: random.Random, text: str) -> str:
    """``2 plus 3``, ``2 + 3`` or ``2+3``."""
    plus, minus = rng.choice(((" plus ", " minus "), (" + ", " - "), ("+", "-")))
    signs = {"plus": plus, "minus": minus}

    def digits(found: re.Match[str]) -> str:
        left, operator, right = found[0].lower().split()
        return _AS_DIGITS[left] + signs[operator] + _AS_DIGITS[right]

    return _SUM.sub(digits, text)


def _casual(rng: random.Random, text: str) -> str:
    """As people type: no capital, no capitals, nothing but capitals, or no mark at the end."""
    style = rng.randrange(5)
    if style == 0:
        return text[0].lower() + text[1:]
    if style == 1:
        return text.lower()
    if style == 2:
        return text.upper()
    return text.rstrip("?.").lower() if style == 3 else text.rstrip("?.")


def questions(n: int, seed: int, parts: int | None = None) -> list[Question]:
    """``n`` questions with their answers; the same ones for the same seed, and the first ones for a smaller ``n``."""
    rng = random.Random(seed)
    return [draw(rng, parts) for _ in range(n)]
