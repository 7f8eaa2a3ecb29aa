"""Companions: works beside a part's main work. What they make is for the next stage alone, which waits for them."""

from __future__ import annotations

import pytest

from omni_actors._errors import EngineDead, EngineRejected, InvalidRequest, StageFailed
from omni_actors.lifecycle import (
    Admission,
    Edge,
    Graph,
    Kind,
    LeaseState,
    Node,
    RequestTable,
    RequestView,
    advance,
    blamed,
    opened,
    produced,
)
from omni_actors.lifecycle.events import TensorChunk, TextChunk

FIRST, SECOND = -1, -2


def by_dot(text, finished):
    *whole, rest = text.split(".")
    return [*whole, rest] if finished and rest else whole, "" if finished else rest


class Talk:
    """One request, thinker (text) -> painter (image), with a speaker that reads the thinker in segments."""

    def __init__(self, companions=("text", "image"), samples=1):
        graph = Graph([
            Node(name="thinker", output="text"),
            Node(name="speaker", edges=(Edge(source="thinker", mode="segments", split=by_dot),)),
            Node(name="painter", output="image", edges=(Edge(source="thinker"),)),
        ])  # fmt: skip
        self.table = RequestTable(Admission(10, 100), clock=lambda: 0.0, on_closed=lambda record: None)
        view = RequestView("me", "hi", (), {})
        self.record = self.table.admit(view, graph.plan(["text", "image"]), slots=1, nbytes=1)
        self.graph = graph
        self.table.begin(self.record)
        advance(self.record)
        opened(self.record, "thinker", 0, samples, companions)

    def says(self, index, text=None, *, end=False, at=0.0):
        payload = None if text is None else TextChunk(text=text, token_ids=[len(text)], prompt_tokens=3)
        return [type(d).__name__ for d in produced(self.record, "thinker", 0, index, payload, end, at)]

    def ends(self, index, text):
        return produced(self.record, "thinker", 0, index, TextChunk(text=text, token_ids=[1]), True, 0.0)


def test_an_early_companion_is_kept_until_the_main_work_is_done():
    talk = Talk(companions=("text",))
    assert talk.says(FIRST, "no", end=True) == []
    assert talk.says(0, "yes") == ["Deliver"]
    (deliver, forward) = talk.ends(0, "!")
    assert deliver.output.text == "!"
    given = forward.upstream["thinker"]
    assert (forward.stage, given.text) == ("painter", "yes!")
    assert {name: result.text for name, result in given.companions.items()} == {"text": "no"}


def test_a_late_companion_is_waited_for_and_of_several_the_last():
    talk = Talk()
    assert talk.says(0, "yes", end=True) == ["Deliver"]
    assert talk.says(SECOND, "b", end=True) == []
    (forward,) = talk.ends(FIRST, "a")
    companions = forward.upstream["thinker"].companions
    assert [(name, result.text) for name, result in companions.items()] == [("text", "a"), ("image", "b")]


def test_a_companion_is_neither_heard_by_the_user_nor_found_in_the_results():
    talk = Talk()
    assert talk.says(FIRST, "secret") == talk.says(SECOND, "secret", end=True) == []
    talk.says(0, "open")
    terminal = talk.table.settle(talk.record, Kind.ABORTED).terminal
    (result,) = terminal.results["thinker"]
    assert (result.text, dict(result.companions)) == ("open", {})
    timing = next(t for t in terminal.timings if t.stage == "thinker")
    assert (timing.tokens, timing.companion_tokens) == (1, 2)


def test_tensors_of_a_companion_are_handed_over():
    talk = Talk(companions=("text",))
    produced(talk.record, "thinker", 0, FIRST, TensorChunk(tensors={"kv": "cache"}), True, 0.0)
    (_, forward) = talk.ends(0, "x")
    assert forward.upstream["thinker"].companions["text"].tensors == {"kv": ("cache",)}


def test_the_stage_is_done_when_its_companions_are_but_its_first_output_is_the_main_work_s():
    talk = Talk(companions=("text",))
    progress = talk.record.stages["thinker"]
    talk.says(FIRST, "early", at=1.0)
    assert progress.first_at is None
    talk.says(0, "x", end=True, at=2.0)
    assert not progress.complete
    talk.says(FIRST, end=True, at=3.0)
    assert progress.complete
    assert (progress.first_at, progress.finished_at) == (2.0, 3.0)


def test_companions_are_one_per_part_however_many_samples():
    talk = Talk(companions=("text",), samples=2)
    assert talk.says(0, "a", end=True) == ["Deliver"]
    assert talk.says(FIRST, "c", end=True) == []
    assert talk.says(1, "b", end=True) == ["Deliver", "Forward"]


