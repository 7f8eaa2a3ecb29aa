"""Sites where a simulation may make the improbable happen: a queue of one place, a pause, the long way round.

Outside of a simulation every site is silent and costs one global look-up. A site never does what could not happen
anyway: it only stands beside an await that is there, or before a choice between two ways that are both right. The
simulation (``omni_actors.testing.sim``) is the only caller of ``injecting``; one run at a time per process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import trio

__all__ = ["Decide", "chance", "injecting", "pause", "simulated"]

Decide = Callable[[str], bool]
"""``decide(site)``: whether it happens this time."""

_decide: Decide | None = None


def simulated() -> bool:
    """Whether a simulation runs: then there are no threads, and time is virtual."""
    return _decide is not None


def chance(site: str) -> bool:
    """Whether to take the improbable way at this site."""
    return _decide is not None and _decide(site)


async def pause(site: str) -> None:
    """Let others run, sometimes. Beside an await only: it is a checkpoint, cancellable, when it happens."""
    if _decide is not None and _decide(site):
        await trio.lowlevel.checkpoint()


@contextmanager
def injecting(decide: Decide) -> Iterator[None]:
    """Let ``decide`` rule every site until the block ends."""
    global _decide
    assert _decide is None, "one simulation at a time"
    _decide = decide
    try:
        yield
    finally:
        _decide = None
