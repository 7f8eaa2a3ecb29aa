from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from omni_actors._errors import ProtocolError
from omni_actors.wire.vllm import Handshake, Phase

ENGINE = b"\0\0"


def said(status):
    return [ENGINE, msgspec.msgpack.encode({"status": status, "local": True, "headless": False})]


def responded(**fields):
    return [ENGINE, msgspec.msgpack.encode(fields)]


def machine():
    return Handshake(input_address="mem://i", output_address="mem://o")


def loading():
    handshake = machine()
    handshake.on_handshake(said("HELLO"))
    return handshake


def test_hello_is_answered_with_the_addresses():
    reply = machine().on_handshake(said("HELLO"))

    assert reply[0] == ENGINE
    init = msgspec.msgpack.decode(reply[1])
    assert init == {"addresses": {"inputs": ["mem://i"], "outputs": ["mem://o"]}, "parallel_config": {}}


@pytest.mark.parametrize("ready_first", [True, False])
def test_both_ready_signals_are_needed_in_either_order(ready_first):
    handshake = loading()
    signals = [
        lambda: handshake.on_handshake(said("READY")),
        lambda: handshake.on_input(responded(max_model_len=128, num_gpu_blocks=7, block_size=16, new_in_0_34="x")),
    ]
    first, second = signals if ready_first else reversed(signals)

    first()
    assert not handshake.ready
    second()

    assert handshake.ready
    assert (handshake.response.max_model_len, handshake.response.num_gpu_blocks) == (128, 7)


def test_an_empty_response_says_nothing():
    handshake = loading()
    handshake.on_input([ENGINE, b""])
    assert handshake.response.max_model_len is None


def drive(handshake, letters):
    for letter in letters:
        match letter:
            case "h":
                handshake.on_handshake(said("HELLO"))
            case "r":
                handshake.on_handshake(said("READY"))
            case "i":
                handshake.on_input(responded())


@given(st.text("hri", max_size=6))
def test_only_the_two_orders_lead_to_ready(letters):
    """Against the shortest model there is: the set of legal prefixes."""
    legal = {"", "h", "hr", "hi", "hri", "hir"}
    handshake = machine()
    if letters in legal:
        drive(handshake, letters)
        assert handshake.ready == (len(letters) == 3)
        return
    with pytest.raises(ProtocolError):
        drive(handshake, letters)


@given(st.lists(st.binary(max_size=40), max_size=4), st.booleans(), st.sampled_from(["", "h", "hr", "hi"]))
def test_any_bytes_give_progress_or_a_protocol_error(frames, to_input, letters):
    """I25"""
    handshake = machine()
    drive(handshake, letters)
    try:
        (handshake.on_input if to_input else handshake.on_handshake)(frames)
    except ProtocolError:
        return
    assert handshake.phase in Phase


def test_a_stranger_is_refused():
    with pytest.raises(ProtocolError, match="stranger"):
        machine().on_handshake([b"\1\0", said("HELLO")[1]])
