"""The request table and routing under every schedule that Hypothesis can think of.

Proves I1, I2, I4, I5, I6, I8, I9, I11, I12 and I13 for the sans-I/O core; ``_world`` holds the checks.
"""

from __future__ import annotations

from collections import Counter

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from omni_actors._errors import Overloaded
from omni_actors.lifecycle import Kind, LeaseState, RequestState, rejected, unconfirmed
from omni_actors.lifecycle.events import LeaseFailed, Produced, Released, TextChunk

from ._world import BYTES, SLOTS, World, graphs

REACHED = Counter()
"""What the runs of the machine came to: a plan that was not reached is not proved."""

EXAMPLES = 500
"""With a hundred, three runs of eight missed one of the plans; with these, none of twelve."""

picks = st.integers(0, 2**16)


class Lifecycle(RuleBasedStateMachine):
    """Users, engines and accidents in any order."""

    @initialize(graph=graphs())
    def start(self, graph):
        self.world = World(graph)
        self.withdrawn = set()

    def pick(self, number, things):
        things = list(things)
        return things[number % len(things)]

    def busy(self):
        """Leases whose engine still works on them."""
        return [lease for lease in self.world.table.leases.values() if lease.key not in self.world.over]

    def fresh(self):
        return [r for r in self.world.records if r.state is RequestState.ADMITTED]

    def unbegun(self):
        """Those whose submit has not returned: still admitted, or aborted meanwhile."""
        return [
            r for r in self.world.records if not r.stages[r.plan.order[0].name].opened and r.key not in self.withdrawn
        ]

    @rule(number=picks, request_id=st.sampled_from("ab"), slots=st.integers(1, 4), nbytes=st.integers(0, 30))
    def a_user_submits(self, number, request_id, slots, nbytes):
        world, house = self.world, self.world.table.admission
        modality = self.pick(number, (*world.graph.modalities, None))
        before = (house.slots, house.bytes, len(world.table.records))
        fits = house.slots + slots <= SLOTS and house.bytes + nbytes <= BYTES
        try:
            record = world.submit(request_id, modality, slots, nbytes)
        except Overloaded:
            assert not fits
            assert before == (house.slots, house.bytes, len(world.table.records))
        else:
            assert fits
            assert record in world.table.find(request_id)
            if number % 4:
                world.begin(record)

    @precondition(lambda self: self.unbegun())
    @rule(number=picks)
    def its_input_is_ready(self, number):
        self.world.begin(self.pick(number, self.unbegun()))

    @precondition(lambda self: self.unbegun())
    @rule(number=picks)
    def its_submit_fails(self, number):
        record = self.pick(number, self.unbegun())
        had_ended = record.settled
        self.world.table.withdraw(record)
        self.withdrawn.add(record.key)
        assert record.settled == had_ended
        REACHED["withdrawn"] += 1

    @precondition(lambda self: self.world.waiting)
    @rule(
        number=picks,
        samples=st.sampled_from([1, 1, 1, 2]),
        replica=st.integers(0, 1),
        companions=st.sampled_from([(), (), ("one",), ("one", "two")]),
    )
    def a_forward_is_placed(self, number, samples, replica, companions):
        self.world.place(number % len(self.world.waiting), samples, replica, companions)

    @precondition(lambda self: any(r.state is RequestState.ADMITTED for r in self.world.records))
    @rule(number=picks, slots=st.integers(1, 3), nbytes=st.integers(0, 30))
    def its_companions_want_to_come_in(self, number, slots, nbytes):
        """They take credits of their own, or none."""
        table, record = self.world.table, self.pick(number, self.fresh())
        house, before = table.admission, (table.admission.slots, table.admission.bytes, record.slots, record.nbytes)
        fits = house.slots + slots <= SLOTS and house.bytes + nbytes <= BYTES
        try:
            table.widen(record, slots, nbytes)
        except Overloaded:
            assert not fits
            assert before == (house.slots, house.bytes, record.slots, record.nbytes)
        else:
            assert fits
            assert record.slots == before[2] + slots
            REACHED["widened"] += 1

    @precondition(lambda self: self.busy())
    @rule(number=picks, text=st.sampled_from([None, "", "x", "x.", "x.y.z"]), end=st.booleans(), release=st.booleans())
    def an_engine_says_something(self, number, text, end, release):
        self.world.say(self.pick(number, self.busy()), text, end=end, release=release)

    @precondition(lambda self: self.world.waiting or self.busy())
    @rule(numbers=st.lists(picks, min_size=3, max_size=8))
    def the_pipeline_flows(self, numbers):
        """So that requests also get far when nothing goes wrong."""
        for number in numbers:
            if self.world.waiting:
                self.world.place(number % len(self.world.waiting), 1, number % 2, ("one",) * (number % 5 == 0))
            elif busy := self.busy():
                self.world.say(self.pick(number, busy), "x.y", end=True, release=number % 3 > 0)

    @precondition(lambda self: self.world.table.leases)
    @rule(number=picks, fails=st.booleans())
    def an_engine_gives_a_lease_up(self, number, fails):
        self.ends(self.pick(number, self.world.table.leases.values()), fails)

    @precondition(lambda self: self.owing())
    @rule(number=picks)
    def an_engine_confirms_what_it_owes(self, number):
        self.ends(self.pick(number, self.owing()), fails=False)

    def owing(self):
        """Leases that only wait for their release."""
        return [lease for lease in self.world.table.leases.values() if lease.state is not LeaseState.LIVE]

    def ends(self, lease, fails):
        state = lease.state
        REACHED["a companion failed"] += lease.index < 0 and state is LeaseState.LIVE
        event = LeaseFailed(lease.key, rejected(lease.stage, "no")) if fails else Released(lease.key)
        self.world.tell(lease, event)
        assert (state is not LeaseState.LIVE) or lease.record.terminal.kind is Kind.FAILED
        REACHED[f"{state.name} ended"] += 1

    @precondition(lambda self: self.world.table.leases)
    @rule(number=picks)
    def a_generation_dies(self, number):
        lease = self.pick(number, self.world.table.leases.values())
        spared = lease.state is LeaseState.FINISHED and not lease.record.settled
        self.world.die(lease.stage, lease.replica)
        REACHED["death"] += 1
        REACHED["outlived a death"] += spared and not lease.record.settled

    @precondition(lambda self: self.world.records)
    @rule(number=picks, kind=st.sampled_from([Kind.ABORTED, Kind.TIMED_OUT, Kind.FAILED]))
    def a_request_is_ended(self, number, kind):
        self.world.settle(self.pick(number, self.world.records), kind)

    @rule(request_id=st.sampled_from("abz"))
    def a_user_aborts_by_id(self, request_id):
        """I4: all that carry the id, no other, and twice is once."""
        found = self.world.table.find(request_id)
        assert {r.key for r in found} == {
            r.key for r in self.world.table.records.values() if r.request_id == request_id
        }
        for record in (*found, *found):
            self.world.settle(record, Kind.ABORTED)
        assert all(lease.state is not LeaseState.LIVE for lease in unconfirmed(found))

    def unheeded(self, event, stage, replica, generation):
        """Says something that must change nothing but the count of late messages."""
        before, late = self.picture(), self.world.table.late
        self.world.hear(event, stage, replica, generation)
        assert self.picture() == before
        assert self.world.table.late == late + 1

    def picture(self):
        table = self.world.table
        return (
            {key: lease.state for key, lease in table.leases.items()},
            {record.key: (record.state, len(self.world.got[record.key])) for record in self.world.records},
            dict(self.world.said),
        )

    events = st.sampled_from(
        [
            lambda key: Produced(key, TextChunk(text="late")),
            lambda key: Produced(key, TextChunk(text="late"), True, True),
            Released,
            lambda key: LeaseFailed(key, rejected("s0", "late")),
        ]
    )

    @precondition(lambda self: len(self.world.leases) > len(self.world.table.leases))
    @rule(number=picks, event=events)
    def an_ended_lease_is_spoken_of(self, number, event):
        """I11, I20: what comes after the end, or from a dead generation."""
        lease = self.pick(number, (le for k, le in self.world.leases.items() if k not in self.world.table.leases))
        self.unheeded(event(lease.key), lease.stage, lease.replica, lease.generation)
        REACHED["late"] += 1

    @precondition(lambda self: self.world.table.leases)
    @rule(number=picks, event=events, stage=st.sampled_from(["s0", "end"]), off=st.integers(0, 2))
    def a_lease_is_spoken_of_by_a_stranger(self, number, event, stage, off):
        """I8."""
        lease = self.pick(number, self.world.table.leases.values())
        mine = (lease.stage, lease.replica, lease.generation)
        claim = (stage, lease.replica + (off == 1), lease.generation - (off == 2))
        if claim != mine:
            self.unheeded(event(lease.key), *claim)

    @precondition(lambda self: any(le.state is LeaseState.FINISHED for le in self.world.table.leases.values()))
    @rule(number=picks, end=st.booleans())
    def a_finished_lease_goes_on_talking(self, number, end):
        done = [le for le in self.world.table.leases.values() if le.state is LeaseState.FINISHED]
        lease = self.pick(number, done)
        self.unheeded(Produced(lease.key, TextChunk(text="more"), end), lease.stage, lease.replica, lease.generation)

    @invariant()
    def everything_agrees(self):
        self.world.check()

    def teardown(self):
        """However it stands: end everything, let every engine answer, and nothing is left (I11, I12)."""
        if not hasattr(self, "world"):
            return
        world = self.world
        for record in world.records:
            world.settle(record, Kind.ABORTED)
        for lease in list(world.table.leases.values()):
            self.ends(lease, fails=False)
        world.check()
        world.check_empty()
        REACHED.update(terminal.kind.value for terminal, _ in world.ends.values())


