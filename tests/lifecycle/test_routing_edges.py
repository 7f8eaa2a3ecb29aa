"""Routing at its edges: what a decision carries, what is noted on the way, and the windows' last place."""

from __future__ import annotations

import pytest

from omni_actors.lifecycle import (
    Admission,
    Deliver,
    Edge,
    Fail,
    Finish,
    Forward,
    Graph,
    Node,
    RequestTable,
    RequestView,
    StageResult,
    advance,
    opened,
    produced,
    rejected,
    streamed,
)
from omni_actors.lifecycle.events import Output, TensorChunk, TextChunk


def by_dot(text, finished):
    *whole, rest = text.split(".")
    return ([*whole, rest], "") if finished and rest else (whole, "" if finished else rest)


def begun(*nodes, modalities=None):
    table = RequestTable(Admission(10, 1000), clock=lambda: 5.0, on_closed=lambda record: None)
    record = table.admit(RequestView("me", "hi", (), {}), Graph(nodes).plan(modalities), slots=1, nbytes=2)
    table.begin(record)
    return record, advance(record)


def text(words, **more):
    return TextChunk(text=words, token_ids=[len(words)], **more)


LLM = Node(name="llm", output="text")
SPEAKS = Node(name="voice", output="audio", edges=(Edge(source="llm", mode="segments", split=by_dot),))
ECHOES = Node(name="echo", output="audio", edges=(Edge(source="llm"),))


def test_an_output_says_whose_it_is_and_from_where():
    record, _ = begun(LLM, SPEAKS)
    opened(record, "llm", 0, 2)
    payload = text("a")
    (deliver,) = produced(record, "llm", 0, 1, payload, False, 1.0)
    assert deliver == Deliver(Output("me", "llm", "text", payload, 1, 0))
    produced(record, "llm", 0, 0, text("x.y."), False, 1.0)
    produced(record, "voice", 0, 0, None, True, 2.0)
    sound = TensorChunk(tensors={"audio": "~"})
    (deliver,) = produced(record, "voice", 1, 0, sound, False, 2.0)
    assert deliver == Deliver(Output("me", "voice", "audio", sound, 0, 1))


def test_the_short_way_says_the_same_and_keeps_the_books():
    record, _ = begun(LLM)
    opened(record, "llm", 0, 2)
    for index in (0, 1):
        produced(record, "llm", 0, index, text("ab"), False, 1.0)
    payload = TextChunk(text="cd", token_ids=[7, 8])
    assert streamed(record, "llm", 0, 1, payload, 3.0) == Output("me", "llm", "text", payload, 1, 0)
    timing = record.stages["llm"].timing()
    assert (timing.first_at, timing.finished_at, timing.tokens) == (1.0, 3.0, 4)
    assert [(result.text, result.token_ids) for result in record.stages["llm"].results()] == [
        ("ab", [2]),
        ("abcd", [2, 7, 8]),
    ]


def test_a_part_that_must_wait_does_not_take_the_short_way():
    cut = Node(name="writer", output="text", edges=(Edge(source="llm", mode="segments", split=by_dot),))
    record, _ = begun(Node(name="llm"), cut)
    produced(record, "llm", 0, 0, text("a.b."), False, 1.0)
    assert produced(record, "writer", 1, 0, text("B"), False, 2.0) == []
    assert streamed(record, "writer", 1, 0, text("B"), 3.0) is None
    (deliver,) = produced(record, "writer", 0, 0, text("A"), False, 4.0)
    assert deliver.output.part == 0
    short = streamed(record, "writer", 0, 0, text("A"), 5.0)
    assert (short.text, short.part) == ("A", 0)
    produced(record, "writer", 0, 0, None, True, 6.0)
    short = streamed(record, "writer", 1, 0, text("B"), 7.0)
    assert (short.text, short.part) == ("B", 1)


def test_a_part_is_answered_by_its_first_output_not_by_its_end():
    record, _ = begun(LLM, ECHOES)
    part = record.stages["llm"].parts[0]
    assert part.answered is False
    produced(record, "llm", 0, 0, None, True, 1.0)
    assert part.answered is False
    produced(record, "echo", 0, 0, text("!"), False, 2.0)
    assert record.stages["echo"].parts[0].answered is True


def test_a_stage_without_consumers_makes_no_work_and_one_that_said_nothing_still_ends():
    record, first = begun(LLM)
    assert first == [Forward("llm", 0, {})]
    assert produced(record, "llm", 0, 0, None, True, 1.0) == [Finish()]


