"""Words to token ids without a tokenizer library: the host's half of the talker's prompt.

The thinker's tokenizer splits text into words that carry the space before them (``▁plus``) and punctuation marks,
and looks each up. That much is eight lines, so the host process need not import transformers for it. A test holds
the two together. The vocabulary is read once, from the files that ship with the weights.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import attrs

__all__ = ["WEIGHTS", "Alphabet", "Vocabulary", "alphabet", "vocabulary"]

WEIGHTS = Path(__file__).parent / "weights"

_PIECE = re.compile(r" ?[^\W_]+|[^\w\s]")
_SPACE = "▁"
UNKNOWN = "<unk>"


def pieces(text: str) -> list[str]:
    """``"Two is two."`` → ``["Two", "▁is", "▁two", "."]``."""
    return [piece.replace(" ", _SPACE) for piece in _PIECE.findall(" ".join(text.split()))]


@attrs.frozen
class Vocabulary:
    """The thinker's words. Unknown ones become ``<unk>``, as in its tokenizer."""

    ids: Mapping[str, int]

    def encode(self, text: str) -> list[int]:
        """Token ids of a text without special tokens; the same ones that the thinker's tokenizer gives."""
        unknown = self.ids[UNKNOWN]
        return [self.ids.get(piece, unknown) for piece in pieces(text)]


@attrs.frozen(kw_only=True)
class Alphabet:
    """How the talker's tokens are laid out: words first, then phonemes from ``offset`` on, then two marks.

    ``begin_audio`` ends the prompt, ``end_audio`` ends the output.
    """

    offset: int
    phonemes: int
    begin_audio: int
    end_audio: int

    def spoken(self, token_ids: Sequence[int]) -> list[int]:
        """The phoneme ids among the talker's output, in the vocoder's own numbering."""
        return [token - self.offset for token in token_ids if 0 <= token - self.offset < self.phonemes]


@functools.cache
def vocabulary() -> Vocabulary:
    """The shipped thinker's vocabulary."""
    return Vocabulary(json.loads((WEIGHTS / "thinker" / "vocabulary.json").read_text()))


@functools.cache
def alphabet() -> Alphabet:
    """The shipped talker's token layout."""
    return Alphabet(**json.loads((WEIGHTS / "talker" / "alphabet.json").read_text()))
