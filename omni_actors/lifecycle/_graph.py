"""The stage graph: a DAG of stages, and the plan of one request in it.

A *plan* is the sub-graph that the requested modalities need. Stages outside it never see the request (I9).

Where an edge has mode ``segments`` its consumer works in *parts*, one per segment; parts are inherited by the
consumers downstream that have this one producer. A fan-in (two producers or more) waits for everything and works on
the whole, in one part.

Where an edge has mode ``chunks`` the engines hand their results to each other in pieces; its consumer is opened as soon
as the first stage of such a chain, its *head*, has made its first output.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal

import attrs

from omni_actors._errors import ConfigError, InvalidRequest

__all__ = ["Edge", "Graph", "Node", "Plan", "Split"]

Split = Callable[[str, bool], tuple[list[str], str]]
"""``(text, finished) -> (complete segments, rest)``: pure; called with the rest and the new text as it comes."""


@attrs.frozen(kw_only=True)
class Edge:
    """From ``source`` to the node that holds it. ``split`` is set exactly for mode ``segments``."""

    source: str
    mode: Literal["whole", "segments", "chunks"] = "whole"
    split: Split | None = None
    split_name: str = ""
    parts_in_flight: int = 4


@attrs.frozen(kw_only=True)
class Node:
    """One stage, as routing sees it. ``output`` is the modality a user can ask for, None for an inner stage."""

    name: str
    output: str | None = None
    edges: tuple[Edge, ...] = ()

    @property
    def chained(self) -> bool:
        """Whether its input comes in chunks."""
        return any(edge.mode == "chunks" for edge in self.edges)


@attrs.frozen(kw_only=True)
class Plan:
    """One request's sub-graph, in topological order. Shared by all requests that ask for the same modalities.

    ``roots``: the stages that get the prompt. ``direct``: those that the user alone listens to; every output of theirs
    goes straight on. ``heads``: those whose first output opens a chain of chunks.
    """

    order: tuple[Node, ...]
    roots: tuple[str, ...]
    finals: frozenset[str]
    consumers: Mapping[str, tuple[tuple[Node, Edge], ...]]
    partitioned: frozenset[str]
    direct: frozenset[str]
    heads: frozenset[str]
    index: Mapping[str, int]

    @property
    def last(self) -> str:
        """The final stage that comes last in the order: where the request is heading."""
        return next(node.name for node in reversed(self.order) if node.name in self.finals)

    def streams(self, stage: str) -> bool:
        """Whether somebody wants this stage's partial outputs: the user, a splitter, or a chain for its start."""
        if stage in self.finals or stage in self.heads:
            return True
        return any(edge.mode == "segments" for _, edge in self.consumers[stage])

    def hands_over(self, stage: str) -> bool:
        """Whether a consumer gets this stage's results, all of them, and its companions' with them."""
        return any(edge.mode == "whole" for _, edge in self.consumers[stage])


