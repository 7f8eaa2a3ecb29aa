"""The least runtime there can be, for the property tests: it does what was decided and believes nothing.

Its engines remember for themselves what they hold and what they said, its users what they got; the table must agree
with them after each step. ``World.check`` proves I1, I2, I5, I6, I8, I9, I11 and I13 of a run, ``check_empty`` I12.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict

from hypothesis import strategies as st

from omni_actors.lifecycle import (
    Admission,
    Deliver,
    Edge,
    Fail,
    Finish,
    Forward,
    Graph,
    Kind,
    LeaseEvent,
    LeaseState,
    Node,
    RequestState,
    RequestTable,
    RequestView,
    advance,
    opened,
    produced,
    rejected,
    unconfirmed,
)
from omni_actors.lifecycle.events import LeaseFailed, Produced, Released, TextChunk

SLOTS, BYTES = 6, 60


def keep_dots(text, finished):
    """A splitter that loses nothing, so that the segments must add up to the text."""
    *whole, rest = re.split(r"(?<=\.)", text)
    return ([*whole, rest], "") if finished and rest else (whole, rest)


@st.composite
def graphs(draw):
    nodes, in_parts = [], set()
    for number in range(draw(st.integers(1, 4))):
        name, sources = f"s{number}", []
        if nodes:
            sources = sorted(draw(st.sets(st.sampled_from([n.name for n in nodes]), max_size=2)))
        edges = [Edge(source=source) for source in sources]
        if len(sources) == 1:
            window = draw(st.integers(1, 3))
            if sources[0] in in_parts:
                edges = [Edge(source=sources[0], parts_in_flight=window)]
                in_parts.add(name)
            elif draw(st.booleans()):
                edges = [Edge(source=sources[0], mode="segments", split=keep_dots, parts_in_flight=window)]
                in_parts.add(name)
            elif draw(st.booleans()):
                edges = [Edge(source=sources[0], mode="chunks")]
        output = draw(st.sampled_from([None, "text", "audio", "image"]))
        nodes.append(Node(name=name, output=output, edges=tuple(edges)))
    nodes.append(Node(name="end", output="video", edges=(Edge(source=nodes[-1].name),)))
    return Graph(nodes)


class World:
    """A table, engines that remember, and users who remember."""

    def __init__(self, graph):
        self.graph = graph
        self.table = RequestTable(Admission(SLOTS, BYTES), clock=lambda: 0.0, on_closed=self._on_closed)
        self.records, self.closed = [], Counter()
        self.waiting = []  # forwards that were decided and are not placed yet
        self.generation = Counter()
        self.held = defaultdict(set)  # (stage, replica, generation) -> the keys that its engine holds
        self.leases, self.over = {}, set()  # every lease that ever was; those whose engine has said its last word
        self.said = defaultdict(list)  # lease key -> what counted
        self.got, self.ends = defaultdict(list), {}

    def _on_closed(self, record):
        self.closed[record.key] += 1

    # the user's side

    def submit(self, request_id, modalities, slots=1, nbytes=1):
        plan = self.graph.plan(modalities)
        record = self.table.admit(RequestView(request_id, "", (), {}), plan, slots=slots, nbytes=nbytes)
        self.records.append(record)
        return record

    def begin(self, record):
        self.table.begin(record)
        if not record.settled:
            self.carry_out(record, advance(record))

    def settle(self, record, kind):
        before = record.terminal
        settled = self.table.settle(record, kind)
        if before is None and settled is not None:
            self.ends[record.key] = (settled.terminal, len(self.got[record.key]))
            assert not any(result.companions for made in settled.terminal.results.values() for result in made)
            assert settled.terminal is record.terminal
            assert settled.terminal.kind is kind
            assert all(lease.state is LeaseState.ABORTING for lease in settled.to_abort)
        else:
            assert settled is None
            assert record.terminal is before

    # the runtime's side

    def carry_out(self, record, decisions):
        for decision in decisions:
            if record.settled:
                return
            if isinstance(decision, Deliver):
                self.got[record.key].append(decision.output)
            elif isinstance(decision, Forward):
                self.check_inputs(record, decision)
                self.waiting.append((record, decision))
            elif isinstance(decision, Finish):
                self.settle(record, Kind.FINISHED)
            else:
                assert isinstance(decision, Fail)
                self.settle(record, Kind.FAILED)

    def place(self, number, samples, replica, companions=()):
        record, forward = self.waiting.pop(number)
        if record.settled:
            return
        generation = self.generation[forward.stage, replica]
        if not record.plan.hands_over(forward.stage):
            companions = ()  # as in the runtime: nobody would see them
        opened(record, forward.stage, forward.part, samples, companions)
        for index in (*range(samples), *(~number for number in range(len(companions)))):
            lease = self.table.open_lease(record, forward.stage, forward.part, index, replica, generation)
            assert re.fullmatch(r"[a-z0-9-]{1,32}", lease.key)
            assert lease.key not in self.leases
            assert lease.companion == (None if index >= 0 else companions[~index])
            self.leases[lease.key] = lease
            self.held[forward.stage, replica, generation].add(lease.key)

    # the engines' side

    def hear(self, event, stage, replica, generation):
        """What the router does with one event."""
        lease = self.table.lease_of(event.key, stage, replica, generation)
        if lease is None:
            return
        record, live = lease.record, lease.state is LeaseState.LIVE
        if isinstance(event, Produced):
            self._hear_produced(lease, event)
            return
        self.table.step(lease, LeaseEvent.RELEASE if isinstance(event, Released) else LeaseEvent.FAIL)
        if live:
            self.carry_out(record, [Fail(lease.stage, rejected(lease.stage, "so"))])

    def _hear_produced(self, lease, event):
        if lease.state is LeaseState.FINISHED:
            self.table.late += 1
            return
        decisions = []
        if lease.state is LeaseState.LIVE:
            if event.payload is not None:
                self.said[lease.key].append(event.payload.text)
            decisions = produced(lease.record, lease.stage, lease.part, lease.index, event.payload, event.finished, 0.0)
        if event.finished:
            self.table.step(lease, LeaseEvent.FINISH)
            if event.released:
                self.table.step(lease, LeaseEvent.RELEASE)
        self.carry_out(lease.record, decisions)

    def tell(self, lease, event):
        """The lease's own engine says something; it forgets the lease when it says so."""
        place = (lease.stage, lease.replica, lease.generation)
        if isinstance(event, Released | LeaseFailed) or event.released:
            self.held[place].discard(lease.key)
        if not isinstance(event, Produced) or event.finished:
            self.over.add(lease.key)
        self.hear(event, *place)

    def say(self, lease, text, *, end=False, release=False):
        payload = None if text is None else TextChunk(text=f"{lease.key}#{len(self.said[lease.key])} {text}")
        self.tell(lease, Produced(lease.key, payload, end, end and release))

    def die(self, stage, replica):
        generation = self.generation[stage, replica]
        self.generation[stage, replica] += 1
        bound = self.table.bound_to(stage, replica, generation)
        assert {lease.key for lease in bound} == self.held.pop((stage, replica, generation), set())
        hit = {lease.record.key: lease.record for lease in bound if lease.state is LeaseState.LIVE}
        for lease in bound:
            self.over.add(lease.key)
            self.table.step(lease, LeaseEvent.DIE)
        for record in hit.values():
            self.settle(record, Kind.FAILED)

    # what must be true

    def heard(self, record, stage, parts):
        """Everything that choice 0 of these parts of a stage said."""
        keys = [self.table.lease_key(record, stage, part, 0) for part in parts]
        return "".join(text for key in keys for text in self.said[key])

    def check_inputs(self, record, forward):
        """I9: an input is what its producers made, all of it, and made before."""
        edges = record.stages[forward.stage].node.edges
        if record.stages[forward.stage].node.chained:
            self.check_chain(record, forward)
            return
        assert set(forward.upstream) == {edge.source for edge in edges}
        for edge in edges:
            source, given_text = record.stages[edge.source], forward.upstream[edge.source].text
            if edge.mode == "segments":
                assert given_text in self.heard(record, edge.source, [0])
            elif forward.stage in record.plan.partitioned:
                assert source.parts[forward.part].done
                assert given_text == self.heard(record, edge.source, [forward.part])
            else:
                assert source.complete
                assert given_text == self.heard(record, edge.source, range(source.opened))
            if edge.mode != "segments":
                parts = [forward.part] if forward.stage in record.plan.partitioned else range(source.opened)
                self.check_companions(record, edge.source, parts, forward.upstream[edge.source].companions)

    def check_chain(self, record, forward):
        """It has begun, and what is handed over is what the stages before have said so far, in their order."""
        *inner, head = reversed(forward.upstream)
        assert [record.stages[name].node.edges[0].source for name in inner] == [*inner[1:], head][: len(inner)]
        assert record.stages[forward.stage].node.edges[0].source == next(reversed(forward.upstream))
        assert not record.stages[head].node.chained
        assert all(record.stages[name].node.chained for name in inner)
        assert all(record.stages[name].opened == 1 for name in inner)
        assert record.stages[head].parts[0].answered or record.stages[head].parts[0].spoken
        for name, result in forward.upstream.items():
            assert result.text == self.heard(record, name, range(record.stages[name].opened))

    def check_companions(self, record, stage, parts, given):
        """A consumer gets every companion of its producer, with all that each of them said, when all have finished."""
        beside = [lease for lease in self.leases.values() if lease.record is record and lease.stage == stage]
        beside = [lease for lease in beside if lease.index < 0 and lease.part in parts]
        assert {lease.key for lease in beside} <= self.over
        said = defaultdict(str)
        for lease in sorted(beside, key=lambda lease: lease.part):
            said[record.stages[stage].parts[lease.part].companions[~lease.index].name] += "".join(self.said[lease.key])
        assert {name: result.text for name, result in given.items()} == said

    def check(self):
        self.table.check()
        assert self.table.admission.slots <= SLOTS
        assert self.table.admission.bytes <= BYTES
        assert set(self.table.leases) == {key for keys in self.held.values() for key in keys}
        assert self.closed == Counter(r.key for r in self.records if r.state is RequestState.CLOSED)
        for record in self.records:
            terminal, count = self.ends.get(record.key, (None, len(self.got[record.key])))
            assert record.terminal is terminal, "the first settle won, and it stays"
            assert len(self.got[record.key]) == count, "nothing follows the end"
            self.check_outputs(record)
            self.check_windows(record)

    def check_outputs(self, record):
        """I6 and I8: per (stage, choice, part) a gapless prefix of what was said; finished means all of it."""
        got = defaultdict(list)
        for output in self.got[record.key]:
            assert output.request_id == record.request_id
            assert output.stage in record.plan.finals
            assert output.index >= 0, "a companion's output is for no user"
            got[self.table.lease_key(record, output.stage, output.part, output.index)].append(output.text)
        for key, texts in got.items():
            assert texts == self.said[key][: len(texts)]
        for stage in record.plan.finals:
            parts = [output.part for output in self.got[record.key] if output.stage == stage]
            assert parts == sorted(parts)
        if record.terminal is not None and record.terminal.kind is Kind.FINISHED:
            for lease in self.leases.values():
                if lease.record is record and lease.stage in record.plan.finals and lease.index >= 0:
                    assert got[lease.key] == self.said[lease.key]

    def check_windows(self, record):
        for stage in record.plan.partitioned:
            progress = record.stages[stage]
            assert progress.opened - progress.done <= progress.node.edges[0].parts_in_flight

    def check_empty(self):
        """I12."""
        table = self.table
        assert not any((table.records, table.leases, table.load, table.unsettled, table._by_id))
        assert (table.admission.slots, table.admission.bytes) == (0, 0)
        assert set(self.closed.values()) <= {1}
        assert unconfirmed(self.records) == ()
        for record in self.records:
            assert (record.terminal is not None) == (record.key in self.ends)
