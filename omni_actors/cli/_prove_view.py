"""What ``prove`` says: progress on stderr, what was seen, and a failure as a story that a person can read."""

from __future__ import annotations

import inspect
import textwrap
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import attrs
import msgspec

from omni_actors.testing.invariants import INVARIANTS, Violation
from omni_actors.testing.sim._history import History
from omni_actors.testing.sim._scenario import Scenario

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from rich.console import Console

__all__ = ["Failure", "Ticker", "Verdict", "document", "print_verdict", "sentence"]

_EVERY_S = 10.0
_MAX_WIDTH = 180
_GROUPS = {
    "terminal": "requests ended", "error": "with", "refused": "requests refused", "fault": "faults", "op": "operations",
    "edge": "edges", "companion": "companions", "step": "steps",
}  # fmt: skip
_CHANCES = "sites of chance"


@attrs.frozen(kw_only=True)
class Failure:
    """One run to be shown: ``violation`` is None only where it was asked for by name. ``again``: the commands, a line
    each, that show it again. ``more``: further violations of the same run.
    """

    violation: Violation | None
    scenario: Scenario
    history: History
    again: str
    more: tuple[Violation, ...] = ()
    batch_seed: int | None = None


@attrs.frozen(kw_only=True)
class Verdict:
    """What ``prove`` has to say. ``never``: what should have happened but did not. ``replayed``: one scenario."""

    examples: int
    seed: int
    seconds: float
    seen: Mapping[str, int]
    never: tuple[str, ...] = ()
    failure: Failure | None = None
    replayed: bool = False

    @property
    def word(self) -> str:
        """violated, not proved, held (one scenario) or proved."""
        if self.failure is not None and self.failure.violation is not None:
            return "violated"
        return "not proved" if self.never else "held" if self.replayed else "proved"

    @property
    def holds(self) -> bool:
        """Whether nothing is wrong with it."""
        return self.word in ("held", "proved")

    @property
    def headline(self) -> str:
        """The last line."""
        counted = f"{self.examples} scenario{'s' if self.examples != 1 else ''}"
        if self.holds:
            return f"{self.word}: {counted}, 0 violations, seed {self.seed}"
        if self.never:
            nothing = ", ".join(self.never)
            return f"NOT PROVED: nothing of {nothing} ever happened in {counted}, seed {self.seed}"
        assert self.failure is not None
        seed = self.seed if self.failure.batch_seed is None else self.failure.batch_seed
        return f"VIOLATED: {getattr(self.failure.violation, 'invariant', '')}, in {counted}, seed {seed}"


