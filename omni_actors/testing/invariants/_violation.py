"""What a checker finds, and what a checker is."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import attrs

from ._facts import Facts

__all__ = ["Checker", "Violation"]


@attrs.frozen(kw_only=True)
class Violation:
    """``invariant`` did not hold. ``message`` says what was seen, in whole sentences; ``events`` are the positions in
    the history that show it, the decisive one last. ``request``: the scenario's name of it, if it is about one.
    """

    invariant: str
    message: str
    events: tuple[int, ...] = ()
    request: str | None = None

    def __str__(self) -> str:
        return f"{self.invariant}: {self.message}"


Checker = Callable[[Facts], Iterator[Violation]]
"""Yields every violation of one invariant that the facts show. Pure."""
