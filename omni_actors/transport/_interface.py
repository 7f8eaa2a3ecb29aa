"""The seam between the runtime and sockets: two kinds of socket, two implementations (ZeroMQ, memory).

Frames are bytes-like. A message is a list of frames and is never torn. Order is kept per peer; nothing is lost
inside a live pipe; after a peer's death everything of it may be lost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Frame", "Message", "Socket", "Transport"]

Frame = bytes | memoryview
Message = list[Frame]


class Socket(Protocol):
    """One socket, owned by one task: the one that calls ``receive``."""

    @property
    def address(self) -> str:
        """Where a peer connects, or what this one connected to."""

    def send(self, frames: Sequence[Frame], *, urgent: bool = False, tag: str | None = None) -> None:
        """Queue one message and send as much of the queue as the peer takes now. Synchronous; keeps order.

        ``urgent`` messages overtake the queued ordinary ones. On a ROUTER the first frame is the peer's identity.
        Raises ``Unroutable`` if the peer is unknown or gone, ``QueueFull`` if the outbound queue is at its bound.
        """

    def unsend(self, tag: str) -> bool:
        """Remove the queued message with this tag. False if it has left already (or never was)."""

    async def receive(self, limit: int = 64) -> list[Message]:
        """At least one and at most ``limit`` messages; also pumps the outbound queue while it waits.

        One task at a time. Always a checkpoint; cancellation never loses a message.
        """

    def drain(self, limit: int = 1024) -> list[Message]:
        """What has already arrived, without waiting. May be empty."""

    def close(self) -> None:
        """Idempotent, immediate (no linger); a task in ``receive`` gets ``trio.ClosedResourceError``."""


class Transport(Protocol):
    """Makes sockets. The runtime side binds, the engine side connects."""

    def router(self, name: str) -> Socket:
        """A bound ROUTER. Messages carry the peer's identity as first frame. ``name`` becomes part of the address."""

    def pull(self, name: str) -> Socket:
        """A bound PULL: receives only."""

    def dealer(self, address: str, identity: bytes) -> Socket:
        """A DEALER connected to a ROUTER's address."""

    def push(self, address: str) -> Socket:
        """A PUSH connected to a PULL's address: sends only."""

    def close(self) -> None:
        """Closes what is still open. Idempotent."""