def test_the_table_agrees_with_its_engines_whatever_happens():
    REACHED.clear()
    patient = settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    run_state_machine_as_test(Lifecycle, settings=patient)
    ended_in = {f"{state.name} ended" for state in LeaseState} - {"ENDED ended"}
    planned = {kind.value for kind in Kind} | ended_in | {"withdrawn", "death", "outlived a death", "late"}
    planned |= {"widened", "a companion failed"}
    assert planned <= set(REACHED), "not proved: the machine never got there"


@settings(deadline=None)
@given(graphs(), st.randoms(use_true_random=False))
def test_every_interleaving_delivers_everything_in_order(graph, random):
    """I6."""
    world = World(graph)
    record = world.submit("me", random.choice([None, "video"]))
    world.begin(record)
    while not record.settled:
        busy = [lease for lease in world.table.leases.values() if lease.key not in world.over]
        move = random.randrange(len(world.waiting) + len(busy))
        if move < len(world.waiting):
            companions = random.choice([(), ("one",), ("one", "two")])
            world.place(move, random.choice([1, 1, 2]), random.randrange(2), companions)
        else:
            lease = busy[move - len(world.waiting)]
            text = random.choice([None, "", "x", "x.", "x.y.z"])
            world.say(lease, text, end=random.random() < 0.4, release=random.random() < 0.5)
        world.check()
    assert record.terminal.kind is Kind.FINISHED
    assert all(progress.complete for progress in record.stages.values())
    for lease in list(world.table.leases.values()):
        world.tell(lease, Released(lease.key))
    world.check()
    world.check_empty()
