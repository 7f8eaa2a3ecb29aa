"""Who may come in: C19's counts, and that a refusal takes nothing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omni_actors._errors import Overloaded, Refused, ShuttingDown
from omni_actors.lifecycle import Admission


def test_of_fifty_arrivals_ten_slots_come_in_and_n4_takes_four():
    house = Admission(max_slots=10, max_bytes=1000)
    arrivals = [4] + [1] * 49
    accepted = []
    for slots in arrivals:
        try:
            house.enter(slots, 1)
        except Overloaded:
            continue
        accepted.append(slots)
    assert accepted == [4, 1, 1, 1, 1, 1, 1]
    assert (house.slots, house.refused) == (10, 43)

    house.leave(4, 1)
    for _ in range(4):
        house.enter(1, 1)
    assert house.slots == 10


def test_the_refusal_says_how_full_the_house_is_and_for_whom():
    house = Admission(max_slots=2, max_bytes=1000)
    house.enter(2, 0)
    with pytest.raises(Overloaded, match="2 of 2 slots are taken and this request needs 1; try again later") as caught:
        house.enter(1, 0, request_id="mine")
    assert (caught.value.in_flight, caught.value.limit, caught.value.request_id) == (2, 2, "mine")


def test_who_will_never_fit_is_not_told_to_try_again():
    with pytest.raises(Overloaded, match="needs 4; it will never fit"):
        Admission(max_slots=2, max_bytes=1000).enter(4, 0)


def test_bytes_are_counted_too_and_a_refusal_takes_neither():
    house = Admission(max_slots=10, max_bytes=100)
    house.enter(1, 90)
    with pytest.raises(Overloaded, match="90 of 100 bytes of prompts are taken and this request needs 11"):
        house.enter(1, 11)
    assert (house.slots, house.bytes, house.refused) == (1, 90, 1)
    house.enter(1, 10)
    assert (house.slots, house.bytes) == (2, 100)


def test_a_closed_house_takes_nobody_and_lets_everybody_leave():
    house = Admission(max_slots=10, max_bytes=100)
    house.enter(3, 30)
    house.close()
    house.close()
    with pytest.raises(ShuttingDown) as caught:
        house.enter(1, 1, request_id="late")
    assert caught.value.request_id == "late"
    assert (house.slots, house.bytes, house.refused) == (3, 30, 1)
    house.leave(3, 30)
    assert (house.slots, house.bytes) == (0, 0)


def test_more_cannot_leave_than_came():
    house = Admission(max_slots=10, max_bytes=100)
    house.enter(1, 5)
    with pytest.raises(AssertionError, match="more credits came back than were taken"):
        house.leave(1, 6)


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(0, 50), st.booleans())))
def test_the_bounds_hold_and_all_credits_come_back(arrivals):
    """I13, I12."""
    house, inside = Admission(max_slots=8, max_bytes=100), []
    for slots, nbytes, one_leaves in arrivals:
        fits = house.slots + slots <= 8 and house.bytes + nbytes <= 100
        try:
            house.enter(slots, nbytes)
        except Refused:
            assert not fits
        else:
            assert fits
            inside.append((slots, nbytes))
        assert house.slots == sum(s for s, _ in inside) <= 8
        assert house.bytes == sum(b for _, b in inside) <= 100
        if one_leaves and inside:
            house.leave(*inside.pop(0))
    for credits in inside:
        house.leave(*credits)
    assert (house.slots, house.bytes) == (0, 0)
