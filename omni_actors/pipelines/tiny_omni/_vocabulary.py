"""What the host knows of the two models' tokens, without a tokenizer library.

The thinker writes an answer letter by letter. The talker reads the words of one sentence and writes *pieces*: runs of
up to five sounds inside one word (``plus`` is one piece, ``fifteen`` two). The tables of both ship with the weights and
are read once; looking up a word and spelling out a piece are a few lines, so the host need not import transformers.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import attrs

__all__ = ["UNKNOWN", "WEIGHTS", "Alphabet", "Vocabulary", "alphabet", "vocabulary", "words_of"]

WEIGHTS = Path(__file__).parent / "weights"

UNKNOWN = "<unk>"
_WORD = re.compile(r"[^\W_]+|[^\w\s]")


def words_of(sentence: str) -> list[str]:
    """``"Two is two."`` → ``["two", "is", "two", "."]``."""
    return _WORD.findall(sentence.lower())


@attrs.frozen
class Vocabulary:
    """The thinker's tokens: the words of questions and the letters of answers."""

    ids: Mapping[str, int]

    def encode(self, answer: str) -> list[int]:
        """An answer as the thinker writes it, a token for each letter; a letter that no answer has is ``<unk>``."""
        unknown = self.ids[UNKNOWN]
        return [self.ids.get(letter, unknown) for letter in answer.replace(" ", "▁")]


@attrs.frozen(kw_only=True)
class Alphabet:
    """How the talker's tokens are laid out: ``words``, then ``pieces`` from ``offset`` on, then two marks.

    ``begin_audio`` ends the prompt. ``end_audio`` ends the output, and is the full stop: it sounds like ``closing``.
    """

    words: Mapping[str, int]
    pieces: Sequence[Sequence[int]]
    closing: Sequence[int]
    offset: int
    begin_audio: int
    end_audio: int

    def read(self, sentence: str) -> list[int]:
        """The talker's prompt for one sentence. A word that it does not know becomes ``<unk>``."""
        unknown = self.words[UNKNOWN]
        return [*(self.words.get(word, unknown) for word in words_of(sentence)), self.begin_audio]

    def spoken(self, token_ids: Sequence[int]) -> list[int]:
        """The phoneme ids that the talker's output stands for, in the vocoder's numbering, with the closing ones."""
        chosen = [token - self.offset for token in token_ids if 0 <= token - self.offset < len(self.pieces)]
        return [phoneme for piece in chosen for phoneme in self.pieces[piece]] + list(self.closing)


@functools.cache
def vocabulary() -> Vocabulary:
    """The shipped thinker's vocabulary."""
    return Vocabulary(json.loads((WEIGHTS / "thinker" / "tokenizer.json").read_text())["model"]["vocab"])


@functools.cache
def alphabet() -> Alphabet:
    """The shipped talker's token layout."""
    return Alphabet(**json.loads((WEIGHTS / "talker" / "alphabet.json").read_text()))
