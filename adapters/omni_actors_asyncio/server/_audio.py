"""Sound for clients: the runtime's float32 samples as 16 bit PCM, in a container where one is wanted.

``pcm``, ``wav`` and ``mp3`` go out as they are made. ``flac`` says its length in front, and ``opus`` packs seconds
into a page: those go out whole, when they are complete. All are mono. State: one request's encoder, in its task.
"""

from __future__ import annotations

import io
import struct
from typing import Any, Protocol

import numpy as np

from ._refusals import HttpError

__all__ = ["CONTENT_TYPES", "Encoder", "encoder", "pcm16", "wav"]

CONTENT_TYPES = {
    "wav": "audio/wav",
    "pcm": "audio/pcm",
    "flac": "audio/flac",
    "mp3": "audio/mpeg",
    "opus": "audio/ogg",
}
_SOUNDFILE = {"flac": ("FLAC", "PCM_16"), "mp3": ("MP3", "MPEG_LAYER_III"), "opus": ("OGG", "OPUS")}
_OPUS_RATES = (8000, 12000, 16000, 24000, 48000)
_ENDLESS = 0xFFFFFFFF
"""The sizes in the header of a WAV whose length is not known yet; players read on until the end."""


class Encoder(Protocol):
    """``add`` and ``end`` return the bytes that may go out."""

    def add(self, pcm: bytes) -> bytes:
        """16 bit little endian samples."""

    def end(self) -> bytes:
        """The rest."""


def pcm16(samples: Any) -> bytes:
    """A piece of sound (float32 in [-1, 1], clipped) as 16 bit little endian."""
    data = getattr(samples, "data", samples)
    floats = np.frombuffer(data if isinstance(data, bytes | memoryview) else memoryview(samples), dtype="<f4")
    whole: bytes = (np.clip(np.nan_to_num(floats), -1.0, 1.0) * 32767).astype("<i2").tobytes()
    return whole


def wav(pcm: bytes, sample_rate: int) -> bytes:
    """A whole WAV file."""
    return _wav_header(sample_rate, len(pcm)) + pcm


def encoder(name: str, sample_rate: int) -> Encoder:
    """Raises HttpError (400) for what cannot be made here."""
    if name == "pcm":
        return _Plain(b"")
    if name == "wav":
        return _Plain(_wav_header(sample_rate, _ENDLESS))
    return (_Mp3 if name == "mp3" else _Whole)(name, sample_rate)


def _wav_header(sample_rate: int, size: int) -> bytes:
    form = struct.pack("<HHIIHH", 1, 1, sample_rate, 2 * sample_rate, 2, 16)
    whole = min(_ENDLESS, size + 36)
    return (
        b"RIFF"
        + struct.pack("<I", whole)
        + b"WAVEfmt "
        + struct.pack("<I", 16)
        + form
        + b"data"
        + struct.pack("<I", size)
    )


class _Plain:
    def __init__(self, head: bytes) -> None:
        self._head = head

    def add(self, pcm: bytes) -> bytes:
        head, self._head = self._head, b""
        return head + pcm

    def end(self) -> bytes:
        return self.add(b"")


class _Whole:
    def __init__(self, name: str, sample_rate: int) -> None:
        try:
            import soundfile
        except ImportError as error:
            raise HttpError(400, f"{name} cannot be made here (soundfile is missing): wav or pcm") from error
        if name == "opus" and sample_rate not in _OPUS_RATES:
            raise HttpError(400, f"opus has no sample rate of {sample_rate} Hz: wav, pcm or flac")
        self._sound = io.BytesIO()
        container, subtype = _SOUNDFILE[name]
        self._file = soundfile.SoundFile(self._sound, "w", sample_rate, 1, format=container, subtype=subtype)

    def add(self, pcm: bytes) -> bytes:
        self._file.write(np.frombuffer(pcm, dtype="<i2"))
        return b""

    def end(self) -> bytes:
        self._file.close()
        return self._sound.getvalue()


class _Mp3(_Whole):
    """Frames, without the one in front that says how many there are: it is written last, and players need it not."""

    def __init__(self, name: str, sample_rate: int) -> None:
        super().__init__(name, sample_rate)
        self._file.write(np.zeros(1, dtype="<i2"))  # writes the frame in front
        self._sent = len(self._sound.getbuffer())

    def add(self, pcm: bytes) -> bytes:
        super().add(pcm)
        return self._news()

    def end(self) -> bytes:
        super().end()
        return self._news()

    def _news(self) -> bytes:
        news = bytes(self._sound.getbuffer()[self._sent :])
        self._sent += len(news)
        return news
