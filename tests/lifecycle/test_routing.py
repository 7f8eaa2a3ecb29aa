"""Routing, told as conversations: a stage makes something, and this is what follows."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omni_actors._errors import TransformFailed
from omni_actors.lifecycle import (
    Admission,
    Deliver,
    Edge,
    Fail,
    Finish,
    Forward,
    Graph,
    Kind,
    Node,
    RequestTable,
    RequestView,
    advance,
    opened,
    produced,
    rejected,
)
from omni_actors.lifecycle.events import TensorChunk, TextChunk

from ._world import graphs


def by_dot(text, finished):
    *whole, rest = text.split(".")
    return [*whole, rest] if finished and rest else whole, "" if finished else rest


def segments(source, split=by_dot, **more):
    return Edge(source=source, mode="segments", split=split, split_name="tests:split", **more)


def node(name, *sources, output=None):
    return Node(name=name, output=output, edges=tuple(s if isinstance(s, Edge) else Edge(source=s) for s in sources))


class Conversation:
    """One running request. Decisions are noted in words: ``deliver s0 0:0 hi``, ``forward s1 0 {...}``, ``finish``."""

    def __init__(self, *nodes, modalities=None):
        table = RequestTable(Admission(10, 1000), clock=lambda: 5.0, on_closed=lambda record: None)
        plan = Graph(nodes).plan(modalities)
        self.table = table
        self.record = table.admit(RequestView("me", "hi", (), {}), plan, slots=1, nbytes=2)
        table.begin(self.record)
        self.failure = None
        self.first = self.note(advance(self.record))

    def note(self, decisions):
        return [self.word(decision) for decision in decisions]

    def word(self, decision):
        if isinstance(decision, Deliver):
            out = decision.output
            assert out.request_id == "me"
            what = out.text if isinstance(out.payload, TextChunk) else out.audio
            return f"deliver {out.stage} {out.part}:{out.index} {what}"
        if isinstance(decision, Forward):
            inputs = {stage: result.text or result.tensors for stage, result in decision.upstream.items()}
            return f"forward {decision.stage} {decision.part} {inputs}"
        if isinstance(decision, Fail):
            self.failure = decision
            return f"fail {decision.stage}"
        assert isinstance(decision, Finish)
        return "finish"

    def says(self, stage, text=None, *, part=0, index=0, end=False, at=0.0):
        payload = None if text is None else TextChunk(text=text, token_ids=[len(text)])
        return self.note(produced(self.record, stage, part, index, payload, end, at))


def test_a_request_walks_a_chain_of_whole_edges():
    talk = Conversation(node("a", output="text"), node("b", "a"), node("c", "b", output="audio"))
    assert talk.first == ["forward a 0 {}"]
    assert talk.says("a", "he") == ["deliver a 0:0 he"]
    assert talk.says("a", "llo", end=True) == ["deliver a 0:0 llo", "forward b 0 {'a': 'hello'}"]
    assert talk.says("b", "HEL") == []
    assert talk.says("b", end=True) == ["forward c 0 {'b': 'HEL'}"]
    assert talk.says("c", "~", end=True) == ["deliver c 0:0 ~", "finish"]


def test_what_was_not_asked_for_is_neither_delivered_nor_started():
    talk = Conversation(
        node("a", output="text"), node("b", "a", output="audio"), node("c", "a", output="image"), modalities=["audio"]
    )
    assert talk.says("a", "hi", end=True) == ["forward b 0 {'a': 'hi'}"]
    assert talk.says("b", "~", end=True) == ["deliver b 0:0 ~", "finish"]


def test_fan_out_feeds_all_and_the_slowest_finishes():
    talk = Conversation(node("a"), node("b", "a", output="audio"), node("c", "a", output="image"))
    assert talk.says("a", "x", end=True) == ["forward b 0 {'a': 'x'}", "forward c 0 {'a': 'x'}"]
    assert talk.says("c", "o", end=True) == ["deliver c 0:0 o"]
    assert talk.says("b", "~", end=True) == ["deliver b 0:0 ~", "finish"]


def test_fan_in_waits_for_all():
    talk = Conversation(node("a"), node("b", "a"), node("c", "a"), node("d", "b", "c", "a", output="text"))
    talk.says("a", "x", end=True)
    assert talk.says("c", "cc", end=True) == []
    assert talk.says("b", "bb") == []
    assert talk.says("b", end=True) == ["forward d 0 {'b': 'bb', 'c': 'cc', 'a': 'x'}"]
    assert talk.says("d", "!", end=True) == ["deliver d 0:0 !", "finish"]


def test_two_roots_start_together():
    talk = Conversation(node("a"), node("b"), node("c", "a", "b", output="text"))
    assert talk.first == ["forward a 0 {}", "forward b 0 {}"]


# ---------------------------------------------------------------------- samples


def test_all_samples_are_delivered_the_first_is_forwarded_and_all_must_finish():
    talk = Conversation(node("a", output="text"), node("b", "a", output="audio"))
    opened(talk.record, "a", 0, 2)
    assert talk.says("a", "zero", index=0) == ["deliver a 0:0 zero"]
    assert talk.says("a", "one", index=1, end=True) == ["deliver a 0:1 one"]
    assert talk.says("a", index=0, end=True) == ["forward b 0 {'a': 'zero'}"]
    assert talk.says("b", "~", end=True)[-1] == "finish"


def test_only_the_first_sample_is_cut_into_segments():
    talk = Conversation(node("a"), node("b", segments("a"), output="audio"))
    opened(talk.record, "a", 0, 2)
    assert talk.says("a", "other.", index=1, end=True) == []
    assert talk.says("a", "mine.", index=0, end=True) == ["forward b 0 {'a': 'mine'}"]


def test_a_forward_becomes_one_lease_at_least():
    talk = Conversation(node("a", output="text"))
    with pytest.raises(AssertionError, match="never finish"):
        opened(talk.record, "a", 0, 0)


# ---------------------------------------------------------------------- segments

SPOKEN = (node("t", output="text"), node("k", segments("t", parts_in_flight=2)), node("v", "k", output="audio"))


def test_each_sentence_is_forwarded_while_the_next_is_still_being_thought():
    talk = Conversation(*SPOKEN)
    assert talk.says("t", "One. Tw") == ["deliver t 0:0 One. Tw", "forward k 0 {'t': 'One'}"]
    assert talk.says("k", "1", part=0, end=True) == ["forward v 0 {'k': '1'}"]
    assert talk.says("v", "~1", part=0, end=True) == ["deliver v 0:0 ~1"]
    assert talk.says("t", "o") == ["deliver t 0:0 o"]
    assert talk.says("t", end=True) == ["forward k 1 {'t': ' Two'}"]
    assert talk.says("k", "2", part=1, end=True) == ["forward v 1 {'k': '2'}"]
    assert talk.says("v", "~2", part=1, end=True) == ["deliver v 1:0 ~2", "finish"]


def test_at_most_parts_in_flight_are_at_work_and_the_others_wait_as_text():
    """I13."""
    talk = Conversation(*SPOKEN)
    assert talk.says("t", "a.b.c.d.")[1:] == ["forward k 0 {'t': 'a'}", "forward k 1 {'t': 'b'}"]
    assert list(talk.record.stages["k"].segments) == ["c", "d"]
    assert talk.says("k", "B", part=1, end=True) == ["forward k 2 {'t': 'c'}"]
    assert talk.says("t", end=True) == []
    assert talk.says("k", "A", part=0, end=True) == [
        "forward k 3 {'t': 'd'}",
        "forward v 0 {'k': 'A'}",
        "forward v 1 {'k': 'B'}",
    ]


def test_a_stage_that_inherits_parts_has_a_window_of_its_own():
    """I13: a fast producer must not pile its parts up in a slow consumer's engine."""
    talk = Conversation(
        node("t"), node("k", segments("t")), node("v", Edge(source="k", parts_in_flight=1), output="audio")
    )
    talk.says("t", "a.b.c.", end=True)
    assert talk.says("k", "A", part=0, end=True) == ["forward v 0 {'k': 'A'}"]
    assert talk.says("k", "B", part=1, end=True) == []
    assert talk.says("k", "C", part=2, end=True) == []
    assert talk.says("v", "~a", part=0, end=True) == ["deliver v 0:0 ~a", "forward v 1 {'k': 'B'}"]
    assert talk.says("v", "~b", part=1, end=True) == ["deliver v 1:0 ~b", "forward v 2 {'k': 'C'}"]
    assert talk.says("v", "~c", part=2, end=True) == ["deliver v 2:0 ~c", "finish"]


