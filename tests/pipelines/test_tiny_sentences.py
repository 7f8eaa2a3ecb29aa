"""The splitter of the edge thinker → talker: what it cuts does not depend on how the text arrives (I6)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from omni_actors.pipelines.tiny_omni import sentences

PROSE = st.text(alphabet=" .!?\n,abcTwo", max_size=60)


def stream(pieces: list[str]) -> list[str]:
    """What the router does: keep the rest, add what comes, cut; and once more at the end."""
    segments: list[str] = []
    rest = ""
    for piece in pieces:
        cut, rest = sentences(rest + piece, False)
        segments += cut
    last, rest = sentences(rest, True)
    assert rest == ""
    return segments + last


def cut_at(text: str, places: list[int]) -> list[str]:
    ends = sorted({place % (len(text) + 1) for place in places} | {len(text)})
    return [text[a:b] for a, b in zip([0, *ends], ends, strict=False)]


def test_a_sentence_is_complete_when_the_next_one_begins() -> None:
    assert sentences("Two plus three is five.", False) == ([], "Two plus three is five.")
    assert sentences("Two plus three is five. Nine", False) == (["Two plus three is five."], "Nine")


def test_the_last_sentence_needs_no_successor() -> None:
    assert sentences("Nine minus four is five.", True) == (["Nine minus four is five."], "")


def test_text_without_a_mark_is_one_sentence_at_the_end() -> None:
    assert sentences("nine minus", True) == (["nine minus"], "")


def test_nothing_gives_nothing() -> None:
    assert sentences("", False) == ([], "")
    assert sentences("  \n", True) == ([], "")


def test_a_number_with_a_point_is_not_cut() -> None:
    assert sentences("It is 3.5 or so. Yes", False) == (["It is 3.5 or so."], "Yes")


@given(PROSE, st.lists(st.integers(0, 1_000), max_size=12))
def test_any_cutting_gives_the_same_segments(text: str, places: list[int]) -> None:
    assert stream(cut_at(text, places)) == stream([text])


@given(PROSE, st.lists(st.integers(0, 1_000), max_size=12))
def test_nothing_but_white_space_is_lost(text: str, places: list[int]) -> None:
    segments = stream(cut_at(text, places))
    assert "".join("".join(segments).split()) == "".join(text.split())
    assert all(segment == segment.strip() != "" for segment in segments)
