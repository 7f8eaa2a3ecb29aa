"""The proof: Hypothesis over scenarios, each one simulated and judged; what fails is shrunk and comes back as data.

Examples run in batches of ``BATCH``, batch i with seed ``seed + i``: so one batch's seed alone replays a failure.
Importing this module imports hypothesis.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import attrs
import hypothesis
from hypothesis import HealthCheck, Phase, Verbosity
from hypothesis import strategies as st

from omni_actors._errors import UsageError
from omni_actors.lifecycle import Kind

from ._hypothesis import by_seed_alone
from ._reduce import smallest
from ._scripted import denoises, spec_of
from ._subject import Subject, edges, subject
from .invariants import Facts, Violation
from .sim._history import Faulted, Got, History, Noted, Opened, Refused, StageSaid, TerminalSeen, Wire
from .sim._scenario import Scenario
from .strategies import INJECTED

if TYPE_CHECKING:
    from pathlib import Path

    from hypothesis.strategies import SearchStrategy

    from omni_actors.config import PipelineSpec

__all__ = ["BATCH", "Proof", "check_pipeline", "prove", "replay"]

BATCH = 100
"""Examples of one run of Hypothesis."""
ENOUGH = 200
"""From so many examples on, everything that was planned must have happened."""
DEEP = 10
"""One in so many examples is also run again (I25), and without the requests that did not finish (I7)."""

FATES = tuple(f"terminal {kind.value}" for kind in Kind)
FAULTS = tuple(f"fault {name}" for name in ("kill", "stall", "resume", "exit", *INJECTED))
COMPANIONS = tuple(f"companion {fate}" for fate in ("early", "late", "dead"))
STEPS = tuple(f"step {fate}" for fate in ("shown", "shared", "aborted", "stuck"))
SHAPES = tuple(f"edge {name}" for name in ("whole", "segments", "chunks", "fan-in", "fan-out"))


@attrs.frozen(kw_only=True)
class Proof:
    """What was run and found. ``violation``, ``scenario`` (shrunk), ``history`` and ``batch_seed`` are of the failure.

    ``seen`` counts, each under ``"<what> <name>"``: terminals, errors, faults done, operations, sites, edges that work
    went over, companions by what became of them, steps of diffusion stages, and runs that opened. ``planned``: what of
    that must have happened.
    ``seconds`` are real ones.
    """

    examples: int
    seed: int
    seconds: float
    seen: Mapping[str, int]
    planned: frozenset[str]
    violation: Violation | None = None
    scenario: Scenario | None = None
    history: History | None = None
    batch_seed: int | None = None

    @property
    def missing(self) -> tuple[str, ...]:
        """What was planned and never happened."""
        return tuple(sorted(name for name in self.planned if not self.seen.get(name)))

    @property
    def proved(self) -> bool:
        """No violation, and, unless the examples were too few to tell, nothing is missing."""
        return self.violation is None and (self.examples < ENOUGH or not self.missing)

    def __str__(self) -> str:
        """The verdict; of a failure everything that it takes to see it again."""
        if self.scenario is None:
            lacks = "" if self.proved else f", but there was no {', no '.join(self.missing)}"
            words = "proved" if self.proved else "not proved"
            return f"{words}: {self.examples} scenarios from seed {self.seed}, no violation{lacks}"
        json = self.scenario.to_json()
        pipeline = "" if self.scenario.stages else ", pipeline"
        return (
            f"{self.violation}\n\nThe smallest scenario in which it happens (batch seed {self.batch_seed}):\n{json}\n\n"
            f"To run it again: replay(scenario_from_json({json!r}){pipeline})"
        )


def replay(
    scenario: Scenario, pipeline: str | Path | PipelineSpec | None = None, *, allow_failures: bool = False
) -> tuple[History, list[Violation]]:
    """Run one scenario, on the ``pipeline`` that it was found on if it has none of its own, and judge it.

    Raises ConfigError for a pipeline that cannot be read.
    """
    spec = None if pipeline is None else spec_of(pipeline)
    return Subject(spec, st.nothing(), allow_failures).judge(scenario)


def prove(
    pipeline: str | Path | PipelineSpec | None = None,
    *,
    outputs: Mapping[str, SearchStrategy[Any]] | None = None,
    prompts: SearchStrategy[Any] | None = None,
    examples: int = BATCH,
    seed: int | None = None,
    progress: Callable[[int], None] | None = None,
    allow_failures: bool = False,
) -> Proof:
    """Simulate and judge ``examples`` scenarios, of generated pipelines or of this one; the arguments are
    ``check_pipeline``'s.

    ``seed`` None draws one. ``progress`` is called with the number of examples so far. Ends at the first violation,
    shrunk. Raises UsageError and ConfigError; what the runtime does is in the proof.
    """
    if examples < 1:
        raise UsageError(f"examples must be at least 1, not {examples}")
    seed = random.SystemRandom().randrange(2**31) if seed is None else seed
    spec = None if pipeline is None else spec_of(pipeline)
    search = _Search(subject(spec, outputs or {}, prompts, allow_failures), progress)
    begun = time.perf_counter()
    batch_seed = seed
    for number in range(-(-examples // BATCH)):
        batch_seed = seed + number
        if search.batch(min(BATCH, examples - number * BATCH), batch_seed):
            break
    found = search.failure
    return Proof(
        examples=search.examples,
        seed=seed,
        seconds=time.perf_counter() - begun,
        seen=search.seen,
        planned=frozenset([*FATES, *FAULTS, *((*SHAPES, *COMPANIONS, *STEPS) if spec is None else edges(spec))]),
        violation=found.violation if found else None,
        scenario=found.scenario if found else None,
        history=found.history if found else None,
        batch_seed=batch_seed if found else None,
    )


def check_pipeline(
    pipeline: str | Path | PipelineSpec,
    outputs: Mapping[str, SearchStrategy[Any]] | None = None,
    *,
    prompts: SearchStrategy[Any] | None = None,
    examples: int = BATCH,
    seed: int | None = None,
    allow_failures: bool = False,
) -> Proof:
    """Prove that every invariant holds for your pipeline, and that none of its functions fails a request.

    ``pipeline`` is what ``open_omni`` takes; its engines are replaced by fakes, all else is kept. ``outputs`` draws by
    stage what the fakes make: text or token ids for an LLM, a list of chunks for any other engine, each of them text,
    bytes or a mapping of tensors and plain values. ``prompts`` draws what users ask (values that JSON can hold).
    ``allow_failures``: a request may fail in a transform or splitter.

    Raises AssertionError for a violation, with the shrunk scenario and how to run it again, and for a run that has not
    seen what it was to see; UsageError and ConfigError for wrong arguments.
    """
    how: dict[str, Any] = {"outputs": outputs, "prompts": prompts, "allow_failures": allow_failures}
    proof = prove(pipeline, examples=examples, seed=seed, **how)
    if not proof.proved:
        again = f"check_pipeline(…, examples={BATCH}, seed={proof.batch_seed})"
        if isinstance(pipeline, str) and outputs is None and prompts is None:
            again = f"omni-actors prove {pipeline} --examples {BATCH} --seed {proof.batch_seed}"
        raise AssertionError(f"{proof}\nTo find it again: {again}" if proof.violation else str(proof))
    return proof


# ---------------------------------------------------------------------- the search


@attrs.frozen
class _Failure:
    scenario: Scenario
    history: History
    violation: Violation
    deep: bool


class _Found(Exception):
    """What tells Hypothesis that an example fails."""


class _Search:
    """Owns the counts, and the smallest failure so far."""

    def __init__(self, subject: Subject, progress: Callable[[int], None] | None) -> None:
        self._subject, self._progress = subject, progress
        self.seen: Counter[str] = Counter()
        self.examples = 0
        self.failure: _Failure | None = None

    def batch(self, examples: int, seed: int) -> bool:
        """One run of Hypothesis; whether it has found a violation, which is then shrunk."""

        @hypothesis.seed(seed)
        @hypothesis.settings(
            max_examples=examples,
            database=None,
            deadline=None,
            derandomize=False,
            print_blob=False,
            report_multiple_bugs=False,
            verbosity=Verbosity.quiet,
            phases=(Phase.generate, Phase.shrink) if self._subject.drawn else (Phase.generate,),
            suppress_health_check=list(HealthCheck),
        )
        @hypothesis.given(self._subject.scenarios, st.integers(0, DEEP - 1))
        def run(scenario: Scenario, depth: int) -> None:
            self._example(scenario, deep=depth == DEEP - 1)

        try:
            with by_seed_alone():
                run()
        except _Found:
            self._reduce()
            return True
        except hypothesis.errors.Flaky:
            self._not_again()
            return True
        return False

    def _example(self, scenario: Scenario, *, deep: bool) -> None:
        history, found = self._subject.judge(scenario, deep=deep)
        if self.failure is None:
            self._count(history)
        else:
            # Shrinking stays with the invariant that it began with.
            found = [each for each in found if each.invariant == self.failure.violation.invariant]
        if found:
            self.failure = _Failure(scenario, history, found[0], deep)
            raise _Found

    def _reduce(self) -> None:
        """What Hypothesis does not see to be superfluous."""
        assert self.failure is not None
        invariant, deep = self.failure.violation.invariant, self.failure.deep

        def fails(scenario: Scenario) -> bool:
            history, found = self._subject.judge(scenario, deep=deep)
            same = [violation for violation in found if violation.invariant == invariant]
            if same:
                self.failure = _Failure(scenario, history, same[0], deep)
            return bool(same)

        smallest(self.failure.scenario, fails)

    def _not_again(self) -> None:
        """A failure that does not come back is one of I25: the run was no function of its scenario."""
        assert self.failure is not None
        message = f"the same scenario failed once and then did not: {self.failure.violation}"
        self.failure = attrs.evolve(self.failure, violation=Violation(invariant="I25", message=message))

    def _count(self, history: History) -> None:
        self.examples += 1
        self.seen.update(_seen(history))
        if self._progress is not None:
            self._progress(self.examples)


def _seen(history: History) -> Iterator[str]:
    """What happened in one run, by the names of ``Proof.seen``."""
    worked: set[str] = set()
    for event in history.events:
        match event:
            case Opened():
                yield "opened"
            case TerminalSeen(kind=kind, error=error):
                yield f"terminal {kind}"
                if error is not None:
                    yield f"error {error}"
            case Refused(error=error):
                yield f"refused {error}"
            case Faulted(op=op, done=True):
                yield f"fault {op}"
            case Wire(way="sent", what="add", stage=stage):
                worked.add(stage)
    yield from (f"site {site}" for site in sorted(history.sites))
    yield from (f"op {type(op).__name__.lower()}" for op in (history.scenario or Scenario()).ops)
    yield from _edges_used(history.pipeline, worked)
    if any(stage.companions for stage in history.pipeline.stages):
        yield from _companions(Facts(history))
    if any(denoises(stage) for stage in history.pipeline.stages):
        yield from _steps(history)


def _companions(facts: Facts) -> Iterator[str]:
    """What became of the companions: early and late ones finish before and after their main work."""
    for lease in facts.leases.values():
        if (main := facts.main_of(lease)) is None:
            continue
        if lease.finished is not None:
            early = main.finished is None or lease.finished < main.finished
            yield f"companion {'early' if early else 'late'}"
        elif lease.how in ("died", "failed"):
            yield f"companion {'dead' if lease.how == 'died' else 'failed'}"


def _steps(history: History) -> Iterator[str]:
    """What became of steps: a reader saw one, leases shared one, an abort came between two, one did not end."""
    batches: Counter[tuple[float, str, int]] = Counter()
    begun: set[str] = set()
    stuck: set[tuple[str, int, int]] = set()
    for event in history.events:
        match event:
            case Got(step=tuple()):
                yield "step shown"
            case Noted(what="step", key=key):
                begun.add(key)
                batches[event.at, event.stage, event.replica] += 1
            case Noted(what="abort", key=key) if key in begun:
                yield "step aborted"
            case Wire(what="heartbeat", data=(busy_ms,)) if busy_ms >= 1000:
                stuck.add(event.place)
            case StageSaid(kind="exited", verdict="hang"):
                if (event.stage, event.replica, event.generation) in stuck:
                    yield "step stuck"
    yield from ("step shared" for size in batches.values() if size > 1)


def _edges_used(spec: PipelineSpec, worked: set[str]) -> Iterator[str]:
    """The edges into the stages that got work, by name and by shape."""
    sources: Counter[str] = Counter()
    for stage in spec.stages:
        if stage.name not in worked:
            continue
        if len(stage.inputs) > 1:
            yield "edge fan-in"
        for edge in stage.inputs:
            sources[edge.stage] += 1
            yield f"edge {edge.mode}"
            yield f"edge {edge.stage}->{stage.name}"
    yield from ("edge fan-out" for count in sources.values() if count > 1)