def test_later_parts_are_held_back_until_the_earlier_ones_are_done():
    """I6."""
    talk = Conversation(node("t"), node("k", segments("t"), output="audio"))
    talk.says("t", "a.b.c.", end=True)
    assert talk.says("k", "c1", part=2, end=True) == []
    assert talk.says("k", "b1", part=1) == []
    assert talk.says("k", "a1", part=0) == ["deliver k 0:0 a1"]
    assert talk.says("k", "b2", part=1) == []
    assert talk.says("k", "a2", part=0, end=True) == ["deliver k 0:0 a2", "deliver k 1:0 b1", "deliver k 1:0 b2"]
    assert talk.says("k", "b3", part=1) == ["deliver k 1:0 b3"]
    assert talk.says("k", part=1, end=True) == ["deliver k 2:0 c1", "finish"]


def test_an_empty_answer_has_no_sentence_and_finishes():
    talk = Conversation(*SPOKEN)
    assert talk.says("t", "", end=True) == ["deliver t 0:0 ", "finish"]


def test_an_empty_answer_reaches_a_fan_in_as_nothing():
    talk = Conversation(node("t"), node("k", segments("t")), node("v", "k"), node("j", "t", "v", output="text"))
    assert talk.says("t", end=True) == ["forward j 0 {'t': {}, 'v': {}}"]
    assert talk.says("j", "!", end=True) == ["deliver j 0:0 !", "finish"]


