"""The 25 invariants as checkers over a history. Each reads only what was seen at the seams.

``check(history)`` runs all of them. ``interferes`` (I7) and ``replays`` (I25) compare two histories. One history that
shows no violation is no proof yet: what an invariant speaks of must have happened at all, which ``prove`` counts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ._facts import Facts
from ._lifecycle import LIFECYCLE, replays
from ._outputs import i7_pair as interferes
from ._requests import REQUESTS
from ._resources import RESOURCES
from ._supervision import SUPERVISION
from ._violation import Checker, Violation

if TYPE_CHECKING:
    from collections.abc import Mapping

    from omni_actors.testing.sim._history import History

__all__ = ["INVARIANTS", "Checker", "Facts", "Violation", "check", "interferes", "replays"]

INVARIANTS: Mapping[str, Checker] = {**REQUESTS, **RESOURCES, **SUPERVISION, **LIFECYCLE}
"""By name, I0 (the run itself did not fail) to I25."""


def check(history: History) -> list[Violation]:
    """Every violation, invariant by invariant. Empty: none was seen."""
    facts = Facts(history)
    return [violation for checker in INVARIANTS.values() for violation in checker(facts)]
