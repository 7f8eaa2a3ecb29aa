"""A history as a picture: what the user saw, what each engine held, and when, on one axis of virtual time.

``text`` is for terminals and logs, ``svg`` for everything else: one self-contained file, with the exact times and data
as hover titles. Neither judges; give them a violation and its events are marked and explained. The axis is not to
scale: long silences are drawn short and say how long they were.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ._timeline_lanes import tell
from ._timeline_svg import drawn
from ._timeline_text import TextTimeline

if TYPE_CHECKING:
    from rich.text import Text

    from omni_actors.testing.invariants import Violation
    from omni_actors.testing.sim._history import History

__all__ = ["styled", "svg", "text"]


def text(history: History, violation: Violation | None = None, *, width: int = 110) -> str:
    """The timeline as lines of at most ``width`` cells (no less than 60), without colours."""
    return TextTimeline(tell(history, violation), width).plain()


def styled(history: History, violation: Violation | None = None, *, width: int = 110) -> Text:
    """The same for ``rich``: with colours, on a console that has them."""
    return TextTimeline(tell(history, violation), width).styled()


def svg(history: History, violation: Violation | None = None) -> str:
    """The timeline as an SVG document: no scripts, no fonts of its own, readable on light and on dark."""
    return drawn(tell(history, violation))
