"""The talker's pieces: byte-pair encoding over phonemes, small and deterministic.

A word with the space before it is spelled in phonemes; the most frequent neighbours are joined, again and again, as
long as the result has at most five sounds. Nothing is joined across words. A sentence of 28 phonemes becomes six to
nine tokens, which is what lets the first one be heard early.
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING

from omni_actors.pipelines.tiny_omni._vocabulary import UNKNOWN, Alphabet, words_of

if TYPE_CHECKING:
    from collections.abc import Iterable

Piece = tuple[int, ...]

MAX_SOUNDS = 5
MAX_PIECES = 250
SILENT = " ˈˌ"
SPECIALS = ("<pad>", UNKNOWN)


def spoken_words(phonemes: list[int], space: int) -> list[Piece]:
    """``[62, 16, 58, 54]`` → ``[(62,), (16, 58, 54)]``: each word keeps the space before it."""
    words: list[list[int]] = [[]]
    for phoneme in phonemes:
        if phoneme == space:
            words.append([])
        words[-1].append(phoneme)
    return [tuple(word) for word in words if word]


class Joiner:
    """Learned joins, in order; ``silent`` phonemes (the space, the stress marks) do not count as sounds."""

    def __init__(self, words: Iterable[Piece], silent: frozenset[int]) -> None:
        self._silent = silent
        self.joins: list[tuple[Piece, Piece]] = []
        counts = Counter(words)
        spelled = {word: [(phoneme,) for phoneme in word] for word in counts}
        self.pieces: list[Piece] = sorted({piece for word in spelled.values() for piece in word})
        while len(self.pieces) < MAX_PIECES and (pair := self._most_frequent(spelled, counts)):
            self.joins.append(pair)
            self.pieces.append(pair[0] + pair[1])
            spelled = {word: _joined(pieces, pair) for word, pieces in spelled.items()}

    def cut(self, word: Piece) -> list[Piece]:
        """A word in pieces."""
        pieces = [(phoneme,) for phoneme in word]
        for pair in self.joins:
            pieces = _joined(pieces, pair)
        return pieces

    def _most_frequent(self, spelled: dict[Piece, list[Piece]], counts: Counter[Piece]):
        pairs: Counter[tuple[Piece, Piece]] = Counter()
        for word, pieces in spelled.items():
            for pair in pairwise(pieces):
                if self._sounds(pair[0] + pair[1]) <= MAX_SOUNDS:
                    pairs[pair] += counts[word]
        return min(pairs, key=lambda pair: (-pairs[pair], pair), default=None)

    def _sounds(self, piece: Piece) -> int:
        return sum(phoneme not in self._silent for phoneme in piece)


def _joined(pieces: list[Piece], pair: tuple[Piece, Piece]) -> list[Piece]:
    joined: list[Piece] = []
    for piece in pieces:
        if joined and (joined[-1], piece) == pair:
            joined[-1] = pair[0] + pair[1]
        else:
            joined.append(piece)
    return joined


def make_alphabet(speech: dict[str, list[int]], sounds: dict[str, int]) -> tuple[Alphabet, dict[str, list[int]]]:
    """The talker's alphabet, learned from sentences and their phonemes (which end in a full stop), and its tokens.

    Returns the alphabet and, for each sentence, the tokens that the talker should write before its end mark.
    """
    space, stop = sounds[" "], sounds["."]
    cut_up = {sentence: spoken_words(phonemes[:-1], space) for sentence, phonemes in speech.items()}
    silent = frozenset(sounds[mark] for mark in SILENT)
    joiner = Joiner((word for words in cut_up.values() for word in words), silent)
    words = [*SPECIALS, *sorted({word for sentence in speech for word in words_of(sentence)})]
    offset, end = len(words), len(words) + len(joiner.pieces)
    alphabet = Alphabet(
        words={word: i for i, word in enumerate(words)},
        pieces=joiner.pieces,
        closing=[stop],
        offset=offset,
        begin_audio=end,
        end_audio=end + 1,
    )
    number = {piece: offset + i for i, piece in enumerate(joiner.pieces)}
    tokens = {s: [number[piece] for word in spoken for piece in joiner.cut(word)] for s, spoken in cut_up.items()}
    return alphabet, tokens
