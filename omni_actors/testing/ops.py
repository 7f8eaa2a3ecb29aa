"""The operations of a scenario: what can happen to a pipeline. Each has a time (``at``), seconds from the beginning."""

from __future__ import annotations

from .sim._scenario import Abort, Call, Cancel, Exit, Inject, Kill, Leave, Op, Resume, Shutdown, Stall, Submit

__all__ = [
    "Abort", "Call", "Cancel", "Exit", "Inject", "Kill", "Leave", "Op", "Resume", "Shutdown", "Stall", "Submit",
]  # fmt: skip
