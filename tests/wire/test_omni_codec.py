"""The codec of the omni stage wire: every message round-trips, any other bytes are a ProtocolError (I25)."""

from __future__ import annotations

import threading

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omni_actors._errors import ProtocolError
from omni_actors.wire import omni as wire

keys = st.text("abcdefghijklmnopqrstuvwxyz0123456789-", min_size=1, max_size=32)
scalars = (
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text() | st.binary()
)


@st.composite
def tensors(draw):
    dtype = draw(st.sampled_from(sorted(wire.DTYPES)))
    shape = tuple(draw(st.lists(st.integers(0, 4), max_size=3)))
    size = int(np.prod(shape, dtype=int)) * wire.DTYPES[dtype]
    return wire.Tensor(dtype, shape, draw(st.binary(min_size=size, max_size=size)))


values = st.recursive(
    scalars | tensors(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)
metas = st.dictionaries(st.text(), values, max_size=3)
named_tensors = st.dictionaries(st.text(), tensors(), max_size=3)
counts = st.integers(0, 2**40)

messages = st.one_of(
    st.builds(wire.Hello, counts, st.text(), counts),
    st.builds(wire.Ready, counts, st.booleans()),
    st.builds(wire.Submit, keys, values, metas, counts, st.integers(-100, 100)),
    st.builds(wire.Abort, st.lists(keys, max_size=5)),
    st.builds(wire.Call, counts, st.text(), st.lists(values, max_size=3)),
    st.builds(wire.Ping, counts),
    st.builds(wire.Stop),
    st.builds(wire.Output, keys, counts, named_tensors, metas, st.booleans(), st.none() | st.text()),
    st.builds(wire.Progress, keys, counts, counts),
    st.builds(wire.Released, keys),
    st.builds(wire.Failed, keys, st.text()),
    st.builds(wire.CallResult, counts, values, st.none() | st.text()),
    st.builds(wire.Heartbeat, st.none() | st.floats(0, 1e6), counts, counts),
)  # fmt: skip


def decodes_or_refuses(frames):
    """The message, or None for a ProtocolError; whatever else is raised fails the test."""
    try:
        message = wire.decode(frames)
    except ProtocolError:
        return None
    assert isinstance(message, wire.Message)
    return message


@settings(deadline=None)
@given(messages)
def test_every_message_survives_the_trip(message):
    assert wire.decode(wire.encode(message)) == message


@settings(deadline=None)
@given(messages)
def test_frames_may_be_memoryviews(message):
    assert wire.decode([memoryview(frame) for frame in wire.encode(message)]) == message


@settings(deadline=None)
@given(st.lists(st.binary(max_size=64), max_size=4))
def test_random_frames_are_refused(frames):
    decodes_or_refuses(frames)


@settings(deadline=None)
@given(st.binary(max_size=64), st.lists(st.binary(max_size=8), max_size=2))
def test_random_bytes_after_the_version_are_refused(body, more):
    decodes_or_refuses([bytes([wire.VERSION]) + body, *more])


@settings(deadline=None)
@given(messages, st.data())
def test_a_truncated_message_is_refused(message, data):
    frames = [bytes(frame) for frame in wire.encode(message)]
    which = data.draw(st.integers(0, len(frames) - 1))
    if frames[which]:
        frames[which] = frames[which][: data.draw(st.integers(0, len(frames[which]) - 1))]
        assert decodes_or_refuses(frames) is None


@settings(deadline=None)
@given(messages)
def test_missing_and_surplus_frames_are_refused(message):
    frames = wire.encode(message)
    assert decodes_or_refuses([*frames, b""]) is None
    if len(frames) > 1:
        assert decodes_or_refuses(frames[:-1]) is None


@settings(deadline=None)
@given(messages, st.data())
def test_a_flipped_bit_gives_a_message_or_is_refused(message, data):
    head, *rest = wire.encode(message)
    flipped = bytearray(head)
    bit = data.draw(st.integers(0, len(flipped) * 8 - 1))
    flipped[bit // 8] ^= 1 << bit % 8
    decodes_or_refuses([bytes(flipped), *rest])


def head(*parts):
    return bytes([wire.VERSION]) + msgspec.msgpack.encode(parts)


def ref(index, dtype, shape, code=1):
    return msgspec.msgpack.Ext(code, msgspec.msgpack.encode((index, dtype, shape)))


@pytest.mark.parametrize(
    ("frames", "words"),
    [
        ([], "0 frames"),
        ([b""], "version nothing"),
        ([b"\x07\x90"], "version 7 .* we speak 1"),
        ([head("nonsense", 1)], "Invalid value"),
        ([head("submit", "k", ref(1, "uint8", [2]))], "names frame 1, expected 1 of 1"),
        ([head("submit", "k", ref(1, "uint8", [2])), b"abc"], "takes 2 bytes, not 3"),
        ([head("submit", "k", ref(1, "uint9", [2])), b"ab"], "unknown dtype 'uint9'"),
        ([head("submit", "k", ref(1, "uint8", [-1, -2])), b"ab"], "absurd shape"),
        ([head("submit", "k", ref(1, "uint8", [2**62, 2**62])), b"ab"], "takes .* bytes, not 2"),
        ([head("submit", "k", ref(1, "uint8", [1] * 17)), b"a"], "absurd shape"),
        ([head("submit", "k", ref(1, "uint8", [2**70 % 2**64 + 2**63])), b"a"], "takes"),
        ([head("submit", "k", ref(2, "uint8", [1])), b"a"], "names frame 2"),
        ([head("submit", "k", ref(1, "uint8", [1], code=9)), b"a"], "unknown extension 9"),
        ([head("submit", "k", [ref(1, "uint8", [1]), ref(1, "uint8", [1])]), b"a"], "names frame 1, expected 2"),
        ([head("output", "k", 0, {"audio": 3})], "Expected `Tensor`"),
        ([head("submit", "k", None), b"a"], "belong to no tensor"),
        ([bytes([wire.VERSION]) + b"\x93\xa6submit\xa1k" + b"\x91" * 100_000], "recursion"),
        ([bytes([wire.VERSION]) + b"\x93\xa6submit\xa1k\xdd\xff\xff\xff\xff"], "truncated"),
        ([b"\x01" * (wire.MAX_HEAD_BYTES + 1)], "the first of"),
        ([head("stop"), *[b""] * wire.MAX_FRAMES], "frames"),
    ],
)
def test_refusals_say_what_is_wrong(frames, words):
    with pytest.raises(ProtocolError, match=words):
        wire.decode(frames)


@pytest.mark.parametrize(
    ("prompt", "error", "words"),
    [
        (object(), TypeError, "cannot send a value of type object"),
        (2**70, ValueError, "ints"),
        (b"x" * (wire.MAX_HEAD_BYTES + 1), ValueError, "use a tensor"),
        ([wire.Tensor("uint8", (0,), b"")] * wire.MAX_FRAMES, ValueError, "tensors in one message"),
        (np.array(["text"]), ValueError, "cannot travel"),
    ],
)
def test_what_cannot_travel_is_refused_before_it_is_sent(prompt, error, words):
    with pytest.raises(error, match=words):
        wire.encode(wire.Submit("k", prompt))


def test_an_ndarray_travels_and_comes_back():
    sent = np.arange(6, dtype=np.float32).reshape(2, 3)
    frames = wire.encode(wire.Submit("k", {"x": sent[:, ::-1]}))
    sent[:] = 0
    (got,) = wire.decode(frames).prompt.values()
    assert got.nbytes == 24
    np.testing.assert_array_equal(got.numpy(), [[2, 1, 0], [5, 4, 3]])
    with pytest.raises(ValueError, match="read-only"):
        got.numpy()[0, 0] = 1


def test_bfloat16_is_widened_exactly():
    assert wire.Tensor("bfloat16", (2,), b"\x80\x3f\x00\xc0").numpy().tolist() == [1.0, -2.0]


def test_big_endian_arrays_travel_little():
    assert wire.Tensor.from_numpy(np.array([1, 2], dtype=">i4")).numpy().tolist() == [1, 2]


def test_a_tensor_is_immutable():
    with pytest.raises(AttributeError, match="immutable"):
        wire.Tensor("uint8", (1,), b"a").shape = (2,)


@settings(deadline=None)
@given(tensors())
def test_numpy_and_back(tensor):
    if tensor.dtype not in ("bfloat16", "bool"):
        assert wire.Tensor.from_numpy(tensor.numpy()) == tensor


class Interrupted(list):
    """Frames in the middle of whose reading another thread reads a message of its own."""

    def __getitem__(self, index):
        if index == 1:
            other = wire.encode(wire.Submit("other", [wire.Tensor("uint8", (1,), b"z")] * 3))
            thread = threading.Thread(target=wire.decode, args=(other,))
            thread.start()
            thread.join()
        return super().__getitem__(index)


def test_threads_do_not_mix_their_frames():
    message = wire.Submit("k", [wire.Tensor("uint8", (1,), b"a"), wire.Tensor("uint8", (1,), b"b")])
    assert wire.decode(Interrupted(wire.encode(message))) == message
