"""A sound file holds what was said, whole or not at all, and what the disk refuses is said with the folder's name."""

import wave
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omni_actors._errors import UsageError
from omni_actors.cli._draw import envelope, sparkline
from omni_actors.pipelines._sound import float_samples, write_wav
from omni_actors.wire.omni import Tensor


@given(st.lists(st.floats(width=32, allow_nan=True, allow_infinity=True), max_size=50))
def test_what_is_written_can_be_read_back(tmp_path_factory, values):
    file = tmp_path_factory.mktemp("out") / "a.wav"
    assert write_wav(file, array("f", values), 8000) == len(values) / 8000
    with wave.open(str(file)) as sound:
        assert sound.getparams()[:4] == (1, 2, 8000, len(values))
        read = array("h", sound.readframes(len(values)))
    for value, written in zip(values, read, strict=True):
        clipped = max(-1.0, min(1.0, value))
        assert abs(written - clipped * 32767) <= 1


def test_pieces_are_joined_in_order():
    pieces = [Tensor("float32", (2,), array("f", [0.0, 0.5]).tobytes()), array("f", [1.0])]
    assert list(float_samples(pieces)) == [0.0, 0.5, 1.0]


def test_when_the_disk_fills_the_old_file_stays_and_nothing_else(tmp_path, room_for):
    file = tmp_path / "answer.wav"
    file.write_bytes(b"old")
    with room_for(4096), pytest.raises(UsageError, match=str(tmp_path)):
        write_wav(file, array("f", [0.1] * 100_000), 24_000)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"answer.wav": b"old"}


def test_a_wave_is_seen():
    loud_in_the_middle = [0.0] * 100 + [0.5, -0.5] * 50 + [0.0] * 100
    assert sparkline(envelope(loud_in_the_middle, 3), low=0.0) == "▁█▁"
    assert sparkline([]) == ""
    assert sparkline([2.0, 2.0]) == "▁▁"


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=3000), st.integers(1, 40))
def test_an_envelope_never_exceeds_the_loudest_sample(samples, buckets):
    found = envelope(samples, buckets)
    assert len(found) <= buckets
    assert max(found) <= max(abs(sample) for sample in samples) + 1e-9
