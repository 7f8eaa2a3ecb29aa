"""Four defects that systems of this kind have shipped, as scenarios: named after what a user would have seen.

Each is one ``Scenario``, run under several schedules and with the runtime's sites active; all invariants are checked
beside what the case itself is about.
"""

from __future__ import annotations

import attrs
import msgspec
import pytest

from omni_actors.testing.invariants import Facts, check
from omni_actors.testing.rigs import SHORT, core, omni_stage, pipeline, speech
from omni_actors.testing.sim._history import AbortReturned, Closed, Ended, History, ShutdownReturned, TerminalSeen, Wire
from omni_actors.testing.sim._scenario import Abort, Kill, Scenario, Shutdown, Submit
from omni_actors.testing.sim._simulate import simulate

SEEDS = range(20)
LONG = {"max_tokens": 5000}


def run(scenario: Scenario, spec, seed: int) -> tuple[History, Facts]:
    history = simulate(msgspec.structs.replace(scenario, seed=seed), spec)
    assert check(history) == []
    return history, Facts(history)


def ended(history: History) -> dict[str, str]:
    return {event.request: event.how for event in history.of(Ended)}


@pytest.mark.parametrize("seed", SEEDS)
def test_a_dead_engine_freezes_nobody_else(seed):
    """Aborts and shutdowns of a dead engine block on nothing: the others stream on, and the dead one's users hear."""
    spec = pipeline(
        core("thinker", output="text", tokens=60, params=LONG),
        omni_stage("painter", output="image", chunks=200),
    )
    scenario = Scenario(
        ops=(
            Submit(at=0.1, request="talk", modalities=("text",)),
            Submit(at=0.1, request="paint", modalities=("image",)),
            Submit(at=0.1, request="paint more", modalities=("image",)),
            Kill(at=0.3, stage="painter"),
            Abort(at=0.3, id="paint more"),
            Submit(at=0.31, request="paint later", modalities=("image",), timeout_s=20),
        )
    )
    history, _ = run(scenario, spec, seed)
    how = ended(history)
    assert how["talk"] == how["paint later"] == "end"
    assert how["paint"] == "StageFailed"
    assert how["paint more"] in ("end", "StageFailed")  # the abort and the death came in the same instant
    assert [event.error for event in history.of(Closed)] == [None]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_clean_shutdown_ends_while_a_replica_comes_and_another_goes(seed):
    spec = speech(talker={"replicas": 3, "start_s": 2.0, "deadlines": attrs.evolve(SHORT, backoff_first_s=3.0)})
    scenario = Scenario(
        ops=(
            Submit(at=2.5, request="one"),
            Kill(at=2.6, stage="talker", replica=0),
            Kill(at=6.0, stage="talker", replica=1),
            Shutdown(at=6.1),
            Shutdown(at=6.2, drain_s=0.5),
        )
    )
    history, facts = run(scenario, spec, seed)
    called = 6.1
    returned = list(history.of(ShutdownReturned))
    assert len(returned) >= 2
    assert all(event.at - called < 0.5 + 2 + 3 + 2 for event in returned)
    assert all(life.exited is not None for life in facts.generations.values() if life.spawned is not None)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("bad", "error"),
    [
        ({"prompt": "!a bug in the transform"}, "TransformFailed"),
        ({"prompt": "x" * 90}, "InvalidRequest"),
        ({"params": {"talker": {"unknown": 1}}}, "InvalidRequest"),
        ({"params": {"talker": {"n": 0}}}, "InvalidRequest"),
    ],
    ids=[
        "a bug in the transform",
        "a prompt too long for the next stage",
        "unknown params",
        "params out of range",
    ],
)
def test_one_requests_bad_data_fails_that_request_alone(seed, bad, error):
    spec = speech(
        talker={"max_model_len": 80, "transform": "omni_actors.testing.pipelines:repeat_prompt"},
        vocoder={"transform": "omni_actors.testing.pipelines:broken"},
    )
    scenario = Scenario(
        ops=(
            Submit(at=0.1, request="before"),
            Submit(at=0.12, request="bad", **bad),
            Submit(at=0.12, request="beside"),
            Submit(at=1.0, request="after"),
        )
    )
    history, _ = run(scenario, spec, seed)
    refused = {event.request: event.error for event in history.events if type(event).__name__ == "Refused"}
    assert {**ended(history), **refused} == {"before": "end", "bad": error, "beside": "end", "after": "end"}
    assert [event.error for event in history.of(Closed)] == [None]


@pytest.mark.parametrize("seed", SEEDS)
def test_an_abort_while_waiting_for_a_replica_leaves_no_work_behind(seed):
    spec = speech(talker={"deadlines": attrs.evolve(SHORT, backoff_first_s=2.0)})
    scenario = Scenario(
        ops=(
            Kill(at=0.1, stage="talker"),
            Submit(at=0.2, request="waits", modalities=("audio",)),
            Abort(at=1.0, id="waits"),
            Submit(at=3.0, request="next"),
        )
    )
    history, facts = run(scenario, spec, seed)
    (returned,) = history.of(AbortReturned)
    assert returned.known
    assert returned.unconfirmed == ()
    assert {e.request: e.kind for e in history.of(TerminalSeen)} == {"waits": "aborted", "next": "finished"}
    waits = facts.requests["waits"].key
    assert [e.stage for e in history.of(Wire) if e.what == "add" and e.key.startswith(f"{waits}-")] == ["thinker"]
