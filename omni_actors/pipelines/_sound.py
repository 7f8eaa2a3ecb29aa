"""Sound as a file: 16 bit WAV that is complete or absent (``_files``). Standard library only; no state."""

from __future__ import annotations

import sys
import wave
from array import array
from typing import TYPE_CHECKING, Any

from omni_actors._files import complete_file, usage_errors

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

__all__ = ["float_samples", "write_wav"]


def float_samples(pieces: Iterable[Any]) -> array[float]:
    """Float32 tensors of shape (samples,), in order, as one array. Takes what has ``.data`` bytes, and ndarrays."""
    samples = array("f")
    for piece in pieces:
        data = piece.data if isinstance(getattr(piece, "data", None), bytes | memoryview) else piece
        samples.frombytes(memoryview(data).cast("B"))
    if sys.byteorder == "big":
        samples.byteswap()
    return samples


def write_wav(file: Path, samples: array[float], sample_rate: int) -> float:
    """Write mono 16 bit PCM, whole or not at all; returns its seconds. Blocking: 0.1 s per 10 s of sound.

    ``samples`` in [-1, 1], clipped; ``sample_rate`` in Hz. Raises UsageError naming the folder: disk full, no access.
    """
    pcm = array("h", (int(max(-1.0, min(1.0, sample)) * 32767) for sample in samples))
    if sys.byteorder == "big":
        pcm.byteswap()
    with usage_errors(file), complete_file(file) as stream, wave.open(stream, "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(sample_rate)
        sound.writeframes(pcm.tobytes())
    return len(samples) / sample_rate