class Graph:
    """All stages of a pipeline. Raises ConfigError for one that cannot work (unknown names, cycles, useless edges).

    ``chained``: whether some of its stages hand their results to each other in chunks.
    """

    def __init__(self, nodes: Iterable[Node]) -> None:
        self.nodes = _by_name(nodes)
        self.order = _topological(self.nodes)
        self.modalities = tuple(dict.fromkeys(node.output for node in self.order if node.output))
        self.chained = any(node.chained for node in self.order)
        self._partitioned = _partitioned(self.order)
        self._plans: dict[frozenset[str], Plan] = {}
        if not self.modalities:
            raise ConfigError("no stage has an output: nothing could ever be asked of this pipeline")

    def plan(self, modalities: Sequence[str] | None) -> Plan:
        """The sub-graph that makes these modalities; None means all. Raises InvalidRequest for one nobody makes."""
        if isinstance(modalities, str):
            modalities = (modalities,)
        wanted = frozenset(self.modalities if modalities is None else modalities)
        plan = self._plans.get(wanted)
        if plan is None:
            self._check(wanted)
            plan = self._plans[wanted] = self._prune(wanted)
        return plan

    def _check(self, wanted: frozenset[str]) -> None:
        supported = ", ".join(self.modalities)
        if not wanted:
            raise InvalidRequest(f"no modality was asked for; this pipeline makes: {supported}")
        if unknown := sorted(str(m) for m in wanted - set(self.modalities)):
            raise InvalidRequest(f"modality {', '.join(unknown)} is not made by this pipeline; it makes: {supported}")

    def _prune(self, wanted: frozenset[str]) -> Plan:
        finals = frozenset(node.name for node in self.order if node.output in wanted)
        needed = set(finals)
        for node in reversed(self.order):
            if node.name in needed:
                needed.update(edge.source for edge in node.edges)
        order = tuple(node for node in self.order if node.name in needed)
        consumers: dict[str, list[tuple[Node, Edge]]] = {node.name: [] for node in order}
        for node in order:
            for edge in node.edges:
                consumers[edge.source].append((node, edge))
        return Plan(
            order=order,
            roots=tuple(node.name for node in order if not node.edges),
            finals=finals,
            consumers={name: tuple(found) for name, found in consumers.items()},
            partitioned=self._partitioned & needed,
            direct=frozenset(name for name in finals if not consumers[name]),
            heads=frozenset(
                node.name
                for node in order
                if not node.chained and any(each.chained for each, _ in consumers[node.name])
            ),
            index={node.name: number for number, node in enumerate(self.order)},
        )


def _by_name(nodes: Iterable[Node]) -> Mapping[str, Node]:
    found: dict[str, Node] = {}
    for node in nodes:
        if node.name in found:
            raise ConfigError(f"two stages are called {node.name!r}", stage=node.name)
        found[node.name] = node
        for edge in node.edges:
            _check_edge(node, edge)
    return found


def _check_edge(node: Node, edge: Edge) -> None:
    if sum(other.source == edge.source for other in node.edges) > 1:
        raise ConfigError(f"{edge.source!r} is an input twice", stage=node.name)
    if (edge.mode == "segments") != (edge.split is not None):
        raise ConfigError(f"input {edge.source!r}: a split belongs to mode 'segments', and only there", stage=node.name)
    if edge.mode != "whole" and len(node.edges) > 1:
        problem = (
            f"input {edge.source!r} comes in {edge.mode}, but a stage with several inputs works on the whole of them"
        )
        raise ConfigError(problem, stage=node.name)
    if edge.parts_in_flight < 1:
        raise ConfigError(f"input {edge.source!r}: parts_in_flight must be at least 1", stage=node.name)


def _partitioned(order: Sequence[Node]) -> frozenset[str]:
    found: set[str] = set()
    for node in order:
        if len(node.edges) != 1:
            continue
        (edge,) = node.edges
        if edge.mode != "whole" and edge.source in found:
            verb = "cut again" if edge.mode == "segments" else "handed over in chunks"
            raise ConfigError(
                f"its producer {edge.source!r} already works in segments: they cannot be {verb}", stage=node.name
            )
        if edge.mode == "segments" or edge.source in found:
            found.add(node.name)
    return frozenset(found)


def _topological(nodes: Mapping[str, Node]) -> tuple[Node, ...]:
    done: dict[str, Node] = {}
    path: list[str] = []

    def visit(node: Node) -> None:
        if node.name in done:
            return
        if node.name in path:
            cycle = [*path[path.index(node.name) :], node.name]
            raise ConfigError(f"the stages form a cycle: {' -> '.join(reversed(cycle))}", stage=node.name)
        path.append(node.name)
        for edge in node.edges:
            if edge.source not in nodes:
                raise ConfigError(f"input {edge.source!r} is not a stage", stage=node.name)
            visit(nodes[edge.source])
        path.pop()
        done[node.name] = node

    for node in nodes.values():
        visit(node)
    return tuple(done.values())
