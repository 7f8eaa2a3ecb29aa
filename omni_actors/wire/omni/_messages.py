"""Everything that can be said on the omni stage wire, as frozen tagged structs.

Host → engine: Hello, Submit, Abort, Call, Ping, Stop. Engine → host: Hello, Ready, Output, Progress, Released, Failed,
CallResult, Heartbeat. Structs travel as arrays, so fields may only be added at the end.

*Plain values* are None, booleans, integers of 64 bits, floats, text, bytes, lists, and maps of those, with
``Tensor`` (or an ndarray, which becomes one) wherever a value may stand.
"""

from __future__ import annotations

from typing import Any

import msgspec

from omni_actors.wire.omni._tensor import Tensor

__all__ = [
    "VERSION", "Abort", "Call", "CallResult", "EngineMessage", "Failed", "Heartbeat", "Hello", "HostMessage", "Message",
    "Output", "Ping", "Progress", "Ready", "Released", "Stop", "Submit",
]  # fmt: skip

VERSION = 1
"""The version of the wire: the first byte of every message's first frame."""


class _Struct(msgspec.Struct, frozen=True, array_like=True):
    """What all messages share."""


class Hello(_Struct, frozen=True, tag="hello"):
    """The first word of each side: the engine's on connecting, the host's in answer.

    ``slab`` names the generation's shared memory of ``slab_bytes`` (host) or is empty: tensors travel in frames.
    """

    pid: int = 0
    slab: str = ""
    slab_bytes: int = 0


class Ready(_Struct, frozen=True, tag="ready"):
    """The engine has loaded its model. ``capacity``: leases it works on at once; ``slab``: it has mapped the slab."""

    capacity: int = 1
    slab: bool = False


class Submit(_Struct, frozen=True, tag="submit"):
    """One lease's work: ``prompt`` and ``params`` are plain values. Lower ``priority`` goes first.

    ``index`` is the sample, 0 … n-1.
    """

    key: str
    prompt: Any
    params: dict[str, Any] = {}
    index: int = 0
    priority: int = 0


class Abort(_Struct, frozen=True, tag="abort"):
    """Forget these leases: each live one is answered by its Released (or the Failed that was on its way)."""

    keys: list[str]


class Call(_Struct, frozen=True, tag="call"):
    """Call a public method of the engine's class; answered by one CallResult with the same id."""

    id: int
    method: str
    args: list[Any] = []


class Ping(_Struct, frozen=True, tag="ping"):
    """Answered at once, by the I/O thread, with a Heartbeat that carries ``id``."""

    id: int


class Stop(_Struct, frozen=True, tag="stop"):
    """End now: finish nothing, end every lease, exit with 0."""


class Output(_Struct, frozen=True, tag="output"):
    """One chunk of a lease. ``seq`` counts from 0 without gaps; ``finished``: the last one."""

    key: str
    seq: int
    tensors: dict[str, Tensor] = {}
    meta: dict[str, Any] = {}
    finished: bool = False
    finish_reason: str | None = None


class Progress(_Struct, frozen=True, tag="progress"):
    """``done`` of ``total`` steps of a lease (``total`` 0: unknown), and for how many seconds more (None: unknown).

    ``shown``: its reader asked to be told. ``preview``: what it looks like by now, uint8, shape (height, width, 3).
    """

    key: str
    done: int
    total: int = 0
    eta_s: float | None = None
    shown: bool = False
    preview: Any = None


class Released(_Struct, frozen=True, tag="released"):
    """The engine holds nothing for this lease any more. The last word about it."""

    key: str


class Failed(_Struct, frozen=True, tag="failed"):
    """This lease alone failed, with the engine's words; nothing is held for it. The last word about it.

    ``invalid``: its prompt or params cannot be worked on; the caller's fault, not the engine's.
    """

    key: str
    error: str
    invalid: bool = False


class CallResult(_Struct, frozen=True, tag="result"):
    """The answer to a Call: a plain ``value``, or the engine's words in ``error``."""

    id: int
    value: Any = None
    error: str | None = None


class Heartbeat(_Struct, frozen=True, tag="heartbeat"):
    """A sign of life of the engine's I/O thread, sent each second while work is owed, and in answer to a Ping.

    ``busy_s``: for how many seconds the engine's class has been inside one step (None: it is not); ``progress`` counts
    what it has ever made. A frozen process says nothing; a stuck one shows a growing ``busy_s`` and the same
    ``progress``. ``ping`` is the answered Ping's id, or 0.
    """

    busy_s: float | None = None
    progress: int = 0
    ping: int = 0


HostMessage = Hello | Submit | Abort | Call | Ping | Stop
EngineMessage = Hello | Ready | Output | Progress | Released | Failed | CallResult | Heartbeat
Message = HostMessage | EngineMessage
