"""Chains of chunks: engines hand over to each other, so every stage of a chain is open as soon as its head speaks."""

from __future__ import annotations

from omni_actors.lifecycle import Edge, Node, produced
from omni_actors.lifecycle.events import TextChunk

from .test_routing import Conversation, node


def chunks(source):
    return Edge(source=source, mode="chunks")


CHAIN = (node("t", output="text"), node("k", chunks("t")), node("v", chunks("k"), output="audio"))


def test_the_whole_chain_opens_with_the_first_output_of_its_head_and_only_then():
    talk = Conversation(*CHAIN)
    assert talk.first == ["forward t 0 {}"]
    assert talk.says("t", "a") == [
        "deliver t 0:0 a",
        "forward k 0 {'t': 'a'}",
        "forward v 0 {'t': 'a', 'k': {}}",
    ]
    assert talk.says("t", "b") == ["deliver t 0:0 b"]


def test_a_head_that_says_one_thing_only_opens_the_chain_with_it():
    talk = Conversation(*CHAIN)
    assert talk.says("t", "a", end=True) == [
        "deliver t 0:0 a",
        "forward k 0 {'t': 'a'}",
        "forward v 0 {'t': 'a', 'k': {}}",
    ]
    talk = Conversation(*CHAIN)
    assert talk.says("t", end=True) == ["forward k 0 {'t': {}}", "forward v 0 {'t': {}, 'k': {}}"]


def test_it_finishes_when_all_of_the_chain_have_in_whatever_order():
    talk = Conversation(*CHAIN, modalities=["audio"])
    assert talk.says("t", "a") == ["forward k 0 {'t': 'a'}", "forward v 0 {'t': 'a', 'k': {}}"]
    assert talk.says("v", "x", end=True) == ["deliver v 0:0 x"]
    assert talk.says("t", "b", end=True) == []
    assert talk.says("k", end=True) == ["finish"]


def test_a_modality_that_needs_no_chain_opens_none():
    talk = Conversation(*CHAIN, modalities=["text"])
    assert talk.says("t", "a") == ["deliver t 0:0 a"]
    assert talk.says("t", end=True) == ["finish"]


def test_the_engine_s_own_last_object_is_handed_over():
    talk = Conversation(*CHAIN)
    first, later = object(), object()
    progress = talk.record.stages["t"]
    produced(talk.record, "t", 0, 0, TextChunk(text="a", native=first), False, 0.0)
    produced(talk.record, "t", 0, 0, TextChunk(text="b"), False, 0.0)
    assert progress.results()[0].native is first
    produced(talk.record, "t", 0, 0, TextChunk(text="c", native=later), True, 0.0)
    assert progress.results()[0].native is later


def test_a_whole_edge_behind_a_chain_waits_for_its_end():
    talk = Conversation(node("t"), node("k", chunks("t")), Node(name="p", output="image", edges=(Edge(source="k"),)))
    talk.says("t", "a")
    assert talk.says("t", "b", end=True) == []
    assert talk.says("k", "x", end=True) == ["forward p 0 {'k': 'x'}"]