def test_a_whole_edge_hands_over_the_first_choice_of_every_part_and_nothing_of_the_others():
    record, _ = begun(LLM, ECHOES)
    opened(record, "llm", 0, 2)
    produced(record, "llm", 0, 1, text("other"), True, 1.0)
    produced(record, "llm", 0, 0, text("mine", finish_reason="stop"), False, 1.0)
    (forward,) = produced(record, "llm", 0, 0, None, True, 1.0)
    given = StageResult(stage="llm", text="mine", token_ids=[4], finish_reason="stop")
    assert forward == Forward("echo", 0, {"llm": given})


def test_a_segment_is_text_of_its_part_and_an_inherited_part_is_what_was_made_of_it():
    last = Node(name="last", output="image", edges=(Edge(source="voice"),))
    record, _ = begun(Node(name="llm"), SPEAKS, last, modalities=["image"])
    decisions = produced(record, "llm", 0, 0, text("a.b.c"), False, 1.0)
    assert decisions == [
        Forward("voice", number, {"llm": StageResult(stage="llm", part=number, text=word)})
        for number, word in enumerate("ab")
    ]
    produced(record, "voice", 1, 0, text("B"), True, 2.0)
    assert produced(record, "voice", 0, 0, None, True, 2.0) == [
        Forward("last", 0, {"voice": StageResult(stage="voice", part=0)}),
        Forward("last", 1, {"voice": StageResult(stage="voice", part=1, text="B", token_ids=[1])}),
    ]


def test_four_parts_are_at_work_unless_said_otherwise():
    record, _ = begun(Node(name="llm"), SPEAKS)
    decisions = produced(record, "llm", 0, 0, text("a.b.c.d.e.f."), False, 1.0)
    assert [decision.part for decision in decisions] == [0, 1, 2, 3]
    assert record.stages["voice"].total is None, "more may be said"
    (more,) = produced(record, "voice", 2, 0, None, True, 2.0)
    assert (more.part, more.upstream["llm"].text) == (4, "e")
    produced(record, "llm", 0, 0, None, True, 3.0)
    assert record.stages["voice"].total == 6


def test_the_rest_of_the_text_comes_before_the_new_text():
    record, _ = begun(Node(name="llm"), SPEAKS)
    assert produced(record, "llm", 0, 0, text("on"), False, 1.0) == []
    assert record.stages["voice"].rest == "on"
    (forward,) = produced(record, "llm", 0, 0, text("e.two"), False, 2.0)
    assert forward.upstream["llm"].text == "one"
    assert record.stages["voice"].rest == "two"


def test_who_waits_for_the_whole_keeps_nobody_from_the_sentences():
    image = Node(name="image", output="image", edges=(Edge(source="llm"),))
    record, _ = begun(Node(name="llm"), image, SPEAKS)
    assert [consumer.name for consumer, _ in record.plan.consumers["llm"]] == ["image", "voice"]
    (forward,) = produced(record, "llm", 0, 0, text("one."), False, 1.0)
    assert (forward.stage, forward.upstream["llm"].text) == ("voice", "one")


def test_tensors_are_not_cut():
    record, _ = begun(Node(name="llm"), SPEAKS)
    assert produced(record, "llm", 0, 0, TensorChunk(tensors={"x": 1}), False, 1.0) == []


def test_a_splitter_that_raises_ends_the_cutting_there():
    def broken(text, finished):
        raise ValueError("oh")

    bad = Node(name="bad", output="audio", edges=(Edge(source="llm", mode="segments", split=broken, split_name="m:f"),))
    good = Node(name="good", output="image", edges=(Edge(source="llm", mode="segments", split=by_dot),))
    record, _ = begun(Node(name="llm"), bad, good)
    (fail,) = produced(record, "llm", 0, 0, text("a."), False, 1.0)
    assert (fail.stage, fail.error.stage, fail.error.function) == ("bad", "bad", "m:f")
    assert str(fail.error) == "the splitter m:f of edge llm->bad raised ValueError: oh"


def test_a_lease_that_was_given_up_names_its_stage():
    error = rejected("voice", "full")
    assert (error.stage, str(error)) == ("voice", "stage voice gave the request up: full")


def test_decisions_are_frozen():
    for decision, field in ((Forward("s", 0, {}), "stage"), (Fail("s", rejected("s", "so")), "stage")):
        with pytest.raises(AttributeError, match="immutable"):
            setattr(decision, field, "t")
    with pytest.raises(AttributeError, match="immutable"):
        Deliver(Output("me", "s", "text", text("a"))).output = None
