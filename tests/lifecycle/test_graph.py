"""The stage graph: what one request's plan holds, and which graphs are refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omni_actors._errors import ConfigError, InvalidRequest
from omni_actors.lifecycle import Edge, Graph, Node


def by_dot(text, finished):
    *whole, rest = text.split(".")
    return [*whole, rest] if finished and rest else whole, "" if finished else rest


def node(name, *sources, output=None):
    return Node(name=name, output=output, edges=tuple(s if isinstance(s, Edge) else Edge(source=s) for s in sources))


def chunks(source):
    return Edge(source=source, mode="chunks")


def segments(source, **more):
    return Edge(source=source, mode="segments", split=by_dot, split_name="tests:by_dot", **more)


OMNI = (
    node("vocoder", "talker", output="audio"),
    node("talker", segments("thinker")),
    node("thinker", output="text"),
    node("painter", "thinker", output="image"),
    node("judge", "thinker", "vocoder", "painter", output="embedding"),
)


def names(plan):
    return [node.name for node in plan.order]


@pytest.mark.parametrize(
    ("modalities", "stages", "finals", "last"),
    [
        (["text"], {"thinker"}, {"thinker"}, "thinker"),
        (["audio"], {"thinker", "talker", "vocoder"}, {"vocoder"}, "vocoder"),
        (["image"], {"thinker", "painter"}, {"painter"}, "painter"),
        (["text", "image"], {"thinker", "painter"}, {"thinker", "painter"}, "painter"),
        (["embedding"], {"thinker", "talker", "vocoder", "painter", "judge"}, {"judge"}, "judge"),
        ("audio", {"thinker", "talker", "vocoder"}, {"vocoder"}, "vocoder"),
    ],
)
def test_a_plan_holds_what_the_modalities_need_and_nothing_else(modalities, stages, finals, last):
    """I9."""
    plan = Graph(OMNI).plan(modalities)
    assert set(names(plan)) == stages
    assert plan.finals == finals
    assert plan.last == last
    assert set(plan.consumers) == stages
    assert all(consumer.name in stages for found in plan.consumers.values() for consumer, _ in found)


def test_none_asks_for_everything_and_the_order_of_asking_does_not_matter():
    graph = Graph(OMNI)
    assert set(names(graph.plan(None))) == set(graph.nodes)
    assert graph.plan(None) is graph.plan(["embedding", "image", "audio", "text"])
    assert graph.plan(["text", "audio"]) is graph.plan(("audio", "text"))


def test_producers_stand_before_their_consumers():
    order = names(Graph(OMNI).plan(None))
    assert order[0] == "thinker"
    assert order[-1] == "judge"
    assert order.index("talker") < order.index("vocoder")


def test_fan_out_lists_every_consumer_with_its_edge():
    plan = Graph(OMNI).plan(["audio", "image"])
    assert {(n.name, edge.mode) for n, edge in plan.consumers["thinker"]} == {
        ("talker", "segments"),
        ("painter", "whole"),
    }
    assert plan.consumers["vocoder"] == ()


def test_a_chain_of_chunks_has_a_head_whose_first_output_is_wanted():
    graph = Graph(
        [node("a"), node("b", chunks("a")), node("c", chunks("b"), output="audio"), node("d", "a", output="x")]
    )
    plan = graph.plan(None)
    assert plan.heads == {"a"}
    assert [plan.streams(name) for name in "abc"] == [True, False, True]
    assert [plan.hands_over(name) for name in "abc"] == [True, False, False]
    assert graph.plan(["x"]).heads == set()
    assert not graph.plan(["x"]).streams("a")
    assert plan.partitioned == set()


def test_parts_are_inherited_until_a_fan_in_joins_them():
    graph = Graph(OMNI)
    assert graph.plan(None).partitioned == {"talker", "vocoder"}
    assert graph.plan(["audio"]).partitioned == {"talker", "vocoder"}
    assert graph.plan(["image"]).partitioned == frozenset()


def test_a_stage_streams_for_the_user_or_for_a_splitter():
    graph = Graph(OMNI)
    assert graph.plan(["audio"]).streams("thinker")
    assert not graph.plan(["audio"]).streams("talker")
    assert not graph.plan(["image"]).streams("thinker")
    assert graph.plan(["image", "text"]).streams("thinker")


def test_an_unsupported_modality_is_told_what_there_is():
    """C22."""
    graph = Graph(OMNI)
    with pytest.raises(InvalidRequest, match="modality video is not made by this pipeline") as caught:
        graph.plan(["text", "video"])
    assert set(graph.modalities) == {"text", "audio", "image", "embedding"}
    assert all(word in str(caught.value) for word in (*graph.modalities, "video"))
    with pytest.raises(InvalidRequest, match="no modality was asked for"):
        graph.plan([])


def test_one_modality_may_come_from_two_stages():
    plan = Graph([node("a", output="text"), node("b", "a", output="text")]).plan("text")
    assert plan.finals == {"a", "b"}


@pytest.mark.parametrize(
    ("nodes", "words"),
    [
        ([node("a", "a", output="text")], "cycle: a -> a"),
        ([node("a", "c"), node("b", "a"), node("c", "b", output="text")], "cycle: a -> b -> c -> a"),
        ([node("a", "gone", output="text")], "'gone' is not a stage"),
        ([node("a", output="text"), node("a", output="audio")], "two stages are called 'a'"),
        ([node("a"), node("b", "a")], "no stage has an output"),
        ([], "no stage has an output"),
        ([node("a"), node("b", "a", "a", output="text")], "'a' is an input twice"),
        ([node("a"), node("b", segments("a")), node("c", segments("b"), output="audio")], "cannot be cut again"),
        ([node("a"), node("b", segments("a")), node("c", "b"), node("d", segments("c"), output="text")], "cut again"),
        ([node("a"), node("b"), node("c", segments("a"), "b", output="text")], "several inputs"),
        ([node("a"), node("b", Edge(source="a", mode="segments"), output="text")], "a split belongs to"),
        ([node("a"), node("b", Edge(source="a", split=by_dot), output="text")], "a split belongs to"),
        ([node("a"), node("b", segments("a", parts_in_flight=0), output="text")], "at least 1"),
        ([node("a"), node("b", segments("a")), node("c", chunks("b"), output="audio")], "handed over in chunks"),
        ([node("a"), node("b"), node("c", chunks("a"), "b", output="text")], "'a' comes in chunks"),
    ],
)
def test_a_graph_that_cannot_work_is_refused(nodes, words):
    with pytest.raises(ConfigError) as caught:
        Graph(nodes)
    assert words in str(caught.value)


def test_what_no_modality_needs_is_checked_all_the_same():
    with pytest.raises(ConfigError, match="cut again"):
        Graph([node("a", output="text"), node("b", segments("a")), node("dead", segments("b"))])


def test_behind_a_fan_in_a_stream_may_be_cut_again():
    graph = Graph(
        [node("a", output="text"), node("b", segments("a")), node("c", "a", "b"), node("d", segments("c"), output="x")]
    )
    assert graph.plan(None).partitioned == {"b", "d"}


@st.composite
def dags(draw):
    nodes = []
    for number in range(draw(st.integers(1, 7))):
        sources = draw(st.sets(st.sampled_from([n.name for n in nodes]), max_size=3)) if nodes else ()
        nodes.append(node(f"s{number}", *sorted(sources), output=draw(st.sampled_from([None, "text", "audio"]))))
    nodes.append(node("end", nodes[-1].name, output="image"))
    return draw(st.permutations(nodes))


@given(dags(), st.sampled_from([None, ["image"]]))
def test_every_dag_has_plans_in_topological_order(nodes, modalities):
    graph = Graph(nodes)
    plan = graph.plan(modalities)
    seen = set()
    for n in plan.order:
        assert {edge.source for edge in n.edges} <= seen
        seen.add(n.name)
        reaches = n.name in plan.finals or plan.consumers[n.name]
        assert reaches, "a stage in the plan leads to something that was asked for"
    assert plan.finals == {n.name for n in nodes if n.output in (modalities or graph.modalities)}
    assert [graph.order[plan.index[n.name]] for n in plan.order] == list(plan.order)