@pytest.mark.parametrize("modalities", [None, ["audio"]])
def test_parts_that_end_before_the_producer_do_not_finish_the_request(modalities):
    talk = Conversation(*SPOKEN, modalities=modalities)
    talk.says("t", "a.")
    talk.says("k", "A", end=True)
    assert talk.says("v", "~a", end=True) == ["deliver v 0:0 ~a"]
    assert talk.says("t", end=True) == ["finish"]


def test_a_fan_in_gets_all_parts_in_order_as_one():
    talk = Conversation(node("t"), node("k", segments("t")), node("j", "k", "t", output="text"))
    talk.says("t", "a.b.", end=True)
    assert talk.says("k", "B", part=1, end=True) == []
    assert talk.says("k", "A", part=0, end=True) == ["forward j 0 {'k': 'AB', 't': 'a.b.'}"]


def test_two_splitters_cut_one_stream_each_in_its_way():
    def by_comma(text, finished):
        return by_dot(text.replace(",", "."), finished)

    talk = Conversation(
        node("t"), node("k", segments("t"), output="audio"), node("p", segments("t", by_comma), output="image")
    )
    assert talk.says("t", "a,b.c") == [
        "forward k 0 {'t': 'a,b'}",
        "forward p 0 {'t': 'a'}",
        "forward p 1 {'t': 'b'}",
    ]
    assert talk.says("t", end=True) == ["forward k 1 {'t': 'c'}", "forward p 2 {'t': 'c'}"]


@pytest.mark.parametrize("only_at_the_end", [False, True])
def test_a_splitter_that_raises_fails_its_request_and_is_named(only_at_the_end):
    def broken(text, finished):
        if finished or not only_at_the_end:
            raise ZeroDivisionError("oh")
        return [], text

    talk = Conversation(node("t", output="text"), node("k", segments("t", broken), output="audio"))
    said = talk.says("t", "a.") + talk.says("t", end=True)
    assert said[:2] == ["deliver t 0:0 a.", "fail k"]
    error = talk.failure.error
    assert isinstance(error, TransformFailed)
    assert (error.stage, error.function) == ("k", "tests:split")
    assert "edge t->k raised ZeroDivisionError: oh" in str(error)
    assert isinstance(error.__cause__, ZeroDivisionError)


