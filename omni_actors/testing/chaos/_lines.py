"""What a worker of a chaos run tells its parent, one line of JSON per schedule, and the sum of such lines. Pure."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import attrs
import msgspec

from ._schedule import faults_done

if TYPE_CHECKING:
    from ._run import Outcome

__all__ = ["Line", "Tally", "line_of"]


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One schedule. ``scenario`` is its JSON. ``threads``: left at the very end; told once, in a line with no seed."""

    seed: int = -1
    scenario: str = ""
    seconds: float = 0.0
    faults: dict[str, int] = {}
    violations: tuple[str, ...] = ()
    left: dict[str, list[str]] = {}
    threads: int = 0

    @property
    def wrong(self) -> list[str]:
        """What was not as it should be, in words."""
        words = [*self.violations, *(f"left behind: {kind}: {', '.join(what)}" for kind, what in self.left.items())]
        return [*words, f"left behind: {self.threads} threads"] if self.threads else words

    def __str__(self) -> str:
        did = ", ".join(f"{name} {count}" for name, count in sorted(self.faults.items()))
        return f"seed {self.seed}: {self.seconds:.2f} s, {sum(self.faults.values())} faults ({did})"


def line_of(seed: int, outcome: Outcome) -> Line:
    """What is told of one run."""
    scenario = outcome.history.scenario
    return Line(
        seed=seed,
        scenario=scenario.to_json() if scenario else "",
        seconds=outcome.seconds,
        faults=dict(faults_done(outcome.history)),
        violations=tuple(str(violation) for violation in outcome.violations),
        left=outcome.left,
    )


@attrs.define
class Tally:
    """The sum of the lines. ``few``: seeds of schedules in which fewer faults than planned found somebody."""

    minimum: int
    schedules: int = 0
    faults: Counter[str] = attrs.field(factory=Counter)
    wrong: int = 0
    few: list[int] = attrs.field(factory=list)

    def add(self, line: Line) -> None:
        """Count one."""
        self.wrong += len(line.wrong)
        if line.seed < 0:
            return
        self.schedules += 1
        self.faults.update(line.faults)
        if sum(line.faults.values()) < self.minimum:
            self.few.append(line.seed)

    def lines(self, seconds: float) -> list[str]:
        """The summary, for people."""
        width = max(map(len, self.faults), default=0)
        return [
            f"{self.schedules} schedules in {seconds:.1f} s, each a fresh start and stop of its pipeline",
            *(f"  {name:<{width}}  {count:>6}" for name, count in self.faults.most_common()),
            f"  {'faults in all':<{width}}  {self.faults.total():>6}",
            f"{self.wrong} violations; nothing left behind" if not self.wrong else f"{self.wrong} violations",
        ]
