"""The short way of a token through routing does exactly what the long way does, or nothing."""

from hypothesis import given
from hypothesis import strategies as st

from omni_actors.lifecycle import (
    Admission,
    Deliver,
    Edge,
    Graph,
    Node,
    RequestTable,
    RequestView,
    advance,
    produced,
    streamed,
)
from omni_actors.lifecycle import opened as leases_opened
from omni_actors.lifecycle.events import TensorChunk, TextChunk


def cut(text, finished):
    *whole, rest = text.split(".")
    return ([*whole, rest], "") if finished else (whole, rest)


GRAPHS = {
    "alone": [Node(name="a", output="text")],
    "heard and read": [Node(name="a", output="text"), Node(name="b", output="audio", edges=(Edge(source="a"),))],
    "cut": [
        Node(name="a", output="text"),
        Node(name="b", output="audio", edges=(Edge(source="a", mode="segments", split=cut),)),
    ],
    "inner": [Node(name="a"), Node(name="b", output="audio", edges=(Edge(source="a"),))],
}


def begun(nodes):
    table = RequestTable(Admission(10, 1000), clock=lambda: 0.0, on_closed=lambda record: None)
    record = table.admit(RequestView("r", "hi", ("text",), {}), Graph(nodes).plan(None), slots=1, nbytes=1)
    table.begin(record)
    for forward in advance(record):
        leases_opened(record, forward.stage, forward.part, 2)
    return record


def state(record):
    return [
        (progress.results(), progress.timing(), [part.answered for part in progress.parts.values()])
        for progress in record.stages.values()
    ]


payloads = st.one_of(
    st.builds(TextChunk, text=st.text("ab.", max_size=4), token_ids=st.lists(st.integers(0, 9), max_size=3)),
    st.builds(TensorChunk, meta=st.dictionaries(st.sampled_from("xy"), st.integers())),
    st.none(),
)


@given(st.sampled_from(sorted(GRAPHS)), st.lists(st.tuples(st.integers(0, 1), payloads), max_size=12))
def test_the_short_way_and_the_long_way_lead_to_the_same(graph, steps):
    short, long = begun(GRAPHS[graph]), begun(GRAPHS[graph])

    for now, (index, payload) in enumerate(steps):
        before = state(short)
        output = streamed(short, "a", 0, index, payload, float(now))
        expected = produced(long, "a", 0, index, payload, False, float(now))
        if output is None:
            assert state(short) == before
            assert produced(short, "a", 0, index, payload, False, float(now)) == expected
        else:
            assert [Deliver(output)] == expected
        assert state(short) == state(long)


def test_the_short_way_is_for_text_that_nobody_but_the_user_reads():
    text = TextChunk(text="five", token_ids=[5])

    records = {name: begun(nodes) for name, nodes in GRAPHS.items()}
    for record in records.values():
        assert streamed(record, "a", 0, 0, text, 0.0) is None, "the first output starts the clocks"
        produced(record, "a", 0, 0, text, False, 0.0)

    taken = {name: streamed(record, "a", 0, 0, text, 1.0) is not None for name, record in records.items()}

    assert taken == {"alone": True, "heard and read": False, "cut": False, "inner": False}
    assert streamed(records["alone"], "a", 0, 0, TensorChunk(), 2.0) is None
    assert streamed(records["alone"], "a", 0, 0, TextChunk(finish_reason="stop"), 2.0) is None
