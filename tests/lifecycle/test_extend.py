"""A request whose input comes in pieces: one lease, more credits, and nothing for those who have ended."""

from __future__ import annotations

import pytest

from omni_actors._errors import Overloaded, ShuttingDown
from omni_actors.lifecycle import (
    Admission,
    Graph,
    Kind,
    LeaseEvent,
    LeaseState,
    Node,
    RequestTable,
    RequestView,
    advance,
    opened,
)


class House:
    def __init__(self):
        self.gone = []
        self.table = RequestTable(Admission(10, 100), clock=lambda: 9.0, on_closed=self.gone.append)
        view = RequestView("me", "hi", ("text",), {})
        plan = Graph([Node(name="llm", output="text")]).plan(None)
        self.record = self.table.admit(view, plan, slots=1, nbytes=2)
        self.table.begin(self.record)
        advance(self.record)

    def open(self):
        opened(self.record, "llm", 0, 1)
        return self.table.open_lease(self.record, "llm", 0, 0, 0, 1)


def test_a_piece_belongs_to_the_one_lease_and_costs_bytes_alone():
    house = House()
    lease = house.open()
    assert house.table.extend(house.record, "llm", 30) is lease
    assert house.table.extend(house.record, "llm", 40) is lease
    assert (lease.state, list(house.table.leases)) == (LeaseState.LIVE, [lease.key])
    assert (house.table.admission.slots, house.table.admission.bytes) == (1, 72)
    house.table.check()


def test_all_credits_come_back_with_the_release():
    house = House()
    lease = house.open()
    house.table.extend(house.record, "llm", 30)
    house.table.settle(house.record, Kind.ABORTED)
    assert house.table.admission.bytes == 32
    house.table.step(lease, LeaseEvent.RELEASE)
    assert (house.gone, house.table.admission.bytes, house.table.admission.slots) == ([house.record], 0, 0)


def test_a_piece_that_does_not_fit_changes_nothing():
    house = House()
    house.open()
    with pytest.raises(Overloaded):
        house.table.extend(house.record, "llm", 99)
    house.table.admission.close()
    with pytest.raises(ShuttingDown):
        house.table.extend(house.record, "llm", 1)
    assert (house.record.nbytes, house.table.admission.bytes) == (2, 2)
    house.table.check()


def test_nobody_takes_a_piece_before_there_is_a_lease():
    house = House()
    assert house.table.extend(house.record, "llm", 1) is None


@pytest.mark.parametrize("how", ["aborted", "finished", "released", "its engine died"])
def test_a_piece_that_comes_too_late_costs_nothing(how):
    house = House()
    lease = house.open()
    if how == "aborted":
        house.table.settle(house.record, Kind.ABORTED)
    elif how == "finished":
        house.table.step(lease, LeaseEvent.FINISH)
    else:
        house.table.step(lease, LeaseEvent.RELEASE if how == "released" else LeaseEvent.DIE)
    assert house.table.extend(house.record, "llm", 1) is None
    assert house.table.admission.bytes == 2
