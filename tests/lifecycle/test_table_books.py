"""The request table's books: what a record knows, what keys look like, and that the integrity check sees each lie."""

from __future__ import annotations

import pytest

from omni_actors._errors import IllegalTransition, RequestTimeout, ShuttingDown
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
)
from omni_actors.lifecycle.events import TextChunk


def halves(text, finished):
    return ([text], "") if finished and text else ([], text)


PIPELINE = Graph(
    [
        Node(name="llm", output="text"),
        Node(name="voice", output="audio", edges=(Edge(source="llm", mode="segments", split=halves),)),
    ]
)


class House:
    """A table whose clock ticks when told."""

    def __init__(self):
        self.now, self.gone = 1.0, []
        self.table = RequestTable(Admission(10, 100), clock=lambda: self.now, on_closed=self.gone.append, salt="beef")

    def submit(self, request_id="me", **more):
        view = RequestView(request_id, "hi", (), {})
        return self.table.admit(view, PIPELINE.plan(None), slots=3, nbytes=20, **more)

    def run(self, request_id="me"):
        record = self.submit(request_id)
        self.table.begin(record)
        advance(record)
        opened(record, "llm", 0, 1)
        return record, self.table.open_lease(record, "llm", 0, 0, 4, 5)

    @property
    def credits(self):
        return self.table.admission.slots, self.table.admission.bytes


def test_a_record_knows_what_was_asked_and_when():
    house = House()
    record = house.submit(priority=-2, options={"a": 1})
    assert (record.request_id, record.slots, record.nbytes, record.submitted_at) == ("me", 3, 20, 1.0)
    assert (record.priority, record.options, record.sink, record.prompt_tokens) == (-2, {"a": 1}, None, 0)
    assert (record.state, record.settled, record.terminal, record.leases) == (RequestState.ADMITTED, False, None, {})
    plain = house.submit()
    assert (plain.priority, plain.options) == (0, {})
    assert [progress.total for progress in plain.stages.values()] == [1, None]
    assert house.credits == (6, 40)


def test_a_refused_request_is_named_in_its_refusal():
    house = House()
    house.table.admission.close()
    with pytest.raises(ShuttingDown) as caught:
        house.submit("mine")
    assert caught.value.request_id == "mine"
    assert (house.table.records, house.table.unsettled) == ({}, 0)


def test_keys_count_up_and_say_stage_part_and_sample_but_never_the_users_words():
    house = House()
    first, second = house.submit("My Secret"), house.submit("My Secret")
    assert (first.key, second.key) == ("1-beef", "2-beef")
    places = (("llm", 0, 0), ("llm", 0, 2), ("voice", 3, 0), ("voice", 3, 1))
    keys = [house.table.lease_key(first, *place) for place in places]
    assert keys == [f"{first.key}-0", f"{first.key}-0-s2", f"{first.key}-1-p3", f"{first.key}-1-p3-s1"]


def test_the_sixteenth_request_has_a_key_in_hexadecimal():
    house = House()
    records = []
    for _ in range(16):
        records.append(house.submit())
        house.table.withdraw(records[-1])
    assert [record.key.split("-")[0] for record in records[8:]] == ["9", "a", "b", "c", "d", "e", "f", "10"]


def test_a_lease_says_where_it_is_and_the_first_one_starts_the_stages_clock():
    house = House()
    record, lease = house.run()
    assert (lease.record, lease.stage, lease.part, lease.index) == (record, "llm", 0, 0)
    assert (lease.replica, lease.generation, lease.state) == (4, 5, LeaseState.LIVE)
    assert house.table.leases == record.leases == {lease.key: lease}
    assert house.table.load == {("llm", 4): 1}
    house.now = 2.0
    house.table.open_lease(record, "llm", 0, 1, 4, 5)
    assert record.stages["llm"].submitted_at == 1.0
    assert house.table.load == {("llm", 4): 2}


def test_the_same_work_is_not_bound_twice():
    house = House()
    record, lease = house.run()
    with pytest.raises(AssertionError, match=f"lease {lease.key} exists already"):
        house.table.open_lease(record, "llm", 0, 0, 4, 6)


def test_the_terminal_says_how_it_ended_where_when_and_with_what():
    house = House()
    record, lease = house.run()
    record.prompt_tokens = 11
    record.stages["llm"].parts[0].made[0] = made = _made("hi")
    house.now = 7.0
    error = RequestTimeout("too late")
    settled = house.table.settle(record, Kind.TIMED_OUT, error=error, reason="slow", stage="llm")
    assert (settled.record, settled.to_abort, lease.state) == (record, (lease,), LeaseState.ABORTING)
    end = settled.terminal
    assert (end.kind, end.request_id, end.stage, end.reason, end.error) == (Kind.TIMED_OUT, "me", "llm", "slow", error)
    assert (end.submitted_at, end.at, end.prompt_tokens) == (1.0, 7.0, 11)
    assert end.text() == "".join(made.texts) == "hi"
    assert list(end.results) == ["llm"], "a stage that never worked has no results"
    assert [timing.stage for timing in end.timings] == ["llm", "voice"]


