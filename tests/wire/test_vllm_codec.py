"""The codec on vLLM's own structs: golden frames of 0.32, the twin held against it, and untrusted bytes."""

from __future__ import annotations

import warnings

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from omni_actors._errors import InvalidRequest, ProtocolError
from omni_actors.testing._core_wire import FakeAdd, FakeCoreCodec, FakeOutput, FakeOutputs, FakeParams, FakeUtility

pytest.importorskip("vllm")

# Recorded from vLLM 0.32.0's own encoder. A later version may append fields; what is here must keep its place.
GOLDEN_ADD = bytes.fromhex(
    "dc0016a36b2d31920405c0de000aab74656d706572617475726500a473746f7091a27739ae73746f705f746f6b656e5f6964739107aa69676e"
    "6f72655f656f73c3aa6d61785f746f6b656e7304ab6f75747075745f6b696e6401b96f75747075745f746578745f6275666665725f6c656e67"
    "746801b35f616c6c5f73746f705f746f6b656e5f696473920107a96261645f776f72647390b9736b69705f72656164696e675f707265666978"
    "5f6361636865c2c0cb4029000000000000c0c0c0c0c0000003c0c2a36b2d31c0c0c2c0c0"
)
GOLDEN_STEP = bytes.fromhex(
    "990093dc0012a36b2d319109c0c0c0c0c0c0c0c0c0c0c000c0c0c0c0dc0012a36b2d329107c0c0c00007c0c0c0c0c0c000c0c0c0c0dc0012a3"
    "6b2d3390c0c0c003c0c0c0c0c0c0c00091a26161c0c0c0c0cb400c000000000000c0c0c0c0a27631"
)
GOLDEN_ANSWER = bytes.fromhex("990090c0cb40120000000000009305c092c092c3a178c0c0c0c0")
GOLDEN_REFUSAL = bytes.fromhex("990090c0cb40120000000000009306b4536572766572207368757474696e6720646f776ec0c0c0c0c0")
GOLDEN_LOGPROBS = bytes.fromhex(
    "990091dc0012a36b2d3191099493a33c6934920104d8030000000001000000020000000300000093a33c6634920104d8030000000000000000"
    "000000000000000093a33c69349101d60300000000c0c0c0c0c0c0c0c0c0c0c000c0c0c0c0c0cb400c000000000000c0c0c0c0c0"
)


@pytest.fixture(scope="module")
def codec():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from omni_actors.wire.vllm.codec import EngineCoreCodec

        return EngineCoreCodec()


def request():
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind
    from vllm.v1.engine import EngineCoreRequest

    params = SamplingParams(
        temperature=0,
        max_tokens=4,
        stop=["w9"],
        stop_token_ids=[7],
        ignore_eos=True,
        output_kind=RequestOutputKind.DELTA,
    )
    params._all_stop_token_ids = {1, 7}
    return EngineCoreRequest(
        "k-1", [4, 5], None, params, None, 12.5, None, None, None, priority=3, external_req_id="k-1"
    )


def begins_with(array, golden):
    """Later versions append fields to the array and keys to the params; nothing may move."""
    for new, old in zip(array, golden, strict=False):
        if isinstance(old, dict):
            assert new.items() >= old.items()
        else:
            assert new == old
    return len(array) >= len(golden)


def test_an_add_is_what_vllm_0_32_sent(codec):
    kind, body = codec.encode_add(request())
    assert kind == b"\x00"
    assert begins_with(msgspec.msgpack.decode(body), msgspec.msgpack.decode(GOLDEN_ADD))


def test_aborts_and_calls(codec):
    assert codec.encode_abort(("a", "b")) == [b"\x01", b"\x92\xa1a\xa1b"]
    kind, body = codec.encode_utility(7, "is_sleeping", ())
    assert (kind, msgspec.msgpack.decode(body)) == (b"\x03", [0, 7, "is_sleeping", []])


def test_a_step_of_0_32_is_understood(codec):
    from omni_actors.wire.vllm.codec import FINISH_ERROR, rejection

    step = codec.decode_outputs([GOLDEN_STEP])
    first, second, third = step.outputs
    assert (first.request_id, first.new_token_ids, first.finish_reason) == ("k-1", [9], None)
    assert (second.finish_reason, second.stop_reason) == (0, 7)
    assert third.finish_reason == FINISH_ERROR
    assert "send it again" in rejection(third)
    assert (step.timestamp, step.weight_version) == (3.5, "v1")


