"""What a request has made, added up: results, timings, the terminal; and that two requests are never the same one."""

from __future__ import annotations

import attrs
import msgspec
import pytest

from omni_actors.lifecycle import (
    Graph,
    Kind,
    Node,
    Record,
    RequestState,
    RequestView,
    StageProgress,
    StageResult,
    Terminal,
    Timing,
)
from omni_actors.lifecycle._record import Lease, Made, Part
from omni_actors.lifecycle.events import StepChunk, TensorChunk, TextChunk


class Samples:
    """A tensor, as far as statistics look at one."""

    def __init__(self, count):
        self.shape = (count,)


def made(*payloads):
    found = Made()
    for payload in payloads:
        found.add(payload)
    return found


# ---------------------------------------------------------------------- adding up


def test_text_adds_up_and_the_last_reason_stays():
    one = made(
        TextChunk(text="he", token_ids=[1]),
        TextChunk(text="llo", token_ids=[2, 3], finish_reason="stop"),
        TextChunk(text="!", token_ids=[4]),
    )
    assert StageResult.of("thinker", 2, 1, (one,)) == StageResult(
        stage="thinker", part=2, index=1, text="hello!", token_ids=[1, 2, 3, 4], finish_reason="stop"
    )


def test_tensors_are_kept_by_name_in_order_and_the_newest_meta_wins():
    first = made(
        TensorChunk(tensors={"audio": "a1", "image": "i1"}, meta={"rate": 1, "seed": 7}),
        TensorChunk(tensors={"audio": "a2"}, meta={"rate": 2}, finish_reason="stop"),
    )
    second = made(TensorChunk(tensors={"audio": "a3"}, meta={"rate": 3}, finish_reason="length"), TensorChunk())
    result = StageResult.of("voice", 0, 0, (first, second))
    assert result.tensors == {"audio": ("a1", "a2", "a3"), "image": ("i1",)}
    assert result.meta == {"rate": 3, "seed": 7}
    assert result.finish_reason == "length"


def test_who_gave_no_reason_does_not_hide_the_one_that_was_given():
    told, silent = made(TextChunk(text="a", finish_reason="stop")), made(TextChunk(text="b"))
    assert StageResult.of("s", 0, 0, (told, silent)).finish_reason == "stop"
    assert StageResult.of("s", 0, 0, (silent,)).finish_reason is None


def test_nothing_made_is_an_empty_result():
    nothing = StageResult(stage="s")
    assert StageResult.of("s", 0, 0, ()) == nothing
    assert attrs.astuple(nothing) == ("s", 0, 0, "", [], {}, {}, None, {}, None)


def test_results_come_in_the_order_of_parts_and_choices():
    progress = StageProgress(Node(name="s"))
    for number in (1, 0):
        progress.parts[number] = Part(samples=2)
        for index in (1, 0):
            progress.parts[number].made[index] = made(TextChunk(text=f"{number}{index}"))
    assert [(r.stage, r.part, r.index, r.text) for r in progress.results()] == [
        ("s", 0, 0, "00"), ("s", 0, 1, "01"), ("s", 1, 0, "10"), ("s", 1, 1, "11"),
    ]  # fmt: skip


# ---------------------------------------------------------------------- statistics


def test_the_clock_of_a_stage_starts_once_and_stops_last():
    progress = StageProgress(Node(name="s"), ready_at=1.0, submitted_at=2.0)
    progress.count(TextChunk(token_ids=[1, 2]), 3.0)
    progress.count(TextChunk(token_ids=[3]), 4.0)
    assert progress.timing() == Timing(
        stage="s", ready_at=1.0, submitted_at=2.0, first_at=3.0, finished_at=4.0, tokens=3
    )
    assert msgspec.structs.astuple(Timing(stage="s")) == ("s", None, None, None, None, 0, 0.0, 0, 0, None)
    assert StageProgress(Node(name="s")).timing() == Timing(stage="s")


@pytest.mark.parametrize(
    ("tensors", "meta", "seconds"),
    [
        ({"audio": Samples(8000)}, {"sample_rate": 16000}, 1.5),
        ({"audio": Samples(8000)}, {}, 1.0),
        ({"image": Samples(8000)}, {"sample_rate": 16000}, 1.0),
    ],
)
def test_only_sound_with_a_rate_has_a_length(tensors, meta, seconds):
    progress = StageProgress(Node(name="s"))
    progress.count(TensorChunk(tensors={"audio": Samples(24000)}, meta={"sample_rate": 24000}), 0.0)
    progress.count(TensorChunk(tensors=tensors, meta=meta), 1.0)
    assert (progress.timing().audio_s, progress.timing().tokens) == (seconds, 0)


