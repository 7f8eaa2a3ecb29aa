"""The stage graph at its edges: who is named in a refusal, what is the default, and what is made only once."""

from __future__ import annotations

import attrs
import pytest

from omni_actors._errors import ConfigError, InvalidRequest
from omni_actors.lifecycle import Edge, Graph, Node, Plan


def whole(text, finished):
    return [text], ""


def node(name, *sources, output=None):
    return Node(name=name, output=output, edges=tuple(s if isinstance(s, Edge) else Edge(source=s) for s in sources))


def segments(source, **more):
    return Edge(source=source, mode="segments", split=whole, **more)


@pytest.mark.parametrize(
    ("nodes", "stage"),
    [
        ([node("a", "b"), node("b", "a", output="text")], "a"),
        ([node("a", "gone", output="text")], "a"),
        ([node("a", output="text"), node("a", output="audio")], "a"),
        ([node("a"), node("b", "a", "a", output="text")], "b"),
        ([node("a"), node("b", segments("a")), node("c", segments("b"), output="audio")], "c"),
        ([node("a"), node("b"), node("c", segments("a"), "b", output="text")], "c"),
        ([node("a"), node("b", Edge(source="a", mode="segments"), output="text")], "b"),
        ([node("a"), node("b", segments("a", parts_in_flight=0), output="text")], "b"),
    ],
)
def test_a_refused_graph_names_the_stage_to_mend(nodes, stage):
    with pytest.raises(ConfigError) as caught:
        Graph(nodes)
    assert caught.value.stage == stage


def test_one_part_in_flight_is_enough():
    graph = Graph([node("a"), node("b", segments("a", parts_in_flight=1), output="text")])
    assert graph.nodes["b"].edges[0].parts_in_flight == 1


def test_a_cycle_behind_a_clean_start_is_told_from_where_it_closes():
    nodes = [node("in"), node("x", "in", "z", output="text"), node("y", "x"), node("z", "y")]
    with pytest.raises(ConfigError, match="the stages form a cycle: x -> y -> z -> x"):
        Graph(nodes)


def test_what_hangs_at_a_cycle_is_not_told_as_a_part_of_it():
    nodes = [node("x", "side", "z", output="text"), node("side"), node("y", "x"), node("z", "y")]
    with pytest.raises(ConfigError, match="the stages form a cycle: x -> y -> z -> x"):
        Graph(nodes)


def test_two_ways_to_one_stage_are_no_cycle():
    graph = Graph([node("d", "b", "c", output="text"), node("c", "a"), node("b", "a"), node("a")])
    assert [n.name for n in graph.order] == ["a", "b", "c", "d"]


def test_modalities_are_named_once_in_the_order_of_the_stages():
    graph = Graph(
        [node("a", output="text"), node("b", "a", output="audio"), node("c", "b", output="text"), node("d", "c")]
    )
    assert graph.modalities == ("text", "audio")
    with pytest.raises(
        InvalidRequest, match=r"modality smell, taste is not made by this pipeline; it makes: text, audio$"
    ):
        graph.plan(["taste", "text", "smell"])
    with pytest.raises(InvalidRequest, match=r"this pipeline makes: text, audio$"):
        graph.plan(())


def test_what_was_refused_once_is_refused_again():
    graph = Graph([node("a", output="text")])
    for _ in range(2):
        with pytest.raises(InvalidRequest):
            graph.plan(["video"])


def test_who_the_user_alone_listens_to_is_direct():
    graph = Graph([node("a", output="text"), node("b", "a", output="audio")])
    assert graph.plan(None).direct == {"b"}
    assert graph.plan("text").direct == {"a"}


def test_a_stage_has_one_number_in_every_plan_of_its_graph():
    graph = Graph([node("a", output="text"), node("b", "a", output="audio")])
    assert dict(graph.plan("text").index) == dict(graph.plan(None).index) == {"a": 0, "b": 1}


def test_the_last_stage_is_the_last_one_asked_for_not_the_last_one_there():
    graph = Graph([node("a", output="text"), node("b", "a", output="audio"), node("c", "b", output="text")])
    assert (graph.plan("audio").last, graph.plan("text").last) == ("b", "c")


def test_a_final_stage_streams_also_where_a_whole_edge_leaves_it():
    graph = Graph([node("a", output="text"), node("b", "a", output="audio")])
    assert graph.plan(None).streams("a")
    assert not graph.plan("audio").streams("a")


def test_the_words_of_a_graph_are_named_and_frozen():
    edge = Edge(source="a")
    assert attrs.astuple(edge) == ("a", "whole", None, "", 4)
    assert attrs.astuple(Node(name="a")) == ("a", None, ())
    plan = Graph([node("a", output="text")]).plan(None)
    for value, field in ((edge, "source"), (Node(name="a"), "name"), (plan, "order")):
        with pytest.raises(attrs.exceptions.FrozenInstanceError):
            setattr(value, field, "b")
    for kind, fields in ((Edge, 1), (Node, 1), (Plan, 6)):
        with pytest.raises(TypeError, match="positional"):
            kind(*["a"] * fields)