def test_answers_of_0_32_are_understood(codec):
    answer = codec.decode_outputs([memoryview(GOLDEN_ANSWER)]).utility_output
    assert (answer.call_id, answer.failure_message, answer.result.result) == (5, None, [True, "x"])
    refusal = codec.decode_outputs([GOLDEN_REFUSAL]).utility_output
    assert (refusal.call_id, refusal.failure_message, refusal.result) == (6, "Server shutting down", None)


def test_log_probabilities_of_0_32_are_understood(codec):
    (output,) = codec.decode_outputs([GOLDEN_LOGPROBS]).outputs
    assert output.new_logprobs.logprob_token_ids.tolist() == [[0, 1, 2, 3]]


def test_the_sentinel_is_none(codec):
    assert codec.decode_outputs([b"ENGINE_CORE_DEAD"]) is None
    assert codec.decode_outputs([memoryview(b"ENGINE_CORE_DEAD")]) is None


def test_a_tensor_in_a_frame_of_its_own_comes_back(codec):
    import torch
    from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs
    from vllm.v1.serial_utils import MsgpackEncoder

    tensor = torch.arange(1000, dtype=torch.float32)
    frames = MsgpackEncoder().encode(EngineCoreOutputs(outputs=[EngineCoreOutput("k", [], pooling_output=tensor)]))
    assert len(frames) == 2
    (output,) = codec.decode_outputs([bytes(frame) for frame in frames]).outputs
    assert torch.equal(output.pooling_output, tensor)


@given(frames=st.lists(st.binary(max_size=80), max_size=3))
def test_other_bytes_are_a_protocol_error_and_nothing_else(codec, frames):
    """I25"""
    try:
        codec.decode_outputs(frames)
    except ProtocolError:
        return


@given(golden=st.sampled_from([GOLDEN_STEP, GOLDEN_ANSWER, GOLDEN_LOGPROBS]), data=st.data())
def test_damaged_frames_are_a_message_or_a_protocol_error(codec, golden, data):
    frame = bytearray(golden)
    frame[data.draw(st.integers(0, len(frame) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    cut = data.draw(st.integers(0, len(frame)))
    for damaged in (bytes(frame), bytes(frame[:cut])):
        try:
            codec.decode_outputs([damaged])
        except ProtocolError:
            continue


def test_what_cannot_be_encoded_is_the_callers_fault(codec):
    body = request()
    body.sampling_params.extra_args = {"f": object()}
    with pytest.raises(InvalidRequest, match="cannot carry"):
        codec.encode_add(body)


def test_the_twin_reads_what_vllm_writes(codec):
    """The fake's licence: same frames, other structs."""
    add = msgspec.msgpack.decode(codec.encode_add(request())[1], type=FakeAdd)
    assert (add.request_id, add.prompt_token_ids, add.priority) == ("k-1", [4, 5], 3)
    assert (add.sampling_params.stop, add.sampling_params.stop_token_ids) == (["w9"], [7])
    assert (add.sampling_params.max_tokens, add.sampling_params.output_kind) == (4, 1)
    assert [o.request_id for o in FakeCoreCodec().decode_outputs([GOLDEN_STEP]).outputs] == ["k-1", "k-2", "k-3"]


def test_vllm_reads_what_the_twin_writes(codec):
    from vllm.v1.engine import EngineCoreRequest
    from vllm.v1.serial_utils import MsgpackDecoder

    params = FakeParams(max_tokens=4, stop=["x"], output_kind=1)
    body = FakeAdd("k", [1], None, params, None, 1.0, None, None, None, priority=2, external_req_id="k")
    kind, frame = FakeCoreCodec().encode_add(body)
    decoded = MsgpackDecoder(EngineCoreRequest).decode([frame])
    assert (kind, decoded.request_id, decoded.priority, decoded.external_req_id) == (b"\x00", "k", 2, "k")
    assert (decoded.sampling_params.max_tokens, decoded.sampling_params.stop) == (4, ["x"])

    step = FakeOutputs(
        outputs=[FakeOutput("k", [3], finish_reason=0, stop_reason="x")], utility_output=FakeUtility.answer(1, False)
    )
    real = codec.decode_outputs([msgspec.msgpack.encode(step)])
    assert (real.outputs[0].new_token_ids, real.outputs[0].stop_reason) == ([3], "x")
    assert real.utility_output.result.result is False