def test_a_splitter_that_returns_nonsense_fails_its_request_too():
    talk = Conversation(node("t"), node("k", segments("t", lambda text, finished: None), output="audio"))
    assert talk.says("t", "a.") == ["fail k"]


# ---------------------------------------------------------------------- results, timings, tensors


def test_the_terminal_carries_everything_so_far_and_when():
    talk = Conversation(*SPOKEN)
    talk.says("t", "a.", at=1.0)
    talk.says("t", "b.", at=2.0)
    talk.says("k", "B", part=1, at=3.0, end=True)
    terminal = talk.table.settle(talk.record, Kind.ABORTED, reason="enough").terminal
    assert (terminal.kind, terminal.reason, terminal.stage, terminal.at) == (Kind.ABORTED, "enough", "v", 5.0)
    assert terminal.text() == terminal.text("t") == "a.b."
    assert terminal.text("k") == "B"
    assert terminal.text("v") == ""
    assert terminal.token_ids("t") == [2, 2]
    times = {timing.stage: timing for timing in terminal.timings}
    assert (times["t"].first_at, times["t"].finished_at, times["t"].tokens) == (1.0, 2.0, 2)
    assert times["v"].first_at is None


class Samples:
    """A tensor, as far as routing looks at one."""

    def __init__(self, count):
        self.shape, self.nbytes = (count,), 4 * count


def test_tensors_are_collected_in_order_and_audio_is_measured():
    talk = Conversation(node("v", output="audio"), node("w", "v", output="image"))
    one, two = Samples(8000), Samples(4000)
    meta = {"sample_rate": 16000}
    for tensor, end in ((one, False), (two, True)):
        decisions = produced(
            talk.record, "v", 0, 0, TensorChunk(tensors={"audio": tensor}, meta=meta, finish_reason="stop"), end, 0.0
        )
    forward = decisions[-1]
    assert forward.upstream["v"].tensors == {"audio": (one, two)}
    assert forward.upstream["v"].meta == meta
    assert forward.upstream["v"].finish_reason == "stop"
    assert talk.record.stages["v"].timing().audio_s == 0.75


def test_a_lease_given_up_is_the_engines_doing():
    assert "stage v gave the request up: released" in str(rejected("v", "released"))


# ---------------------------------------------------------------------- any graph


@settings(deadline=None)
@given(graphs(), st.data())
def test_any_graph_runs_to_its_end_in_graph_order(graph, data):
    """I9: in any order of engines, each stage of the plan and no other is asked, after its producers, part by part."""
    talk = Conversation(*graph.nodes.values())
    stages, waiting, asked, last = talk.record.stages, list(talk.first), [], None
    while waiting:
        _, stage, part, *_ = waiting.pop(data.draw(st.integers(0, len(waiting) - 1))).split()
        asked.append((stage, int(part)))
        check_inputs(talk.record, stage, int(part))
        text = data.draw(st.sampled_from(["", "x", "x.y", "x.y.z.", "."]))
        said = talk.says(stage, text, part=int(part)) + talk.says(stage, part=int(part), end=True)
        waiting += [word for word in said if word.startswith("forward")]
        assert last is None, "nothing comes after the finish"
        last = "finish" if "finish" in said else None
    assert last == "finish"
    assert len(asked) == len(set(asked))
    assert {stage for stage, _ in asked} <= set(stages)
    assert all(progress.complete and progress.opened == progress.total for progress in stages.values())


def check_inputs(record, stage, part):
    progress = record.stages[stage]
    for edge in progress.node.edges:
        source = record.stages[edge.source]
        if stage not in record.plan.partitioned:
            assert source.complete
        elif edge.mode == "whole":
            assert source.parts[part].done
    if stage in record.plan.partitioned:
        assert progress.opened - progress.done <= progress.node.edges[0].parts_in_flight
