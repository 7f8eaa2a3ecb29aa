"""Chaos: random schedules of signals, aborts, departures and shutdowns on real processes. See ``__main__``.

``Chaos`` runs one schedule after the other in this process; ``schedule(seed)`` draws one. What a run was is a history,
as a simulation's: the same checkers judge it. What it left is looked for in the operating system.
"""

from __future__ import annotations

from ._left import Belongings, left_behind
from ._run import Chaos, Outcome, private_base
from ._schedule import FAULTS, MIN_FAULTS, OPEN_AT, faults_done, schedule
from ._world import ProcessWorld, with_worker, workers

__all__ = [
    "FAULTS", "MIN_FAULTS", "OPEN_AT", "Belongings", "Chaos", "Outcome", "ProcessWorld", "faults_done", "left_behind",
    "private_base", "schedule", "with_worker", "workers",
]  # fmt: skip
