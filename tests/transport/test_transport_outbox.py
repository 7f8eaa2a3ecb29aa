"""The outbound queue by itself: lanes, bounds, budget. (Its behaviour over time is in the model of the memory twin.)"""

from __future__ import annotations

from omni_actors.transport._outbox import Outbox, Write


def put(outbox: Outbox, peer: bytes | None, body: bytes, *, urgent: bool = False, tag: str | None = None):
    return outbox.put(peer, [body], urgent=urgent, tag=tag)


class Wire:
    """Takes ``room`` messages, then is full; or says that the peer is gone."""

    def __init__(self, room: int = 1_000, gone: bool = False) -> None:
        self.room, self.gone = room, gone
        self.sent: list[bytes] = []

    def __call__(self, frames) -> Write:
        if self.gone:
            return Write.GONE
        if len(self.sent) >= self.room:
            return Write.FULL
        self.sent.append(frames[0])
        return Write.SENT


def test_urgent_first_then_in_order():
    outbox, wire = Outbox(10), Wire()
    for body in (b"1", b"2"):
        put(outbox, None, body)
    for body in (b"!1", b"!2"):
        put(outbox, None, body, urgent=True)
    assert outbox.flush(wire, budget=64)
    assert wire.sent == [b"!1", b"!2", b"1", b"2"]
    assert not outbox


def test_a_flush_stops_at_its_budget_and_says_whether_anything_moved():
    outbox, wire = Outbox(10), Wire(room=3)
    for number in range(5):
        put(outbox, None, b"%d" % number)
    assert outbox.flush(wire, budget=2)
    assert len(outbox) == 3
    assert outbox.flush(wire, budget=2)
    assert not outbox.flush(wire, budget=2)
    assert wire.sent == [b"0", b"1", b"2"]


def test_the_bounds_of_ordinary_and_urgent_messages_are_apart():
    outbox = Outbox(1)
    assert not outbox.over_bound(put(outbox, None, b"1"))
    assert outbox.over_bound(put(outbox, b"other", b"2")), "one bound for all peers"
    assert not outbox.over_bound(put(outbox, None, b"!", urgent=True))
    assert outbox.over_bound(put(outbox, None, b"!!", urgent=True))


def test_a_message_that_has_left_is_over_no_bound():
    outbox = Outbox(0)
    item = put(outbox, None, b"1")
    outbox.flush(Wire(), budget=1)
    assert not outbox.over_bound(item)
    outbox.remove(item)
    assert len(outbox) == 0


def test_a_gone_peers_lane_is_dropped_with_its_tags():
    outbox = Outbox(10)
    put(outbox, b"a", b"1", tag="t")
    put(outbox, b"a", b"!", urgent=True)
    put(outbox, b"b", b"2", tag="u")
    assert outbox.flush_peer(b"a", Wire(gone=True), budget=64) is Write.GONE
    assert b"a" not in outbox
    assert not outbox.unsend("t")
    assert outbox.unsend("u")
    assert not outbox


def test_a_tag_names_the_newest_message_that_has_it():
    outbox, wire = Outbox(10), Wire()
    put(outbox, None, b"1", tag="t")
    put(outbox, None, b"2", tag="t")
    assert outbox.unsend("t")
    assert not outbox.unsend("t")
    outbox.flush(wire, budget=64)
    assert wire.sent == [b"1"]


def test_what_is_queued_no_longer_depends_on_the_senders_buffer():
    outbox, wire = Outbox(10), Wire()
    buffer = bytearray(b"before")
    outbox.put(None, [memoryview(buffer)], urgent=False, tag=None)
    buffer[:] = b"after!"
    outbox.flush(wire, budget=1)
    assert wire.sent == [b"before"]