def test_a_splitter_hears_the_end_of_the_text_when_the_main_work_ends():
    graph = Graph([
        Node(name="thinker"),
        Node(name="speaker", output="audio", edges=(Edge(source="thinker", mode="segments", split=by_dot),)),
        Node(name="painter", output="image", edges=(Edge(source="thinker"),)),
    ])  # fmt: skip
    table = RequestTable(Admission(10, 100), clock=lambda: 0.0, on_closed=lambda record: None)
    record = table.admit(RequestView("me", "hi", (), {}), graph.plan(None), slots=1, nbytes=1)
    table.begin(record)
    advance(record)
    opened(record, "thinker", 0, 1, ("text",))
    produced(record, "thinker", 0, FIRST, TextChunk(text="not a segment."), False, 0.0)
    first = produced(record, "thinker", 0, 0, TextChunk(text="one. two"), True, 0.0)
    assert [(d.stage, d.upstream["thinker"].text) for d in first] == [("speaker", "one"), ("speaker", " two")]
    (last,) = produced(record, "thinker", 0, FIRST, None, True, 0.0)
    assert last.stage == "painter"


def test_each_part_has_its_own_and_a_whole_edge_joins_them():
    graph = Graph([
        Node(name="thinker"),
        Node(name="talker", edges=(Edge(source="thinker", mode="segments", split=by_dot),)),
        Node(name="vocoder", edges=(Edge(source="talker"),)),
        Node(name="mixer", output="audio", edges=(Edge(source="talker"), Edge(source="vocoder"))),
    ])  # fmt: skip
    table = RequestTable(Admission(10, 100), clock=lambda: 0.0, on_closed=lambda record: None)
    record = table.admit(RequestView("me", "hi", (), {}), graph.plan(None), slots=1, nbytes=1)
    table.begin(record)
    advance(record)
    opened(record, "thinker", 0, 1)
    produced(record, "thinker", 0, 0, TextChunk(text="one.two"), True, 0.0)
    made = []
    for part in (1, 0):
        opened(record, "talker", part, 1, ("cfg",))
        assert produced(record, "talker", part, 0, TextChunk(text="x"), True, 0.0) == []
        made += produced(record, "talker", part, FIRST, TextChunk(text=f"c{part}"), True, 0.0)
    assert [d.upstream["talker"].companions["cfg"].text for d in made] == ["c0", "c1"]
    for part in (0, 1):
        opened(record, "vocoder", part, 1)
        made = produced(record, "vocoder", part, 0, TextChunk(text="~"), True, 0.0)
    assert made[0].upstream["talker"].companions["cfg"].text == "c0c1"
    assert dict(made[0].upstream["vocoder"].companions) == {}


def test_their_leases_are_the_record_s_and_end_with_it():
    talk = Talk()
    leases = [talk.table.open_lease(talk.record, "thinker", 0, index, 0, 1) for index in (0, FIRST, SECOND)]
    key = talk.record.key
    assert [lease.key for lease in leases] == [f"{key}-0", f"{key}-0-c0", f"{key}-0-c1"]
    assert talk.table.lease_key(talk.record, "thinker", 3, SECOND) == f"{key}-0-p3-c1"
    assert [lease.companion for lease in leases] == [None, "text", "image"]
    assert talk.table.settle(talk.record, Kind.ABORTED).to_abort == tuple(leases)
    assert {lease.state for lease in leases} == {LeaseState.ABORTING}


def test_input_in_pieces_goes_to_the_main_work():
    talk = Talk(companions=("text",))
    main, _ = (talk.table.open_lease(talk.record, "thinker", 0, index, 0, 1) for index in (0, FIRST))
    assert talk.table.extend(talk.record, "thinker", 1) is main


def test_only_a_plan_with_somebody_to_see_them_hands_them_over():
    graph = Talk().graph
    assert graph.plan(["image"]).hands_over("thinker")
    assert not graph.plan(["text"]).hands_over("thinker")


@pytest.mark.parametrize("kind", [EngineRejected, InvalidRequest])
def test_a_companion_s_failure_names_it_and_keeps_its_kind_and_cause(kind):
    error = kind("too long", replica=2)
    made = blamed(error, "thinker", "cfg_text")
    assert type(made) is kind
    assert str(made) == made.message == "companion 'cfg_text' of stage thinker: too long"
    assert (made.__cause__, made.stage, made.replica) == (error, "thinker", 2)
    assert str(error) == "too long"
    assert blamed(error, "thinker", None) is error


def test_a_companion_s_death_tells_how_it_died():
    dead = EngineDead("killed", signal="SIGKILL", pid=7)
    made = blamed(StageFailed("killed", dead=dead, stage="thinker", replica=1, generation=4), "thinker", "cfg")
    assert (made.signal, made.pid, made.replica, made.generation) == ("SIGKILL", 7, 1, 4)
