"""One mutant against one checker: simulate scenarios until the checker sees it, for each seed.

Run with the mutated package first on the path. Prints one line of JSON per seed: how many scenarios it took (null: it
survived ``LIMIT`` of them, or ``SECONDS``), and what the checker said.
"""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING

from hypothesis import HealthCheck, Phase, given, seed, settings

from omni_actors.testing import strategies
from omni_actors.testing.invariants import INVARIANTS, Facts, interferes, replays
from omni_actors.testing.sim._history import History, TerminalSeen
from omni_actors.testing.sim._simulate import simulate

if TYPE_CHECKING:
    from omni_actors.testing.sim._scenario import Scenario

LIMIT = 1000
SECONDS = 120.0


class _Killed(Exception):
    """The checker has seen it: ``args[0]`` is what it said."""


def seen_by(invariant: str, history: History) -> str | None:
    """What the invariant's own checker says of a history. I7 and I25 compare it with a second run."""
    found = list(INVARIANTS[invariant](Facts(history)))
    scenario = history.scenario
    assert scenario is not None
    if invariant == "I25":
        found += replays(history, simulate(scenario))
    if invariant == "I7":
        gone = {event.request for event in history.of(TerminalSeen) if event.kind != "finished"}
        if gone:
            found += interferes(history, simulate(scenario.without(sorted(gone))))
    return str(found[0]) if found else None


def hunt(invariant: str, number: int) -> dict[str, object]:
    """Scenarios from seed ``number`` on, until one kills."""
    count, began = 0, time.monotonic()

    @seed(number)
    @settings(
        max_examples=LIMIT,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
    )
    @given(strategies.scenarios())
    def run(scenario: Scenario) -> None:
        nonlocal count
        if time.monotonic() - began > SECONDS:
            return
        count += 1
        words = seen_by(invariant, simulate(scenario))
        if words is not None:
            raise _Killed(words)

    try:
        run()
    except _Killed as killed:
        return {"seed": number, "scenarios": count, "words": killed.args[0]}
    return {"seed": number, "scenarios": None, "words": f"survived {count} scenarios"}


if __name__ == "__main__":
    for each in sys.argv[2:]:
        print(json.dumps(hunt(sys.argv[1], int(each))), flush=True)
