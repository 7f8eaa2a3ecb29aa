"""The outbound queue of one socket, sans-I/O: what the peers did not take yet.

One lane per peer, so that a full peer holds up nobody else and order is kept per peer; in a lane urgent messages go
first. Ordinary and urgent messages are bounded separately: a house full of work can not keep an abort out.
The queue is owned by its socket; ``write`` is the socket's one attempt to hand a message over.
"""

from __future__ import annotations

import enum
from collections import OrderedDict
from collections.abc import Callable, Sequence

import attrs

from ._frames import owned
from ._interface import Frame

__all__ = ["Outbox", "Outgoing", "Peer", "Write"]

Peer = bytes | None
"""A ROUTER's peer by its identity; None on a socket that has one peer, or does not care which."""


class Write(enum.Enum):
    """What became of one attempt to hand over a message."""

    SENT = enum.auto()
    FULL = enum.auto()
    GONE = enum.auto()


@attrs.define(eq=False)
class Outgoing:
    """One queued message. ``lane`` is None once it has left the queue."""

    frames: Sequence[Frame]
    urgent: bool
    tag: str | None
    lane: _Lane | None


@attrs.define(eq=False)
class _Lane:
    """One peer's messages; ordered maps because ``unsend`` takes them out of the middle."""

    peer: Peer
    urgent: OrderedDict[Outgoing, None] = attrs.field(factory=OrderedDict)
    ordinary: OrderedDict[Outgoing, None] = attrs.field(factory=OrderedDict)

    def queue(self, item: Outgoing) -> OrderedDict[Outgoing, None]:
        return self.urgent if item.urgent else self.ordinary

    def head(self) -> Outgoing | None:
        return next(iter(self.urgent or self.ordinary), None)


class Outbox:
    """Bounded lanes of messages. Falsy when nothing is queued; ``peer in outbox`` when that peer has a lane."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lanes: dict[Peer, _Lane] = {}
        self._tags: dict[str, Outgoing] = {}
        self._urgent = self._ordinary = 0

    def __len__(self) -> int:
        return self._urgent + self._ordinary

    def __contains__(self, peer: Peer) -> bool:
        return peer in self._lanes

    def put(self, peer: Peer, frames: Sequence[Frame], *, urgent: bool, tag: str | None) -> Outgoing:
        """Queue a message, over the bound if need be: the caller flushes, then asks ``over_bound``."""
        lane = self._lanes.get(peer)
        if lane is None:
            lane = self._lanes[peer] = _Lane(peer)
        item = Outgoing([owned(frame) for frame in frames], urgent, tag, lane)
        lane.queue(item)[item] = None
        self._count(item, 1)
        if tag is not None:
            self._tags[tag] = item
        return item

    def over_bound(self, item: Outgoing) -> bool:
        """Whether this message is still queued and one too many of its sort."""
        return item.lane is not None and (self._urgent if item.urgent else self._ordinary) > self._limit

    def remove(self, item: Outgoing) -> None:
        """Take a message out, wherever it stands. Harmless when it has left already."""
        lane, item.lane = item.lane, None
        if lane is None:
            return
        del lane.queue(item)[item]
        self._count(item, -1)
        if item.tag is not None and self._tags.get(item.tag) is item:
            del self._tags[item.tag]
        if not lane.urgent and not lane.ordinary:
            del self._lanes[lane.peer]

    def unsend(self, tag: str) -> bool:
        """Take out the newest message with this tag. False if none is queued."""
        item = self._tags.get(tag)
        if item is None:
            return False
        self.remove(item)
        return True

    def flush(self, write: Callable[[Sequence[Frame]], Write], budget: int) -> bool:
        """Hand over up to ``budget`` messages per peer; True if any left. A gone peer's lane is dropped."""
        before = len(self)
        for peer in tuple(self._lanes):
            self.flush_peer(peer, write, budget)
        return len(self) < before

    def flush_peer(self, peer: Peer, write: Callable[[Sequence[Frame]], Write], budget: int) -> Write:
        """Hand over up to ``budget`` messages of one peer. SENT: its lane is empty; FULL: not yet; GONE: dropped."""
        lane = self._lanes[peer]
        for _ in range(budget):
            item = lane.head()
            if item is None:
                return Write.SENT
            verdict = write(item.frames)
            if verdict is Write.FULL:
                return verdict
            if verdict is Write.GONE:
                self._drop(lane)
                return verdict
            self.remove(item)
        return Write.FULL if lane.head() else Write.SENT

    def clear(self) -> None:
        for lane in tuple(self._lanes.values()):
            self._drop(lane)

    def _drop(self, lane: _Lane) -> None:
        for item in (*lane.urgent, *lane.ordinary):
            self.remove(item)

    def _count(self, item: Outgoing, change: int) -> None:
        if item.urgent:
            self._urgent += change
        else:
            self._ordinary += change
