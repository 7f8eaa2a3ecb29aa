"""The handshake of vLLM's EngineCore at its edges: every order of four words, what a refusal says, what it leaves."""

from __future__ import annotations

import itertools

import msgspec
import pytest

from omni_actors._errors import ProtocolError
from omni_actors.wire.vllm import Handshake, Phase, ReadyResponse

ENGINE = b"\0\0"


def said(status):
    return [ENGINE, msgspec.msgpack.encode({"status": status})]


def machine(**more):
    return Handshake(input_address="mem://i", output_address="mem://o", **more)


def after(*words):
    """A handshake that has heard these: a status on the handshake socket, or ``response`` on the input socket."""
    handshake = machine()
    for word in words:
        hear(handshake, word)
    return handshake


def hear(handshake, word):
    if word == "response":
        return handshake.on_input([ENGINE, b""])
    return handshake.on_handshake(said(word))


LEGAL = {
    (): Phase.EXPECT_HELLO,
    ("HELLO",): Phase.LOADING,
    ("HELLO", "READY"): Phase.NAMED,
    ("HELLO", "response"): Phase.CONNECTED,
    ("HELLO", "READY", "response"): Phase.READY,
    ("HELLO", "response", "READY"): Phase.READY,
}


@pytest.mark.parametrize(("words", "next_word"), list(itertools.product(LEGAL, ("HELLO", "READY", "response", "BYE"))))
def test_each_phase_takes_its_words_and_no_other(words, next_word):
    handshake = after(*words)
    assert handshake.phase is LEGAL[words]
    if (*words, next_word) in LEGAL:
        hear(handshake, next_word)
        assert handshake.phase is LEGAL[*words, next_word]
        return
    place = "spoke on the input socket" if next_word == "response" else f"said '{next_word}' on the handshake socket"
    with pytest.raises(ProtocolError, match=f"the engine {place} while {LEGAL[words].value}"):
        hear(handshake, next_word)
    assert handshake.phase is LEGAL[words], "a refused word changes nothing"


def test_only_hello_is_answered():
    handshake = machine()
    assert hear(handshake, "HELLO") is not None
    assert hear(handshake, "READY") is None
    assert hear(handshake, "response") is None


def test_the_engine_serves_further_clients_in_the_order_they_are_named():
    _, init = machine(other_clients=[("i1", "o1"), ("i2", "o2")]).on_handshake(said("HELLO"))
    assert msgspec.msgpack.decode(init)["addresses"] == {
        "inputs": ["mem://i", "i1", "i2"],
        "outputs": ["mem://o", "o1", "o2"],
    }


def test_an_engine_of_another_rank_is_known_by_its_name_alone():
    handshake = machine(identity=b"\7\0")
    with pytest.raises(ProtocolError, match="a stranger on the handshake socket"):
        handshake.on_handshake(said("HELLO"))
    identity, _ = handshake.on_handshake([memoryview(b"\7\0"), memoryview(said("HELLO")[1])])
    assert identity == b"\7\0"
    with pytest.raises(ProtocolError, match="a stranger on the input socket"):
        handshake.on_input([ENGINE, b""])


def test_what_the_engine_found_out_is_kept_and_what_it_did_not_say_is_none():
    nothing = dict.fromkeys(ReadyResponse.__struct_fields__) | {"supports_lora": False}
    handshake = after("HELLO")
    assert msgspec.structs.asdict(handshake.response) == nothing

    found = {
        "max_model_len": 1, "num_gpu_blocks": 2, "block_size": 3, "vllm_version": "0.32.0", "max_num_seqs": 4,
        "max_num_batched_tokens": 5, "dtype": "bfloat16", "supports_lora": True, "mamba_block_size": 6,
        "effective_attention_block_size": 7, "kv_cache_size_tokens": 8, "kv_cache_max_concurrency": 9.5,
    }  # fmt: skip
    handshake.on_input([ENGINE, msgspec.msgpack.encode(found | {"of_a_newer_version": [1]})])
    assert msgspec.structs.asdict(handshake.response) == found
    assert msgspec.structs.asdict(after("HELLO", "response").response) == nothing
    with pytest.raises(AttributeError, match="immutable"):
        handshake.response.dtype = "float32"
    with pytest.raises(TypeError, match="positional"):
        ReadyResponse(1)


@pytest.mark.parametrize(
    "body",
    [b"", b"\xc1", b"\x91\xa5HELLO", b"\x81\xa6status\xa2\xff\xfe", b"\x81\xa1x" + b"\x91" * 100_000],
    ids=["empty", "no msgpack", "an array", "no utf-8", "too deep"],
)
def test_what_cannot_be_read_is_named_with_its_socket(body):
    handshake = machine()
    with pytest.raises(ProtocolError, match="undecodable message on the handshake socket"):
        handshake.on_handshake([ENGINE, body])
    assert handshake.phase is Phase.EXPECT_HELLO

    if body:
        handshake = after("HELLO")
        with pytest.raises(ProtocolError, match="undecodable message on the input socket"):
            handshake.on_input([ENGINE, body.replace(b"\xa6status", b"\xa5dtype")])
        assert (handshake.phase, handshake.response.dtype) == (Phase.LOADING, None)


@pytest.mark.parametrize("frames", [[], [ENGINE], [ENGINE, b"", b""]])
def test_a_message_has_two_frames(frames):
    handshake = after("HELLO")
    for hears, socket in ((handshake.on_handshake, "handshake"), (handshake.on_input, "input")):
        with pytest.raises(ProtocolError, match=f"{len(frames)} frames on the {socket} socket where 2 were expected"):
            hears(frames)


def test_a_long_word_is_cut_in_the_refusal():
    with pytest.raises(ProtocolError) as caught:
        machine().on_handshake(said("x" * 500))
    assert "'" + "x" * 40 + "'" in str(caught.value)