def test_a_stage_is_complete_when_the_number_of_its_parts_is_known_and_all_are_done():
    steps = [(None, 0), (None, 1), (2, 1), (2, 2), (0, 0)]
    found = [StageProgress(Node(name="s"), total=total, done=done).complete for total, done in steps]
    assert found == [False, False, False, True, True]


def test_a_part_is_done_with_its_last_sample():
    assert [Part(samples=2, finished=n).done for n in (0, 1, 2)] == [False, False, True]
    assert attrs.astuple(Part(samples=2)) == (2, 0, {}, [], False, ())


# ---------------------------------------------------------------------- the terminal


def terminal(**results):
    found = {stage: tuple(StageResult(stage=stage, **fields) for fields in many) for stage, many in results.items()}
    return Terminal(kind=Kind.FINISHED, request_id="me", stage="voice", results=found)


def test_the_words_of_an_end_are_those_of_the_first_stage_that_made_any():
    end = terminal(
        draw=[{"tensors": {"image": (1,)}}],
        think=[{"text": "a", "token_ids": [1]}, {"text": "A", "token_ids": [9], "index": 1}, {"text": "b", "part": 1}],
        talk=[{"text": "later", "token_ids": [5]}],
    )
    assert (end.text(), end.text("think"), end.text("talk"), end.text("draw"), end.text("?")) == (
        "ab", "ab", "later", "", "",
    )  # fmt: skip
    assert (end.text(index=1), end.text("think", 1), end.text("think", 7)) == ("A", "A", "")
    assert (end.token_ids("think"), end.token_ids("think", 1), end.token_ids("?")) == ([1], [9], [])


def test_tokens_without_words_are_text_too_so_are_words_without_tokens():
    codec = terminal(talk=[{"token_ids": [1, 2]}], think=[{"text": "hello"}])
    assert (codec.text(), codec.token_ids("talk")) == ("", [1, 2])
    assert terminal(draw=[{}], think=[{"text": "hello"}]).text() == "hello"


def test_an_end_that_carries_nothing():
    end = Terminal(kind=Kind.ABORTED, request_id="me", stage="voice")
    assert msgspec.structs.astuple(end) == (Kind.ABORTED, "me", "voice", None, None, {}, (), 0.0, 0.0, 0)
    assert (end.text(), end.token_ids("voice")) == ("", [])


# ---------------------------------------------------------------------- identity


def test_what_leaves_the_table_is_named_field_by_field_and_frozen():
    attrs_own, structs_own = (attrs.exceptions.FrozenInstanceError, None), (AttributeError, "immutable")
    for value, (error, words) in (
        (StageResult(stage="s"), attrs_own),
        (Timing(stage="s"), structs_own),
        (Terminal(kind=Kind.FAILED, request_id="me", stage="s"), structs_own),
    ):
        with pytest.raises(TypeError, match="positional"):
            type(value)("s", "s", "s")
        with pytest.raises(error, match=words):
            value.stage = "t"


def record():
    view, plan = RequestView("me", "hi", (), {}), Graph([Node(name="s", output="text")]).plan(None)
    return Record(key="1-0", view=view, plan=plan, stages={}, slots=1, nbytes=2, submitted_at=3.0)


def test_what_has_just_come_has_nothing_yet():
    fresh = record()
    assert (fresh.sink, fresh.priority, fresh.options, fresh.leases, fresh.terminal) == (None, 0, {}, {}, None)
    assert (fresh.state, fresh.settled, fresh.prompt_tokens) == (RequestState.ADMITTED, False, 0)
    assert attrs.astuple(Made()) == ([], [], {}, {}, None, None)
    stage = StageProgress(Node(name="s"))
    assert (stage.total, stage.opened, stage.done, stage.delivering, stage.rest) == (1, 0, 0, 0, "")
    assert (list(stage.segments), stage.parts, stage.complete) == ([], {}, False)


def test_two_with_the_same_content_are_still_two():
    pairs = (
        (record(), record()),
        (Made(), Made()),
        (Part(samples=1), Part(samples=1)),
        (StageProgress(Node(name="s")), StageProgress(Node(name="s"))),
        (Lease("k", None, "s", 0, 0, 0, 1), Lease("k", None, "s", 0, 0, 0, 1)),
    )
    for one, other in pairs:
        assert one != other
        assert len({one, other}) == 2


def test_steps_of_pictures_are_counted_and_news_is_not():
    progress = StageProgress(Node(name="s"))
    progress.count(TensorChunk(tensors={}, meta={"steps": 20}), 1.0)
    progress.count(TensorChunk(tensors={}, meta={"steps": 8}), 2.0)
    assert progress.timing().steps == 28
    made = Made()
    made.add(StepChunk(done=1, total=20))
    assert (made.meta, made.tensors, made.texts, made.finish_reason) == ({}, {}, [], None)
