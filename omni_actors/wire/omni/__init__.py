"""The omni stage wire: our own protocol between a stage client (host) and an engine process. Sans-I/O.

Three files: ``_messages`` says what can be said, ``_codec`` how it looks in frames, ``_state`` when it may be said.
"""

from __future__ import annotations

from omni_actors.wire.omni._codec import MAX_FRAMES, MAX_HEAD_BYTES, Frame, decode, encode
from omni_actors.wire.omni._messages import (
    VERSION,
    Abort,
    Call,
    CallResult,
    Failed,
    Heartbeat,
    Hello,
    Message,
    Output,
    Ping,
    Progress,
    Ready,
    Released,
    Stop,
    Submit,
)
from omni_actors.wire.omni._state import MAX_PENDING_CALLS, EngineSide, HostSide, LeaseState, State
from omni_actors.wire.omni._tensor import DTYPES, MAX_DIMS, Tensor

__all__ = [
    "DTYPES", "MAX_DIMS", "MAX_FRAMES", "MAX_HEAD_BYTES", "MAX_PENDING_CALLS", "VERSION",
    "Abort", "Call", "CallResult", "EngineSide", "Failed", "Frame", "Heartbeat", "Hello", "HostSide", "LeaseState",
    "Message", "Output", "Ping", "Progress", "Ready", "Released", "State", "Stop", "Submit", "Tensor",
    "decode", "encode",
]  # fmt: skip
