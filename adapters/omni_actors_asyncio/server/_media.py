"""Images and sounds in a request, measured by their headers before anybody decodes them.

A decompression bomb is small as it is sent; what it will be is said in its header. Where a header can lie (a WAV says
its length twice, and its rate too), a lie is refused. Nothing here holds state.
"""

from __future__ import annotations

import binascii
import io
import struct
from typing import TYPE_CHECKING

import attrs

from ._refusals import HttpError

if TYPE_CHECKING:
    from ._limits import HttpLimits

__all__ = ["check_data_url", "check_encoded", "check_image"]

_FORMATS = {"image": "png, jpeg, webp or gif", "audio": "wav, flac, mp3 or ogg"}
_JPEG_SIZES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_JPEG_BARE = frozenset(range(0xD0, 0xD9)) | {0x01}
_WAV_FORMS = {1: "PCM", 3: "float", 6: "A-law", 7: "µ-law", 0xFFFE: "extensible"}
_MAX_CHUNKS = 256
"""Segments of a JPEG, chunks of a WAV: before the interesting one there are a few."""


@attrs.frozen
class _Measure:
    """``size``: pixels of an image, seconds of a sound."""

    kind: str
    size: float


def check_data_url(url: str, limits: HttpLimits, param: str) -> None:
    """A ``data:`` URL. Raises HttpError (400). Other URLs are no business of this module."""
    if url[:5].lower() != "data:":
        return
    if len(url) > limits.base64_chars:
        raise _too_long(len(url), limits, param)
    head, comma, data = url.partition(",")
    if not comma or not head.lower().endswith(";base64"):
        raise HttpError(400, "a data: URL is data:<type>;base64,<data>", param=param)
    kind = head[5:].partition("/")[0].lower()
    _check(data, kind if kind in _FORMATS else None, limits, param)


def check_encoded(data: str, kind: str | None, limits: HttpLimits, param: str) -> None:
    """Bare base64: of an ``image``, an ``audio``, or of anything (None). Raises HttpError (400)."""
    if len(data) > limits.base64_chars:
        raise _too_long(len(data), limits, param)
    _check(data, kind, limits, param)


def check_image(raw: bytes, limits: HttpLimits, param: str) -> None:
    """A file as it is; what it is called does not matter. Raises HttpError (400)."""
    _check_raw(raw, "image", limits, param)


def _check(data: str, kind: str | None, limits: HttpLimits, param: str) -> None:
    try:
        raw = binascii.a2b_base64(data, strict_mode=True)
    except ValueError as error:
        raise HttpError(400, f"not base64: {error}", param=param) from error
    _check_raw(raw, kind, limits, param)


def _check_raw(raw: bytes, kind: str | None, limits: HttpLimits, param: str) -> None:
    try:
        found = _measured(raw)
    except (struct.error, IndexError) as error:
        raise HttpError(400, "the header of this file is cut off", param=param) from error
    except HttpError as error:
        raise attrs.evolve(error, param=param) from error
    if kind is not None and (found is None or found.kind != kind):
        raise HttpError(400, f"this is no {kind} in {_FORMATS[kind]}", param=param)
    if found is not None:
        _within(found, limits, param)


def _within(found: _Measure, limits: HttpLimits, param: str) -> None:
    most = limits.image_pixels if found.kind == "image" else limits.audio_s
    if found.size > most:
        unit = "pixels" if found.kind == "image" else "s"
        raise HttpError(400, f"this {found.kind} has {found.size:.0f} {unit}; {most:.0f} are allowed", param=param)


def _too_long(size: int, limits: HttpLimits, param: str) -> HttpError:
    return HttpError(400, f"{size} characters of base64; {limits.base64_chars} are allowed", param=param)


