"""How the checkers of requests say what they saw."""

from __future__ import annotations

from typing import TYPE_CHECKING

from omni_actors.testing.sim._history import TerminalSeen

from ._violation import Violation

if TYPE_CHECKING:
    from ._facts import Facts, Request

__all__ = ["about", "kind_at", "when"]


def when(facts: Facts, number: int) -> str:
    """The time of the event at this position, in words."""
    return f"at {facts.at(number):.6g} s"


def about(request: Request, invariant: str, text: str, *events: int) -> Violation:
    """A violation by one request; ``text`` goes on from its name."""
    return Violation(
        invariant=invariant, message=f"request {request.name}: {text}", events=events, request=request.name
    )


def kind_at(facts: Facts, number: int) -> str:
    """The kind of the terminal seen at this position."""
    event = facts.event(number)
    assert isinstance(event, TerminalSeen)
    return event.kind
