"""``prove``: the runtime, or a user's pipeline on fakes, under thousands of scenarios; and one scenario again.

The examples go in batches, each under a seed of its own: ``--seed S`` runs batch S first, so the seed of the batch that
failed replays the failure. How many workers share the batches changes nothing in what is reported: that is the failure
of the first batch that has one.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import secrets
import shlex
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import msgspec

from omni_actors._errors import UsageError
from omni_actors._files import complete_file
from omni_actors.cli import _prove_view as view
from omni_actors.cli._exit import Code, Missing, print_json
from omni_actors.cli._prove_workers import Batch, Workers
from omni_actors.testing import timeline
from omni_actors.testing.invariants import Violation
from omni_actors.testing.sim._history import History, events_from_json
from omni_actors.testing.sim._scenario import Scenario, scenario_from_json

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console

__all__ = ["SVG", "ProveJob", "run_prove"]

SVG = Path("prove-failure.svg")
"""Where a failure is drawn unless told otherwise."""


@attrs.frozen(kw_only=True)
class ProveJob:
    """``jobs``: processes, None for one per core. ``scenario``: a file or "-", run alone. ``svg``: where to draw."""

    target: str | None = None
    examples: int = 1000
    seed: int | None = None
    jobs: int | None = None
    scenario: str | None = None
    svg: Path | None = None
    as_json: bool = False


@attrs.frozen(kw_only=True)
class Outcome:
    """What a batch came to, as it travels between processes. ``events``: the failing history's, as JSON."""

    examples: int
    seen: dict[str, int]
    planned: frozenset[str]
    violation: Violation | None = None
    scenario: bytes = b""
    events: bytes = b""

    @property
    def failed(self) -> bool:
        """Whether a violation was found."""
        return self.violation is not None


def run_prove(job: ProveJob, progress: Console, output: Console) -> Code:
    """Prove, say so, draw the failure if there is one. 1 for a violation, and for what was not proved.

    Raises UsageError for a scenario that cannot be read, ConfigError for a pipeline that cannot, WorkerLost, Missing.
    """
    if importlib.util.find_spec("hypothesis") is None:
        raise Missing("prove needs hypothesis: pip install 'omni-actors[testing]'")
    if job.svg is not None and not job.svg.parent.is_dir():
        raise UsageError(f"cannot write the picture to {job.svg}: there is no such folder")
    verdict = _replayed(job) if job.scenario is not None else _proved(job, progress)
    drawn = _draw(verdict, job, progress)
    if job.as_json:
        print_json(view.document(verdict, drawn))
    else:
        view.print_verdict(verdict, drawn, output)
    return Code.OK if verdict.holds else Code.FAILED


def _draw(verdict: view.Verdict, job: ProveJob, progress: Console) -> Path | None:
    """Write the picture where there is something to see: a failure, or a scenario for which it was asked.

    What was found is not lost where it cannot be written.
    """
    failure = verdict.failure
    path = job.svg or (SVG if failure is not None and failure.violation is not None else None)
    if failure is None or path is None:
        return None
    try:
        with complete_file(path) as file:
            file.write(timeline.svg(failure.history, failure.violation).encode())
    except OSError as error:
        progress.print(f"cannot write the picture to {path}: {error.strerror}", markup=False, highlight=False)
        return None
    return path


# ---------------------------------------------------------------------- one scenario


def _replayed(job: ProveJob) -> view.Verdict:
    """Run the one scenario. Raises UsageError for text that is none."""
    from omni_actors.testing._prove import replay

    scenario = _read(job.scenario or "-")
    if not scenario.stages and job.target is None:
        raise UsageError("the scenario has no stages of its own: name the pipeline that it was found on")
    begun = time.perf_counter()
    history, violations = replay(scenario, None if scenario.stages else job.target)
    failure = view.Failure(
        violation=violations[0] if violations else None,
        more=tuple(violations[1:]),
        scenario=scenario,
        history=history,
        again=_again(job.target, scenario),
    )
    return view.Verdict(
        examples=1, seed=scenario.seed, seconds=time.perf_counter() - begun, seen={}, failure=failure, replayed=True
    )