def _measured(raw: bytes) -> _Measure | None:
    """None for what is none of the formats that we know. Raises struct.error or IndexError where it is cut off."""
    if raw.startswith(b"\x89PNG\r\n\x1a\n"):
        return _image(*struct.unpack_from(">II", raw, 16))
    if raw.startswith((b"GIF87a", b"GIF89a")):
        return _image(*struct.unpack_from("<HH", raw, 6))
    if raw.startswith(b"\xff\xd8"):
        return _image(*_jpeg(raw))
    if raw.startswith(b"RIFF") and raw[8:12] == b"WEBP":
        return _image(*_webp(raw))
    if raw.startswith(b"RIFF") and raw[8:12] == b"WAVE":
        return _Measure("audio", _wav_seconds(raw))
    if raw.startswith((b"fLaC", b"OggS", b"ID3")) or (raw[:1] == b"\xff" and raw[1] & 0xE0 == 0xE0):
        return _Measure("audio", _compressed_seconds(raw))
    return None


def _image(width: int, height: int) -> _Measure:
    if not width or not height:
        raise HttpError(400, "an image without pixels")
    return _Measure("image", width * height)


def _jpeg(raw: bytes) -> tuple[int, int]:
    at = 2
    for _ in range(_MAX_CHUNKS):
        if raw[at] != 0xFF:
            break
        marker = raw[at + 1]
        if marker in _JPEG_SIZES:
            height, width = struct.unpack_from(">HH", raw, at + 5)
            return width, height
        at += 1 if marker == 0xFF else 2 if marker in _JPEG_BARE else 2 + struct.unpack_from(">H", raw, at + 2)[0]
    raise HttpError(400, "a jpeg without a size")


def _webp(raw: bytes) -> tuple[int, int]:
    form = raw[12:16]
    if form == b"VP8X":
        width, height = (int.from_bytes(raw[at : at + 3], "little") + 1 for at in (24, 27))
        return width, height
    if form == b"VP8L":
        bits = struct.unpack_from("<I", raw, 21)[0]
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if form == b"VP8 ":
        width, height = struct.unpack_from("<HH", raw, 26)
        return width & 0x3FFF, height & 0x3FFF
    raise HttpError(400, "a webp without a size")


def _wav_seconds(raw: bytes) -> float:
    at, rate = 12, 0
    for _ in range(_MAX_CHUNKS):
        name, size = struct.unpack_from("<4sI", raw, at)
        if name == b"fmt ":
            rate = _wav_bytes_per_s(struct.unpack_from("<HHIIHH", raw, at + 8))
        elif name == b"data":
            return _wav_length(rate, size, len(raw) - at - 8)
        at += 8 + size + size % 2
    raise HttpError(400, "a wav without samples")


def _wav_bytes_per_s(form: tuple[int, ...]) -> int:
    tag, channels, rate, per_s, align, bits = form
    if tag not in _WAV_FORMS:
        raise HttpError(400, f"a wav is {', '.join(_WAV_FORMS.values())}, not of kind {tag}")
    if not (1 <= channels <= 16 and 4000 <= rate <= 384_000 and bits in (8, 16, 24, 32, 64)):
        raise HttpError(400, f"a wav of {channels} channels, {rate} Hz and {bits} bits cannot be read")
    if align != channels * bits // 8 or per_s != rate * align:
        raise HttpError(400, "the wav's header contradicts itself: its bytes per second are not its samples'")
    return per_s


def _wav_length(per_s: int, declared: int, there: int) -> float:
    """Of a stream the length was not known: 0 or all ones."""
    if not per_s:
        raise HttpError(400, "a wav whose samples come before their format")
    if declared in (0, 0xFFFFFFFF):
        return there / per_s
    if declared > there:
        raise HttpError(400, f"the wav's header says {declared} bytes of samples; {there} are there")
    return declared / per_s


def _compressed_seconds(raw: bytes) -> float:
    try:
        import soundfile
    except ImportError as error:
        raise HttpError(400, "sounds other than wav cannot be read here (soundfile is missing)") from error
    try:
        found = soundfile.info(io.BytesIO(raw))
    except soundfile.LibsndfileError as error:
        raise HttpError(400, "this sound cannot be read") from error
    return float(found.frames / found.samplerate)
