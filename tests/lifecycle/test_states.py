"""The two tables, row by row: what may happen does what it should, everything else is named as a bug."""

from __future__ import annotations

import itertools

import pytest

from omni_actors._errors import IllegalTransition
from omni_actors.lifecycle import LeaseEvent, LeaseState, RequestEvent, RequestState
from omni_actors.lifecycle._states import lease_next, request_next

REQUEST = """
    ADMITTED BEGIN    RUNNING
    ADMITTED WITHDRAW CLOSED
    ADMITTED SETTLE   SETTLED
    RUNNING  SETTLE   SETTLED
    SETTLED  SETTLE   SETTLED
    SETTLED  EMPTY    CLOSED
    CLOSED   BEGIN    CLOSED
    CLOSED   WITHDRAW CLOSED
    CLOSED   SETTLE   CLOSED
"""

LEASE = """
    LIVE     EXTEND   LIVE
    LIVE     FINISH   FINISHED
    LIVE     ABORT    ABORTING
    LIVE     RELEASE  ENDED
    LIVE     FAIL     ENDED
    LIVE     DIE      ENDED
    FINISHED RELEASE  ENDED
    FINISHED FAIL     ENDED
    FINISHED DIE      ENDED
    ABORTING FINISH   ABORTING
    ABORTING RELEASE  ENDED
    ABORTING FAIL     ENDED
    ABORTING DIE      ENDED
"""


def rows(table):
    return [tuple(line.split()) for line in table.strip().splitlines()]


def others(table, states, events):
    legal = {(state, event) for state, event, _ in rows(table)}
    return [pair for pair in itertools.product((s.name for s in states), (e.name for e in events)) if pair not in legal]


@pytest.mark.parametrize(("state", "event", "after"), rows(REQUEST))
def test_a_request_moves_by_its_table(state, event, after):
    assert request_next(RequestState[state], RequestEvent[event], "1-ab") is RequestState[after]


@pytest.mark.parametrize(("state", "event", "after"), rows(LEASE))
def test_a_lease_moves_by_its_table(state, event, after):
    assert lease_next(LeaseState[state], LeaseEvent[event], "1-ab-0") is LeaseState[after]


@pytest.mark.parametrize(("state", "event"), others(REQUEST, RequestState, RequestEvent))
def test_nothing_else_happens_to_a_request(state, event):
    with pytest.raises(IllegalTransition) as caught:
        request_next(RequestState[state], RequestEvent[event], "7-beef")
    assert all(word in str(caught.value) for word in (state, event, "7-beef"))


@pytest.mark.parametrize(("state", "event"), others(LEASE, LeaseState, LeaseEvent))
def test_nothing_else_happens_to_a_lease(state, event):
    with pytest.raises(IllegalTransition) as caught:
        lease_next(LeaseState[state], LeaseEvent[event], "7-beef-2-p3")
    assert all(word in str(caught.value) for word in (state, event, "7-beef-2-p3"))


def test_ended_leases_stay_ended():
    assert {("ENDED", event.name) for event in LeaseEvent} <= set(others(LEASE, LeaseState, LeaseEvent))
