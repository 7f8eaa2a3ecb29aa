"""The pure-msgspec twin of the wire: round trips, and nothing but ProtocolError for other bytes. No vLLM here."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from omni_actors._errors import InvalidRequest, ProtocolError
from omni_actors.testing._core_wire import FakeCoreCodec, FakeOutput, FakeOutputs, FakeParams, FakeText, FakeUtility
from omni_actors.wire.vllm.codec import DEAD

OUTPUTS = st.builds(
    FakeOutput,
    st.text(max_size=8),
    st.lists(st.integers(0, 2**31), max_size=5),
    finish_reason=st.none() | st.integers(0, 4),
    stop_reason=st.none() | st.integers(0, 9) | st.text(max_size=4),
)
ANSWERS = st.builds(FakeUtility.answer, st.integers(-2, 2**63 - 1), st.booleans() | st.text(max_size=4) | st.none())
STEPS = st.builds(
    FakeOutputs,
    outputs=st.lists(OUTPUTS, max_size=4),
    timestamp=st.floats(0, 1e6),
    utility_output=st.none() | ANSWERS,
)


@given(STEPS)
def test_a_step_survives_the_wire(step):
    assert FakeCoreCodec().decode_outputs([msgspec.msgpack.encode(step)]) == step


@given(st.lists(st.binary(max_size=60), max_size=3))
def test_other_bytes_are_a_protocol_error_and_nothing_else(frames):
    """I25"""
    try:
        FakeCoreCodec().decode_outputs(frames)
    except ProtocolError:
        return


@given(STEPS, st.data())
def test_damaged_frames_are_a_message_or_a_protocol_error(step, data):
    frame = bytearray(msgspec.msgpack.encode(step))
    place = data.draw(st.integers(0, len(frame) - 1))
    frame[place] ^= 1 << data.draw(st.integers(0, 7))
    cut = data.draw(st.integers(0, len(frame)))
    for damaged in (bytes(frame), bytes(frame[:cut])):
        try:
            FakeCoreCodec().decode_outputs([damaged])
        except ProtocolError:
            continue


def test_the_sentinel_is_none():
    assert FakeCoreCodec().decode_outputs([DEAD]) is None


def test_what_cannot_be_encoded_is_the_callers_fault():
    with pytest.raises(InvalidRequest):
        FakeCoreCodec().encode_utility(0, "echo", [object()])


class Sink:
    def __init__(self):
        self.outputs = []

    def put(self, output):
        self.outputs.append(output.outputs[0])

    def put_text(self, text, token_ids):
        self.outputs.append(SimpleNamespace(text=text, token_ids=token_ids, finish_reason=None))


@given(st.text("ab.", max_size=30), st.lists(st.text("ab.", min_size=1, max_size=3), max_size=2), st.integers(1, 4))
def test_streamed_text_is_the_text_before_the_first_stop_string(text, stops, per_step):
    """I6: pieces add up, held-back text included, however the tokens are cut into steps."""
    processor, sink = FakeText(), Sink()
    body = type("Body", (), {"request_id": "k", "sampling_params": FakeParams(stop=stops, output_kind=1)})
    processor.add(body, 0, sink)
    tokens = [ord(character) for character in text] or [97]
    steps = [tokens[i : i + per_step] for i in range(0, len(tokens), per_step)]
    for number, step in enumerate(steps):
        last = number == len(steps) - 1
        processor.process([FakeOutput("k", step, finish_reason=1 if last else None)], FakeOutputs())

    whole = "".join(map(chr, tokens))
    ends = [whole[:end].index(stop) for end in range(len(whole) + 1) for stop in stops if stop in whole[:end]]
    assert "".join(choice.text for choice in sink.outputs) == (whole[: ends[0]] if ends else whole)
    assert sink.outputs[-1].finish_reason == ("stop" if ends else "length")


def test_a_simulation_imports_neither_vllm_nor_torch():
    program = (
        "import sys, omni_actors.stages.vllm, omni_actors.testing._core_kind;"
        "sys.exit(any(name in sys.modules for name in ('vllm', 'torch', 'transformers', 'asyncio')))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