class Ticker:
    """Counts examples on ``console``: a bar on a terminal, else a line every ten seconds. A context manager."""

    def __init__(self, total: int, console: Console) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self._console, self._total, self._done = console, total, 0
        self._began = self._said = time.monotonic()
        self._bar = Progress(
            TextColumn("scenarios"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
            transient=True,
        )
        self._task = self._bar.add_task("", total=total, rate="0 violations")

    def __enter__(self) -> Ticker:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def example(self) -> None:
        """One more, without a violation, or it would be the last."""
        self._done += 1
        now = time.monotonic()
        rate = f"0 violations, {self._done / max(now - self._began, 1e-3):.0f}/s"
        self._bar.update(self._task, completed=self._done, rate=rate)
        if not self._console.is_terminal and now - self._said > _EVERY_S:
            self._said = now
            self._console.print(f"{self._done} of {self._total} scenarios, {rate}", highlight=False)


# ---------------------------------------------------------------------- as JSON


def document(verdict: Verdict, drawn: Path | None) -> dict[str, Any]:
    """The one document of ``--json``. ``drawn``: where the picture was written."""
    failure = verdict.failure
    return {
        "verdict": verdict.word,
        "examples": verdict.examples,
        "seed": verdict.seed,
        "seconds": round(verdict.seconds, 3),
        "seen": _grouped(verdict.seen),
        "never": list(verdict.never),
        "violation": None if failure is None else _violation(failure),
        "more_violations": [] if failure is None else [str(each) for each in failure.more],
        "scenario": None if failure is None else msgspec.to_builtins(failure.scenario),
        "batch_seed": None if failure is None else failure.batch_seed,
        "again": [] if failure is None else failure.again.splitlines(),
        "svg": None if drawn is None else str(drawn),
    }


def _violation(failure: Failure) -> dict[str, Any] | None:
    violation, events = failure.violation, failure.history.events
    if violation is None:
        return None
    shown = [number for number in violation.events if 0 <= number < len(events)]
    return {
        "invariant": violation.invariant,
        "sentence": sentence(violation.invariant),
        "message": violation.message,
        "request": violation.request,
        "events": [{"position": number, **msgspec.to_builtins(events[number])} for number in shown],
    }


def _grouped(seen: Mapping[str, int]) -> dict[str, dict[str, int]]:
    """By the first word: terminal, fault, op, …; the most frequent first."""
    groups: dict[str, dict[str, int]] = {}
    for name, count in sorted(seen.items(), key=lambda pair: (-pair[1], pair[0])):
        group, _, rest = name.partition(" ")
        groups.setdefault(group, {})[rest] = count
    return groups


# ---------------------------------------------------------------------- for people


def print_verdict(verdict: Verdict, drawn: Path | None, console: Console) -> None:
    """Everything there is to say, the verdict last."""
    failure = verdict.failure
    if verdict.seen and failure is None:
        _print_seen(verdict, console)
    if failure is not None:
        _print_run(failure, console)
    if drawn is not None:
        console.print(f"\ndrawn: {drawn}", markup=False, highlight=False)
    if failure is not None:
        _lines(["", "again:", *(f"  {line}" for line in failure.again.splitlines()), ""], console)
    took = f"{verdict.seconds:.1f} s, {verdict.examples / max(verdict.seconds, 1e-3):.0f} scenarios/s"
    if not verdict.replayed:
        console.print(took, style="dim", highlight=False)
    style = "bold green" if verdict.holds else "bold red"
    console.print(verdict.headline, style=style, markup=False, highlight=False, soft_wrap=True)


def sentence(invariant: str) -> str:
    """What the invariant says: the docstring of its checker, up to the first empty line."""
    words = inspect.getdoc(INVARIANTS[invariant]) if invariant in INVARIANTS else None
    return " ".join((words or "").split("\n\n")[0].split())


def _print_seen(verdict: Verdict, console: Console) -> None:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title="what was seen", title_justify="left")
    table.add_column("what", no_wrap=True)
    table.add_column("how often")
    groups = _grouped(verdict.seen)
    for group, title in _GROUPS.items():
        if (counts := groups.get(group)) is not None:
            # Generated pipelines have edges between any two letters: their shapes say enough.
            named = {name: count for name, count in counts.items() if "->" not in name} or counts
            table.add_row(title, ", ".join(f"{name} {count}" for name, count in named.items()))
    if (sites := groups.get("site")) is not None:
        table.add_row(_CHANCES, f"{len(sites)} different, {sum(sites.values())} times")
    console.print(table)


def _print_run(failure: Failure, console: Console) -> None:
    """The invariant, what was seen instead, the scenario, the timeline."""
    from omni_actors.testing import timeline

    if (violation := failure.violation) is not None:
        console.print(f"\n{violation.invariant} does not hold", style="bold red", highlight=False)
        for words in filter(None, (sentence(violation.invariant), violation.message)):
            _lines([textwrap.indent(words, "  ")], console)
        _lines([f"  also {each}" for each in failure.more], console)
    scenario = failure.scenario
    _lines(["", "the scenario:", *(f"  {line}" for line in (*_stages(scenario), *_operations(scenario)))], console)
    _lines(["as JSON:", f"  {scenario.to_json()}", ""], console)
    console.print(timeline.styled(failure.history, violation, width=min(console.width, _MAX_WIDTH)))


def _lines(lines: list[str], console: Console) -> None:
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def _stages(scenario: Scenario) -> Iterator[str]:
    """The settings that are not the default, then one line per stage."""
    known: dict[str, Any] = msgspec.to_builtins(scenario)
    yield _fields("settings", {key: value for key, value in known.items() if key not in ("ops", "stages", "fakes")})
    for stage in known.get("stages", ()):
        yield _fields(f"stage {stage.pop('name')}", stage)
    for name, fake in known.get("fakes", {}).items():
        yield _fields(f"fake {name}", fake)


def _operations(scenario: Scenario) -> Iterator[str]:
    """One line per operation, in their order of time."""
    for op in sorted(scenario.ops, key=lambda op: op.at):
        fields = msgspec.to_builtins(op)
        at, kind = fields.pop("at", 0.0), fields.pop("type")
        yield _fields(f"{at:>8.4g} s  {kind:<8}", fields)


def _fields(head: str, fields: Mapping[str, Any]) -> str:
    return " ".join([head, *(f"{key}={_value(value)}" for key, value in fields.items())]).rstrip()


def _value(value: Any) -> str:
    plain = isinstance(value, str) and value.isprintable() and value and " " not in value
    return value if plain else msgspec.json.encode(value).decode()
