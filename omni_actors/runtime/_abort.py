"""What an abort found, for whoever asked for it."""

from __future__ import annotations

import attrs

from omni_actors.lifecycle import Terminal

__all__ = ["AbortReport", "Unconfirmed"]


@attrs.frozen
class Unconfirmed:
    """A lease whose engine did not confirm its release in time; its stage is suspect and being pinged."""

    stage: str
    replica: int
    key: str


@attrs.frozen
class AbortReport:
    """What an abort found. ``known`` is False for ids that no live request carries; then nothing was done.

    ``terminals``: how each request with this id ended, which may be a finish that was faster.
    """

    request_id: str
    known: bool
    terminals: tuple[Terminal, ...] = ()
    unconfirmed: tuple[Unconfirmed, ...] = ()
