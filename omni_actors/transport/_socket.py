"""The sending half that both kinds of socket share: the outbound queue and what a verdict becomes.

``receive`` differs: the ZeroMQ socket waits on a file descriptor, the in-memory one on its peers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from omni_actors._errors import UsageError

from ._errors import QueueFull, Unroutable
from ._frames import prepared
from ._outbox import Outbox, Write

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ._interface import Frame

__all__ = ["FLUSH_BUDGET", "OutboundSocket"]

FLUSH_BUDGET = 64
"""Messages per peer in one go: about 50 µs, so that neither direction starves the other."""


class OutboundSocket:
    """Owns the outbound queue. ``_parked`` is true while the owner waits in ``receive``."""

    def __init__(self, address: str, *, routes: bool, sends: bool, queue_limit: int) -> None:
        self._address = address
        self._outbox = Outbox(queue_limit)
        self._routes, self._sends = routes, sends
        self._closed = self._parked = False

    @property
    def address(self) -> str:
        """Where a peer connects, or what this one connected to."""
        return self._address

    def send(self, frames: Sequence[Frame], *, urgent: bool = False, tag: str | None = None) -> None:
        """Queue one message and send as much as the peer takes now. Synchronous; keeps order per peer.

        Frames under 64 KiB are copied; larger ones are shared, so the caller must leave their buffers alone. A tag
        names the newest message queued with it. Urgent messages have a queue bound of their own, of the same size.
        Raises ``Unroutable`` or ``QueueFull`` (nothing of this message is sent), ``UsageError`` on a socket that only
        receives, ``trio.ClosedResourceError`` after ``close``.
        """
        self._require_sending()
        frames = prepared(frames)
        peer = self._recipient(frames) if self._routes else None
        try:
            if peer in self._outbox:
                self._send_behind(peer, frames, urgent, tag)
                return
            verdict = self._write(frames)
            if verdict is Write.FULL:
                self._send_behind(peer, frames, urgent, tag)
            elif verdict is Write.GONE:
                raise self._unroutable(peer)
        finally:
            if self._parked:
                self._look_up()

    def unsend(self, tag: str) -> bool:
        """Remove the queued message with this tag. False if it has left already (or never was)."""
        return self._outbox.unsend(tag)

    def _send_behind(self, peer: bytes | None, frames: Sequence[Frame], urgent: bool, tag: str | None) -> None:
        """Queue, push the queue, and only then judge the bound: room may have appeared since the last push."""
        item = self._outbox.put(peer, frames, urgent=urgent, tag=tag)
        if self._outbox.flush_peer(peer, self._write, FLUSH_BUDGET) is Write.GONE:
            raise self._unroutable(peer)
        if self._outbox.over_bound(item):
            self._outbox.remove(item)
            raise QueueFull(f"{self._address}: the peer takes nothing and {len(self._outbox)} messages are queued")

    def _require_sending(self) -> None:
        if self._closed:
            raise trio.ClosedResourceError(f"{self._address} is closed")
        if not self._sends:
            raise UsageError(f"{self._address}: a PULL socket only receives")

    def _recipient(self, frames: Sequence[Frame]) -> bytes:
        if len(frames) < 2:
            raise ValueError("a ROUTER's message starts with the peer's identity, and has something behind it")
        return bytes(frames[0])

    def _unroutable(self, peer: bytes | None) -> Unroutable:
        return Unroutable(f"{self._address}: no peer {peer!r}")

    def _write(self, frames: Sequence[Frame]) -> Write:
        """One attempt to hand over a whole message; all of it or nothing."""
        raise NotImplementedError

    def _look_up(self) -> None:
        """Wake the parked owner if there is something for it to do."""
        raise NotImplementedError
