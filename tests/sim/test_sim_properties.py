"""All invariants, on hundreds of generated scenarios: pipelines, requests, faults, schedules.

``--prove-seed S`` (with the plugin of ``omni_actors.testing`` loaded) proves another five hundred.
"""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis.internal.conjecture import engine, providers

from omni_actors import UsageError
from omni_actors.lifecycle import RequestTable
from omni_actors.runtime._handler import RequestHandler
from omni_actors.runtime._stream import Stream
from omni_actors.testing import Scenario, Stage, Violation, ops, prove, replay, scenario_from_json, simulate
from omni_actors.testing import _subject as subject
from omni_actors.testing._hypothesis import by_seed_alone
from omni_actors.testing._prove import BATCH, COMPANIONS, FATES, FAULTS, SHAPES, STEPS, Proof

BATCHES = 5
SEED = 20_260


@pytest.fixture
def seed(pytestconfig) -> int:
    return pytestconfig.getoption("--prove-seed", default=None) or SEED


@pytest.fixture(scope="module")
def seen() -> Counter[str]:
    return Counter()


# ---------------------------------------------------------------------- the proof


@pytest.mark.parametrize("batch", range(BATCHES))
def test_every_invariant_holds(batch, seed, seen):
    proof = prove(examples=BATCH, seed=seed + batch)
    assert proof.violation is None, str(proof)
    assert proof.examples == BATCH
    seen.update(proof.seen)
    seen["examples"] += proof.examples


def test_and_all_that_was_planned_has_happened(seen, seed):
    if seen["examples"] < BATCHES * BATCH:
        pytest.skip("says something about all the batches together")
    planned = frozenset([*FATES, *FAULTS, *SHAPES, *COMPANIONS, *STEPS])
    proof = Proof(examples=seen["examples"], seed=seed, seconds=0.0, seen=seen, planned=planned)
    assert proof.proved, str(proof)
    assert seen["opened"] > 0.8 * seen["examples"]
    assert sum(name.startswith("site ") for name in seen) >= 5


# ---------------------------------------------------------------------- that it would find something


def settles_twice(settle):
    def planted(self, record, kind, **how):
        if record.terminal is not None and kind is not record.terminal.kind:
            record.terminal = None
            self.unsettled += 1
        return settle(self, record, kind, **how)

    return planted


def leaves_the_unread(close):
    def planted(self, terminal):
        self.terminal = terminal
        self._wake()

    return planted


def tells_nobody(_):
    return lambda self, leases: None


@pytest.mark.parametrize(
    ("owner", "method", "planted", "broken"),
    [
        (RequestTable, "settle", settles_twice, {"I0", "I1", "I5"}),
        (Stream, "close", leaves_the_unread, {"I2", "I3"}),
        (RequestHandler, "_tell_engines", tells_nobody, {"I3", "I10", "I11", "I16"}),
    ],
    ids=["settled twice", "no fence", "engines not told"],
)
def test_a_planted_bug_is_found_shrunk_and_found_again(owner, method, planted, broken, monkeypatch):
    monkeypatch.setattr(owner, method, planted(getattr(owner, method)))
    proof = prove(examples=3 * BATCH, seed=11)
    assert not proof.proved
    assert proof.violation.invariant in broken, str(proof)
    assert len(proof.scenario.ops) <= 3, str(proof)
    assert len(proof.scenario.stages) <= 2, str(proof)

    again, violations = replay(scenario_from_json(proof.scenario.to_json()))
    assert again.to_json() == proof.history.to_json()
    assert proof.violation in violations
    assert proof.scenario.to_json() in str(proof)

    monkeypatch.undo()
    assert replay(proof.scenario)[1] == []


def test_its_batch_seed_alone_finds_it_again(monkeypatch):
    monkeypatch.setattr(Stream, "close", leaves_the_unread(Stream.close))
    first = prove(examples=2 * BATCH, seed=30)
    second = prove(examples=BATCH, seed=first.batch_seed)
    assert second.scenario == first.scenario
    assert second.violation == first.violation


def test_a_run_that_is_no_function_of_its_scenario_is_found(monkeypatch):
    """The second run of every scenario has other requests."""
    runs = []

    def moody(scenario, pipeline=None):
        runs.append(scenario)
        asked = ops.Submit(at=0.5, request=f"run {len(runs)}")
        return simulate(Scenario(ops=(asked,), stages=(Stage(name="a", output="text"),)))

    monkeypatch.setattr(subject, "simulate", moody)
    proof = prove(examples=BATCH, seed=1)
    assert proof.violation.invariant == "I25"


def test_a_failure_that_does_not_come_back_is_one_of_replay(monkeypatch):
    verdicts = iter([[Violation(invariant="I3", message="once")]])
    monkeypatch.setattr(subject, "check", lambda history: next(verdicts, []))
    proof = prove(examples=10, seed=1)
    assert proof.violation.invariant == "I25"
    assert "failed once and then did not: I3: once" in proof.violation.message


# ---------------------------------------------------------------------- the proof as an object


def test_a_proof_that_has_not_seen_all_that_was_planned_is_none():
    def proof(examples: int, *seen: str) -> Proof:
        planned = frozenset({"fault kill", "terminal aborted"})
        return Proof(examples=examples, seed=1, seconds=0.1, seen=Counter(seen), planned=planned)

    assert proof(500, "fault kill", "terminal aborted").proved
    assert not proof(500, "fault kill").proved
    assert "there was no terminal aborted" in str(proof(500, "fault kill"))
    assert proof(50, "fault kill").proved, "so few examples need not meet everything"


def test_progress_counts_the_examples():
    heard = []
    assert prove(examples=7, seed=2, progress=heard.append).examples == 7
    assert heard == [1, 2, 3, 4, 5, 6, 7]


def test_wrong_arguments_are_refused():
    with pytest.raises(UsageError, match="examples must be at least 1"):
        prove(examples=0)


# ---------------------------------------------------------------------- Hypothesis, as far as we know it by heart


def test_the_private_names_are_there_and_left_as_they_were():
    mutations = engine.ConjectureRunner.generate_mutations_from
    before = providers._get_local_constants, engine.MAX_SHRINKING_SECONDS
    with by_seed_alone():
        assert len(providers._get_local_constants()) == 0
        assert engine.MAX_SHRINKING_SECONDS == 20
        assert engine.ConjectureRunner.generate_mutations_from is not mutations
    assert engine.ConjectureRunner.generate_mutations_from is mutations
    assert (providers._get_local_constants, engine.MAX_SHRINKING_SECONDS) == before