def _read(source: str) -> Scenario:
    try:
        text = sys.stdin.read() if source == "-" else Path(source).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read the scenario from {source}: {error}") from error
    try:
        return scenario_from_json(text.strip())
    except msgspec.DecodeError as error:
        where = "stdin" if source == "-" else source
        raise UsageError(f"{where} holds no scenario (one line of JSON, as prove prints it): {error}") from error


def _again(target: str | None, scenario: Scenario) -> str:
    named = "" if target is None or scenario.stages else f" {shlex.quote(target)}"
    return f"omni-actors prove{named} --scenario - <<< {shlex.quote(scenario.to_json())}"


# ---------------------------------------------------------------------- many


def _proved(job: ProveJob, progress: Console) -> view.Verdict:
    from omni_actors.testing._prove import Proof
    from omni_actors.testing._scripted import spec_of

    if job.target is not None:
        spec_of(job.target)  # a pipeline that cannot be read is said once, not by every worker
    seed = secrets.randbelow(2**31) if job.seed is None else job.seed
    begun = time.perf_counter()
    with view.Ticker(job.examples, progress) as ticker:
        outcomes = _run(job, _batches(job.examples, seed), ticker.example)
    seconds = time.perf_counter() - begun
    done = [outcome for _, outcome in outcomes]
    seen = sum((Counter(outcome.seen) for outcome in done), Counter[str]())
    examples = sum(outcome.examples for outcome in done)
    whole = Proof(examples=examples, seed=seed, seconds=seconds, seen=seen, planned=done[0].planned)
    batch, last = outcomes[-1]
    return view.Verdict(
        examples=examples,
        seed=seed,
        seconds=seconds,
        seen=seen,
        never=() if whole.proved or last.failed else whole.missing,
        failure=_failure(job, batch, last) if last.failed else None,
    )


def _batches(examples: int, seed: int) -> list[Batch]:
    """Batch i has the seed ``seed + i``, as in ``testing.prove``."""
    from omni_actors.testing._prove import BATCH

    starts = range(0, examples, BATCH)
    return [Batch(i, seed + i, min(BATCH, examples - start)) for i, start in enumerate(starts)]


def _run(job: ProveJob, batches: list[Batch], example: Callable[[], None]) -> list[tuple[Batch, Outcome]]:
    """Every batch, or those up to the first that fails. With one job: in this process."""
    run = functools.partial(prove_batch, job.target)
    jobs = min(job.jobs or len(os.sched_getaffinity(0)), len(batches))
    if jobs > 1:
        with Workers(run, jobs) as workers:
            return workers.results(batches, example, lambda outcome: outcome.failed)
    done = []
    for batch in batches:
        outcome = run(batch, example)
        done.append((batch, outcome))
        if outcome.failed:
            break
    return done


def prove_batch(target: str | None, batch: Batch, example: Callable[[], None]) -> Outcome:
    """What a worker does. ``example`` is called after each."""
    from omni_actors.testing._prove import prove

    proof = prove(target, examples=batch.examples, seed=batch.seed, progress=lambda _: example())
    return Outcome(
        examples=proof.examples,
        seen=dict(proof.seen),
        planned=proof.planned,
        violation=proof.violation,
        scenario=b"" if proof.scenario is None else proof.scenario.to_json().encode(),
        events=b"" if proof.history is None else proof.history.to_json(),
    )


def _failure(job: ProveJob, batch: Batch, outcome: Outcome) -> view.Failure:
    """A batch's failure, on this side: its history is the one that was judged, not another run."""
    from omni_actors.testing._scripted import on_fakes, spec_of

    scenario = scenario_from_json(outcome.scenario)
    pipeline = scenario.pipeline() if job.target is None else on_fakes(spec_of(job.target), scenario)
    target = "" if job.target is None else f" {shlex.quote(job.target)}"
    search = f"omni-actors prove{target} --seed {batch.seed} --examples {batch.examples}"
    return view.Failure(
        violation=outcome.violation,
        scenario=scenario,
        history=History(pipeline, scenario, events_from_json(outcome.events)),
        batch_seed=batch.seed,
        again=f"{search}\n{_again(job.target, scenario)}",
    )
