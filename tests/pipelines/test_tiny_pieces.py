"""The talker's pieces: words cut by learned joins, which lose nothing and never grow past five sounds."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omni_actors.pipelines.tiny_omni._questions import all_parts

TRAINING = Path(__file__).parents[2] / "training"
SPACE, STRESS = 0, 1
WORDS = st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=9).map(tuple), min_size=1, max_size=12)


def _training_module(name: str) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(TRAINING))
        return importlib.import_module(name)


pieces = _training_module("tiny_pieces")


def test_a_word_keeps_the_space_before_it() -> None:
    assert pieces.spoken_words([62, 16, 58, 54, 16, 7], space=16) == [(62,), (16, 58, 54), (16, 7)]


def test_what_stands_together_most_often_is_joined_first() -> None:
    joiner = pieces.Joiner([(2, 3), (2, 3), (2, 3), (3, 4)], frozenset())
    assert joiner.joins == [((2,), (3,)), ((3,), (4,))]
    assert joiner.cut((2, 3, 4)) == [(2, 3), (4,)]


def test_a_piece_has_at_most_five_sounds_and_silence_does_not_count() -> None:
    spoken = [(SPACE, 2, STRESS, 3, 4, 5, 6)] * 3 + [(2, 3, 4, 5, 6, 7, 8)] * 2
    joiner = pieces.Joiner(spoken, frozenset({SPACE, STRESS}))
    assert spoken[0] in joiner.pieces
    assert max(len(set(piece) - {SPACE, STRESS}) for piece in joiner.pieces) == pieces.MAX_SOUNDS == 5


@settings(deadline=None)
@given(WORDS)
def test_pieces_joined_again_are_the_word(words: list[tuple[int, ...]]) -> None:
    joiner, again = (pieces.Joiner(words, frozenset({SPACE, STRESS})) for _ in range(2))
    for word in words:
        cut = joiner.cut(word)
        assert sum(cut, ()) == word
        assert set(cut) <= set(joiner.pieces)
    assert joiner.joins == again.joins


def test_every_sentence_is_at_most_eight_tokens_and_sounds_as_it_did() -> None:
    hibari = importlib.import_module("hibari").Hibari()
    sentences = [part.sentence for part in all_parts()]
    speech = {s: hibari.ids(" ".join(hibari.phonemize(s)))[1:-1] for s in sentences}
    alphabet, tokens = pieces.make_alphabet(speech, hibari.vocab)
    assert max(len(made) + 1 for made in tokens.values()) <= 8
    assert {s: alphabet.spoken([*made, alphabet.end_audio]) for s, made in tokens.items()} == speech
    assert len(alphabet.pieces) <= pieces.MAX_PIECES
