"""The request table, told as short stories: who ends what, who holds what, and when it is all gone."""

from __future__ import annotations

import pytest

from omni_actors._errors import IllegalTransition, Overloaded, RequestTimeout
from omni_actors.lifecycle import (
    Admission,
    Edge,
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
    unconfirmed,
)

PIPELINE = Graph([Node(name="llm"), Node(name="voice", output="audio", edges=(Edge(source="llm"),))])


class House:
    """A table with a clock that stands still and a list of who has gone."""

    def __init__(self, slots=10):
        self.gone = []
        self.table = RequestTable(Admission(slots, 1000), clock=lambda: 9.0, on_closed=self.gone.append)

    def submit(self, request_id="me", slots=1):
        view = RequestView(request_id, "hi", ("audio",), {})
        return self.table.admit(view, PIPELINE.plan(None), slots=slots, nbytes=2)

    def run(self, request_id="me", *, replica=0, generation=1, samples=1):
        record = self.submit(request_id, samples)
        self.table.begin(record)
        advance(record)
        opened(record, "llm", 0, samples)
        return record, [self.table.open_lease(record, "llm", 0, i, replica, generation) for i in range(samples)]


def test_a_request_is_gone_when_its_last_lease_is_released_and_not_before():
    house = House()
    record, (first, second) = house.run(samples=2)
    settled = house.table.settle(record, Kind.ABORTED)
    assert settled.to_abort == (first, second)
    assert unconfirmed([record]) == (first, second)
    house.table.step(first, LeaseEvent.RELEASE)
    assert (house.gone, house.table.admission.slots) == ([], 2)
    house.table.step(second, LeaseEvent.RELEASE)
    assert (house.gone, house.table.admission.slots, house.table.records) == ([record], 0, {})


def test_the_first_settle_wins_and_later_ones_do_nothing():
    """I5, I4."""
    house = House()
    record, (lease,) = house.run()
    error = RequestTimeout("too late", request_id="me")
    terminal = house.table.settle(record, Kind.TIMED_OUT, error=error).terminal
    assert (terminal.kind, terminal.error, terminal.reason, terminal.at) == (Kind.TIMED_OUT, error, "too late", 9.0)
    assert house.table.settle(record, Kind.ABORTED) is None
    house.table.step(lease, LeaseEvent.RELEASE)
    assert house.table.settle(record, Kind.ABORTED) is None
    assert record.terminal is terminal


def test_a_finished_lease_is_not_aborted_its_release_is_on_the_way():
    house = House()
    record, (first, second) = house.run(samples=2)
    house.table.step(first, LeaseEvent.FINISH)
    assert house.table.settle(record, Kind.ABORTED).to_abort == (second,)
    assert unconfirmed([record]) == (first, second)


def test_a_user_id_may_be_used_again_while_its_abort_is_pending():
    """I8."""
    house = House()
    old, (old_lease,) = house.run("same")
    house.table.settle(old, Kind.ABORTED)
    new, (new_lease,) = house.run("same")
    assert house.table.find("same") == (old, new)
    assert old_lease.key != new_lease.key
    house.table.step(old_lease, LeaseEvent.RELEASE)
    assert house.table.find("same") == (new,)
    assert (new.settled, new_lease.state) == (False, LeaseState.LIVE)
    assert house.table.find("other") == ()


def test_a_death_binds_exactly_the_leases_of_its_generation():
    """I17."""
    house = House()
    _, (old,) = house.run(generation=1)
    _, (new,) = house.run(generation=2)
    _, (other,) = house.run(replica=1, generation=1)
    assert house.table.bound_to("llm", 0, 1) == [old]
    assert house.table.bound_to("llm", 0, 2) == [new]
    assert house.table.bound_to("llm", 1, 1) == [other]
    assert house.table.bound_to("voice", 0, 1) == []
    assert house.table.load == {("llm", 0): 2, ("llm", 1): 1}


def test_a_message_from_another_place_or_life_is_late():
    """I8, I20."""
    house = House()
    _, (lease,) = house.run(generation=2)
    assert house.table.lease_of(lease.key, "llm", 0, 2) is lease
    for place in (("voice", 0, 2), ("llm", 1, 2), ("llm", 0, 1)):
        assert house.table.lease_of(lease.key, *place) is None
    assert house.table.lease_of("unknown", "llm", 0, 2) is None
    assert house.table.late == 4


def test_a_refused_submit_leaves_nothing():
    house = House(slots=2)
    house.submit(slots=2)
    with pytest.raises(Overloaded):
        house.submit("you")
    assert house.table.find("you") == ()
    assert (len(house.table.records), house.table.unsettled, house.table.admission.slots) == (1, 1, 2)
    house.table.check()


def test_a_withdrawn_request_has_no_end_and_can_not_be_given_one():
    house = House()
    record = house.submit()
    house.table.withdraw(record)
    assert house.table.settle(record, Kind.ABORTED) is None
    assert (record.terminal, record.state, house.gone) == (None, RequestState.CLOSED, [record])
    assert (house.table.unsettled, house.table.admission.slots) == (0, 0)


@pytest.mark.parametrize("then", ["begin", "withdraw"])
def test_a_request_aborted_while_it_is_prepared_stays_aborted(then):
    house = House()
    record = house.submit()
    assert house.table.settle(record, Kind.ABORTED).to_abort == ()
    getattr(house.table, then)(record)
    assert (record.terminal.kind, record.state, house.gone) == (Kind.ABORTED, RequestState.CLOSED, [record])
    with pytest.raises(AssertionError, match="not running"):
        house.table.open_lease(record, "llm", 0, 0, 0, 1)


def test_a_running_request_can_not_be_withdrawn():
    house = House()
    record, _ = house.run()
    with pytest.raises(IllegalTransition, match=f"{record.key}: WITHDRAW cannot happen in state RUNNING"):
        house.table.withdraw(record)


def test_the_integrity_check_sees_what_does_not_add_up():
    house = House()
    _, (lease,) = house.run()
    house.table.check()
    lease.state = LeaseState.ABORTING
    with pytest.raises(AssertionError):
        house.table.check()