def _made(text):
    from omni_actors.lifecycle._record import Made

    made = Made()
    made.add(TextChunk(text=text))
    return made


def test_a_reason_is_given_or_the_errors_words_or_none():
    house = House()
    given = house.table.settle(house.submit(), Kind.FAILED, error=RequestTimeout("words")).terminal
    silent = house.table.settle(house.submit(), Kind.ABORTED).terminal
    assert (given.reason, silent.reason, silent.error, silent.stage) == ("words", None, None, "voice")


def test_the_settled_are_counted_out_at_once_the_credits_come_back_at_the_end():
    house = House()
    record, lease = house.run()
    other = house.submit("other")
    assert (house.table.unsettled, house.credits) == (2, (6, 40))
    house.table.settle(record, Kind.ABORTED)
    assert (house.table.unsettled, house.credits, house.gone) == (1, (6, 40), [])
    assert record.state is RequestState.SETTLED
    house.table.step(lease, LeaseEvent.RELEASE)
    assert (record.state, house.credits, house.gone) == (RequestState.CLOSED, (3, 20), [record])
    assert (house.table.load, house.table.leases, house.table.records) == ({}, {}, {other.key: other})
    house.table.withdraw(other)
    assert (house.table.unsettled, house.credits, house.gone) == (0, (0, 0), [record, other])
    assert house.table.ended == {Kind.ABORTED: 1}, "what was withdrawn has not ended"
    house.table.check()


def test_a_closed_request_may_be_withdrawn_again_and_gives_nothing_back_twice():
    house = House()
    record, kept = house.submit(), house.submit()
    house.table.withdraw(record)
    house.table.withdraw(record)
    assert (house.table.unsettled, house.credits, house.gone) == (1, (3, 20), [record])
    assert house.table.find("me") == (kept,)


def test_a_finished_lease_holds_its_request_until_its_release():
    house = House()
    record, lease = house.run()
    house.table.step(lease, LeaseEvent.FINISH)
    house.table.settle(record, Kind.FINISHED)
    assert (lease.state, house.gone, house.table.load) == (LeaseState.FINISHED, [], {("llm", 4): 1})
    house.table.step(lease, LeaseEvent.RELEASE)
    assert (lease.state, house.gone) == (LeaseState.ENDED, [record])
    with pytest.raises(IllegalTransition, match=lease.key):
        house.table.step(lease, LeaseEvent.RELEASE)


def test_one_lease_of_two_less_is_one_left():
    house = House()
    record, lease = house.run()
    second = house.table.open_lease(record, "llm", 0, 1, 4, 5)
    house.table.step(lease, LeaseEvent.DIE)
    assert (house.table.load, list(house.table.leases.values())) == ({("llm", 4): 1}, [second])
    assert (house.gone, record.state) == ([], RequestState.RUNNING)


def test_a_request_begins_once_and_is_named_when_it_does_not():
    house = House()
    record = house.submit()
    house.table.begin(record)
    with pytest.raises(IllegalTransition, match=f"^{record.key}: BEGIN cannot happen in state RUNNING"):
        house.table.begin(record)


def test_ends_are_counted_by_their_kind():
    house = House()
    for kind in (Kind.ABORTED, Kind.FAILED, Kind.ABORTED):
        record = house.submit()
        house.table.settle(record, kind)
        house.table.settle(record, Kind.FINISHED)
    assert house.table.ended == {Kind.ABORTED: 2, Kind.FAILED: 1}


LIES = {
    "a lease that no request holds": lambda table, record, lease: record.leases.clear(),
    "a load that nobody makes": lambda table, record, lease: table.load.update({("llm", 4): 1}),
    "a slot too many": lambda table, record, lease: table.admission.enter(1, 0),
    "a byte too many": lambda table, record, lease: table.admission.enter(0, 1),
    "a request counted twice": lambda table, record, lease: setattr(table, "unsettled", 2),
    "an id that was forgotten": lambda table, record, lease: table._by_id.clear(),
    "an abort of a request that has no end": lambda table, record, lease: setattr(lease, "state", LeaseState.ABORTING),
    "a live lease of a request that has ended": lambda table, record, lease: setattr(record, "terminal", "an end"),
}


@pytest.mark.parametrize("lie", LIES)
def test_the_integrity_check_sees(lie):
    house = House()
    record, lease = house.run()
    house.table.check()
    LIES[lie](house.table, record, lease)
    with pytest.raises(AssertionError):
        house.table.check()


def test_a_finished_lease_of_a_request_with_or_without_an_end_is_no_lie():
    house = House()
    record, lease = house.run()
    house.table.step(lease, LeaseEvent.FINISH)
    house.table.check()
    house.table.settle(record, Kind.ABORTED)
    house.table.check()
    assert lease.state is LeaseState.FINISHED
