"""Messages to frames and back.

The first frame is one byte of protocol version and a msgpack array; each tensor is one further frame, and stands in the
first as an extension value (index, dtype, shape). Every further frame is named exactly once, in order. ``decode`` of
any bytes gives a message or ``ProtocolError``, nothing else (I25).
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import msgspec

from omni_actors._errors import ProtocolError
from omni_actors.wire.omni._messages import VERSION, Message
from omni_actors.wire.omni._tensor import Tensor

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["MAX_FRAMES", "MAX_HEAD_BYTES", "Frame", "decode", "encode"]

Frame = bytes | memoryview

MAX_HEAD_BYTES = 16 << 20
"""Bound of the first frame: what is larger than this should have been a tensor."""

MAX_FRAMES = 1024
"""Bound of the frames of one message, the first included."""

_TENSOR_CODE = 1
_VERSION_BYTE = bytes([VERSION])


class _TensorHead(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    index: int
    dtype: str
    shape: tuple[int, ...]


_encode_head = msgspec.msgpack.Encoder().encode
_decode_head = msgspec.msgpack.Decoder(_TensorHead).decode
_encode_plain = msgspec.msgpack.Encoder().encode

# What msgspec and our hook raise for bytes that are not a message (RecursionError: nested too deeply).
_UNDECODABLE = (ValueError, TypeError, OverflowError, RecursionError)


def encode(message: Message) -> list[Frame]:
    """The frames of a message. Tensor bytes are not copied.

    Raises TypeError or ValueError, in words for the user, for what is not a plain value (see ``_messages``).
    """
    try:
        frames = [_VERSION_BYTE + _encode_plain(message)]
    except TypeError:
        return _encode_with_tensors(message)
    except (OverflowError, RecursionError) as error:
        raise ValueError(f"cannot be sent: {error}") from None
    return _bounded(frames)


def _encode_with_tensors(message: Message) -> list[Frame]:
    frames: list[Frame] = [b""]

    def hook(value: Any) -> msgspec.msgpack.Ext:
        tensor = _as_tensor(value)
        head = _TensorHead(len(frames), tensor.dtype, tensor.shape)
        frames.append(tensor.data)
        return msgspec.msgpack.Ext(_TENSOR_CODE, _encode_head(head))

    try:
        frames[0] = _VERSION_BYTE + msgspec.msgpack.Encoder(enc_hook=hook).encode(message)
    except (OverflowError, RecursionError) as error:
        raise ValueError(f"cannot be sent: {error}") from None
    return _bounded(frames)


def _as_tensor(value: Any) -> Tensor:
    if isinstance(value, Tensor):
        return value
    # Seen by its protocol, so that numpy is only imported where somebody has made an array with it.
    if hasattr(value, "__array_interface__"):
        return Tensor.from_numpy(value)
    raise TypeError(f"cannot send a value of type {type(value).__name__}")


def _bounded(frames: Sequence[Frame]) -> list[Frame]:
    if len(frames[0]) > MAX_HEAD_BYTES:
        raise ValueError(f"plain values of {len(frames[0])} bytes; the limit is {MAX_HEAD_BYTES}, use a tensor")
    if len(frames) > MAX_FRAMES:
        raise ValueError(f"{len(frames) - 1} tensors in one message; the limit is {MAX_FRAMES - 1}")
    return list(frames)


def decode(frames: Sequence[Frame]) -> Message:
    """The message of these frames. Tensors are views of the frames. Raises ProtocolError, nothing else."""
    if not frames or len(frames) > MAX_FRAMES or len(frames[0]) > MAX_HEAD_BYTES:
        raise ProtocolError(f"a message of {len(frames)} frames, the first of {len(frames[0]) if frames else 0} bytes")
    head = memoryview(frames[0])
    if head[:1] != _VERSION_BYTE:
        spoken = head[0] if len(head) else "nothing"
        raise ProtocolError(f"the peer speaks version {spoken} of the omni stage wire, we speak {VERSION}")
    try:
        return _reader.read(head[1:], frames)
    except _UNDECODABLE as error:
        raise ProtocolError(f"undecodable message: {error}") from None


class _Reader(threading.local):
    """One decoder per thread, since making one costs more than using it. Owns the frames of the message being read."""

    def __init__(self) -> None:
        self._frames: Sequence[Frame] = ()
        self._taken = 1
        self._decode = msgspec.msgpack.Decoder(Message, ext_hook=self._tensor).decode

    def read(self, head: memoryview, frames: Sequence[Frame]) -> Message:
        self._frames, self._taken = frames, 1
        try:
            message = self._decode(head)
        finally:
            self._frames = ()
        if self._taken != len(frames):
            raise ValueError(f"{len(frames) - self._taken} frames belong to no tensor")
        return message

    def _tensor(self, code: int, data: memoryview) -> Tensor:
        if code != _TENSOR_CODE:
            raise ValueError(f"unknown extension {code}")
        ref = _decode_head(data)
        if ref.index != self._taken or ref.index >= len(self._frames):
            raise ValueError(f"a tensor names frame {ref.index}, expected {self._taken} of {len(self._frames)}")
        self._taken += 1
        return Tensor(ref.dtype, ref.shape, memoryview(self._frames[ref.index]).toreadonly())


_reader = _Reader()
