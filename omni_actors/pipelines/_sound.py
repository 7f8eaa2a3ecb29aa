"""Sound as a file: 16 bit WAV that is complete or absent. Standard library only; no state.

A file is written under a temporary name in its own folder, synced, and renamed. What the file system refuses is
known as early as it can be: ``ready_folder`` is called before anything slow is started.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
import wave
from array import array
from typing import TYPE_CHECKING, Any

from omni_actors._errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path
    from typing import BinaryIO

__all__ = ["float_samples", "ready_folder", "write_wav"]


def float_samples(pieces: Iterable[Any]) -> array[float]:
    """Float32 tensors of shape (samples,), in order, as one array. Takes what has ``.data`` bytes, and ndarrays."""
    samples = array("f")
    for piece in pieces:
        data = piece.data if isinstance(getattr(piece, "data", None), bytes | memoryview) else piece
        samples.frombytes(memoryview(data).cast("B"))
    if sys.byteorder == "big":
        samples.byteswap()
    return samples


def ready_folder(folder: Path, needed_bytes: int = 4 << 20) -> None:
    """Make ``folder`` and try it. Raises UsageError naming it: not a folder, not writable, less than needed free."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            free = shutil.disk_usage(folder).free
    except OSError as error:
        raise UsageError(f"cannot write into the folder {folder}: {error.strerror or error}") from error
    if free < needed_bytes:
        raise UsageError(f"the disk of the folder {folder} is full: {free >> 10} KiB free, {needed_bytes >> 10} needed")


def write_wav(file: Path, samples: array[float], sample_rate: int) -> float:
    """Write mono 16 bit PCM, whole or not at all; returns its seconds. Blocking: 0.1 s per 10 s of sound.

    ``samples`` in [-1, 1], clipped; ``sample_rate`` in Hz. Raises UsageError naming the folder: disk full, no access.
    """
    pcm = array("h", (int(max(-1.0, min(1.0, sample)) * 32767) for sample in samples))
    if sys.byteorder == "big":
        pcm.byteswap()
    try:
        with _replacing(file) as stream, wave.open(stream, "wb") as sound:
            sound.setnchannels(1)
            sound.setsampwidth(2)
            sound.setframerate(sample_rate)
            sound.writeframes(pcm.tobytes())
    except OSError as error:
        words = f"cannot write {file.name} into the folder {file.parent}: {error.strerror or error}"
        raise UsageError(words) from error
    return len(samples) / sample_rate


@contextlib.contextmanager
def _replacing(file: Path) -> Iterator[BinaryIO]:
    """A stream whose bytes are ``file`` once the block has ended well, durably; otherwise nothing is left of them."""
    descriptor, name = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
    try:
        with os.fdopen(descriptor, "wb") as stream:
            yield stream
            stream.flush()
            os.fchmod(stream.fileno(), 0o644)
            os.fsync(stream.fileno())
        os.replace(name, file)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
        raise
    _sync_folder(file.parent)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
