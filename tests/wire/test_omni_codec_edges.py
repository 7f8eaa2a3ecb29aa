"""The codec of the omni stage wire at its bounds: the last thing that is taken, and the first that is not."""

from __future__ import annotations

import msgspec
import pytest

from omni_actors._errors import ProtocolError
from omni_actors.wire import omni as wire

TENSOR = wire.Tensor("uint8", (0,), b"")


def head(*parts):
    return bytes([wire.VERSION]) + msgspec.msgpack.encode(parts)


def overhead(prompt):
    return len(wire.encode(wire.Submit("k", prompt))[0]) - len(prompt)


def test_the_bounds_are_what_the_other_side_was_told():
    assert (wire.MAX_HEAD_BYTES, wire.MAX_FRAMES) == (16 * 1024 * 1024, 1024)


def test_the_largest_head_travels_and_one_byte_more_does_not():
    room = wire.MAX_HEAD_BYTES - overhead(b"x" * 70_000)
    frames = wire.encode(wire.Submit("k", b"x" * room))
    assert len(frames[0]) == wire.MAX_HEAD_BYTES
    assert len(wire.decode(frames).prompt) == room
    with pytest.raises(ValueError, match=f"plain values of {wire.MAX_HEAD_BYTES + 1} bytes"):
        wire.encode(wire.Submit("k", b"x" * (room + 1)))
    with pytest.raises(ProtocolError, match="a message of 1 frames"):
        wire.decode([frames[0] + b"x"])


def test_the_most_tensors_travel_and_one_more_does_not():
    most = [TENSOR] * (wire.MAX_FRAMES - 1)
    frames = wire.encode(wire.Submit("k", most))
    assert len(frames) == wire.MAX_FRAMES
    assert wire.decode(frames).prompt == most
    with pytest.raises(ValueError, match="1024 tensors in one message; the limit is 1023"):
        wire.encode(wire.Submit("k", [*most, TENSOR]))
    with pytest.raises(ProtocolError, match="a message of 1025 frames"):
        wire.decode([*frames, b""])


def nested(depth):
    value = []
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize("beside", [[], [TENSOR]], ids=["alone", "beside a tensor"])
@pytest.mark.parametrize("value", [2**70, nested(5_000)], ids=["too large", "too deep"])
def test_a_number_or_a_nesting_that_no_wire_holds_is_the_senders_fault(value, beside):
    with pytest.raises(ValueError, match="cannot be sent"):
        wire.encode(wire.Submit("k", [*beside, value]))


def test_a_tensor_is_named_by_three_fields_and_no_more():
    frames = [head("submit", "k", msgspec.msgpack.Ext(1, msgspec.msgpack.encode((1, "uint8", [1], "more")))), b"a"]
    with pytest.raises(ProtocolError, match="undecodable message"):
        wire.decode(frames)


def test_the_frame_of_a_tensor_is_not_copied_and_the_first_frame_is_the_head_alone():
    data = bytes(range(64))
    first, second = wire.encode(wire.Submit("k", {"x": wire.Tensor("uint8", (64,), data)}))
    assert first[0] == wire.VERSION
    assert msgspec.msgpack.decode(memoryview(first)[1:])[:2] == ["submit", "k"]
    assert memoryview(second).obj is data


def test_a_refused_message_leaves_nothing_behind_for_the_next():
    """One reader per thread is used again and again."""
    good = wire.encode(wire.Submit("k", [TENSOR, TENSOR]))
    for bad in ([good[0], good[1]], [*good, b""], [good[0][:-1], *good[1:]]):
        with pytest.raises(ProtocolError):
            wire.decode(bad)
        assert wire.decode(good).prompt == [TENSOR, TENSOR]
