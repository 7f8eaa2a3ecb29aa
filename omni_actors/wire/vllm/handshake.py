"""The handshake of vLLM's EngineCore, as one table.

Theory. An engine comes up behind three sockets of ours. It says HELLO on the *handshake* socket and gets the addresses
of the other two; then it loads, for seconds or for minutes. When it is done it says two things on two sockets: its
ready response on the *input* socket (from then on that ROUTER can address it) and READY on the handshake socket. The
two travel apart, so either may arrive first; only both together mean that work can be sent.

::

    phase          said on the handshake socket        said on the input socket
    ------------   ---------------------------------   -----------------------------------
    EXPECT_HELLO   HELLO → LOADING, reply with init    -
    LOADING        READY → NAMED                       ready response → CONNECTED
    CONNECTED      READY → READY                       -
    NAMED          -                                   ready response → READY
    READY          -                                   -

A dash, another identity, other bytes: ProtocolError, and the phase stays. The machine owns nothing but its phase and
the engine's response; it never waits. Messages are msgpack maps here (everywhere else on this wire they are arrays).
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from omni_actors._errors import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["ENGINE_IDENTITY", "Handshake", "Phase", "ReadyResponse"]

_T = TypeVar("_T")

ENGINE_IDENTITY = (0).to_bytes(2, "little")
"""Every engine has sockets of its own, so each is rank 0 of its own world."""


class Phase(enum.Enum):
    """Where the handshake stands; the rows of the table above."""

    EXPECT_HELLO = "expect hello"
    LOADING = "loading"
    CONNECTED = "connected"
    NAMED = "named"
    READY = "ready"


class ReadyResponse(msgspec.Struct, frozen=True, kw_only=True):
    """What the engine found out while it loaded. The front-end's own config follows it (``None``: not said).

    Lengths in tokens. Unknown fields of newer engines are ignored; an empty message is an empty response.
    """

    max_model_len: int | None = None
    num_gpu_blocks: int | None = None
    block_size: int | None = None
    mamba_block_size: int | None = None
    effective_attention_block_size: int | None = None
    kv_cache_size_tokens: int | None = None
    kv_cache_max_concurrency: float | None = None
    vllm_version: str | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    dtype: str | None = None
    supports_lora: bool = False


class _Status(msgspec.Struct, frozen=True):
    status: str
    local: bool = True
    headless: bool = False


_SAID: dict[tuple[Phase, str], Phase] = {
    (Phase.EXPECT_HELLO, "HELLO"): Phase.LOADING,
    (Phase.LOADING, "READY"): Phase.NAMED,
    (Phase.CONNECTED, "READY"): Phase.READY,
}
_RESPONDED: dict[Phase, Phase] = {Phase.LOADING: Phase.CONNECTED, Phase.NAMED: Phase.READY}


class Handshake:
    """The host's side of one engine's handshake. Feed it messages, send what it returns, stop when it is READY.

    ``other_clients``: the (input, output) addresses of further clients, which this engine serves as number 1, 2, …
    """

    def __init__(
        self,
        *,
        input_address: str,
        output_address: str,
        identity: bytes = ENGINE_IDENTITY,
        other_clients: Sequence[tuple[str, str]] = (),
    ) -> None:
        self.phase = Phase.EXPECT_HELLO
        self.response = ReadyResponse()
        self._identity = identity
        clients = ((input_address, output_address), *other_clients)
        addresses = {"inputs": [i for i, _ in clients], "outputs": [o for _, o in clients]}
        self._init = msgspec.msgpack.encode({"addresses": addresses, "parallel_config": {}})

    @property
    def ready(self) -> bool:
        """Whether work can be sent."""
        return self.phase is Phase.READY

    def on_handshake(self, frames: Sequence[Any]) -> list[bytes] | None:
        """Take one message of the handshake socket; the reply to send there, if any. Raises ProtocolError."""
        status = _decode(self._payload(frames, "handshake"), _Status, "handshake").status
        after = _SAID.get((self.phase, status))
        if after is None:
            raise ProtocolError(f"the engine said {status[:40]!r} on the handshake socket while {self.phase.value}")
        self.phase = after
        return [self._identity, self._init] if after is Phase.LOADING else None

    def on_input(self, frames: Sequence[Any]) -> None:
        """Take one message of the input socket: the ready response. Raises ProtocolError."""
        payload = self._payload(frames, "input")
        after = _RESPONDED.get(self.phase)
        if after is None:
            raise ProtocolError(f"the engine spoke on the input socket while {self.phase.value}")
        self.response = _decode(payload, ReadyResponse, "input") if payload else ReadyResponse()
        self.phase = after

    def _payload(self, frames: Sequence[Any], socket: str) -> bytes:
        if len(frames) != 2:
            raise ProtocolError(f"{len(frames)} frames on the {socket} socket where 2 were expected")
        if bytes(frames[0]) != self._identity:
            raise ProtocolError(f"a stranger on the {socket} socket: {bytes(frames[0])[:16]!r}")
        return bytes(frames[1])


def _decode(payload: bytes, kind: type[_T], socket: str) -> _T:
    try:
        return msgspec.msgpack.decode(payload, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"undecodable message on the {socket} socket: {error}") from error
