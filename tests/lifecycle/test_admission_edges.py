"""Admission at its edges: every refusal counts and names its request, and exactly full is not too full."""

from __future__ import annotations

import pytest

from omni_actors._errors import Overloaded, ShuttingDown
from omni_actors.lifecycle import Admission


def test_every_refusal_counts_also_those_at_a_closed_door():
    house = Admission(max_slots=1, max_bytes=10)
    assert (house.slots, house.bytes, house.refused, house.closed) == (0, 0, 0, False)
    for slots, nbytes in ((2, 0), (1, 11)):
        with pytest.raises(Overloaded):
            house.enter(slots, nbytes)
    house.close()
    for _ in range(2):
        with pytest.raises(ShuttingDown):
            house.enter(1, 1)
    assert (house.refused, house.closed) == (4, True)


def test_too_many_bytes_are_refused_by_name():
    house = Admission(max_slots=1, max_bytes=10)
    with pytest.raises(Overloaded) as caught:
        house.enter(1, 11, request_id="mine")
    assert (caught.value.request_id, caught.value.in_flight, caught.value.limit) == ("mine", 0, 10)


def test_who_fills_the_whole_house_is_told_to_come_again():
    house = Admission(max_slots=3, max_bytes=10)
    house.enter(1, 0)
    with pytest.raises(Overloaded, match="needs 3; try again later"):
        house.enter(3, 0)
    house.leave(1, 0)
    house.enter(3, 0)
