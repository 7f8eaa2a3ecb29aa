"""The cancel sweep: whatever happens, it happens at every step of the scheduler.

Each scenario runs once, and its steps are counted. Then it runs again for every step k. Right after step k the task
that holds the runtime is cancelled, or an engine is killed, or ``shutdown`` is called, or a request is aborted, or its
reader leaves. Nothing may be left behind (I24), nothing may hang, and every other invariant holds as well.

Aborts and readers who leave come at every fourth step only, ``OMNI_SWEEP=all`` at all of them.
"""

from __future__ import annotations

import os

import pytest

from omni_actors.testing.invariants import check
from omni_actors.testing.sim._scenario import Abort, Cancel, Kill, Leave, Scenario, Shutdown, Stage, Submit
from omni_actors.testing.sim._simulate import simulate

STRIDES = {} if os.environ.get("OMNI_SWEEP") == "all" else {"aborted": 4, "left": 4}

SPEECH = Scenario(
    stages=(
        Stage(name="thinker", output="text", behaviour={"tokens": 10}),
        Stage(name="talker", inputs=("thinker",), segments=True, behaviour={"tokens": 4}),
        Stage(name="vocoder", wire="omni", inputs=("talker",), output="audio", behaviour={"chunks": 2}),
    ),
    ops=(
        Submit(at=0.01, request="whole"),
        Submit(at=0.01, request="text", modalities=("text",)),
        Submit(at=0.02, request="leaves", leave_after=3),
        Submit(at=0.03, request="stays", pace_s=0.02),
        Abort(at=0.05, id="whole"),
    ),
    seed=1,
)
STARTING = Scenario(
    stages=(
        Stage(name="slow", output="text", behaviour={"start_s": 2.0, "tokens": 3}),
        Stage(name="slower", wire="omni", inputs=("slow",), output="audio", behaviour={"start_s": 5.0}, replicas=2),
    ),
    ops=(Submit(at=1.0, request="early"), Submit(at=6.0, request="in time")),
    seed=2,
)
DYING = Scenario(
    stages=(
        Stage(name="thinker", output="text", behaviour={"tokens": 12}, replicas=2),
        Stage(name="talker", inputs=("thinker",), output="audio", wire="omni"),
    ),
    ops=(
        Submit(at=0.01, request="a"),
        Submit(at=0.01, request="b"),
        Kill(at=0.05, stage="thinker", replica=0),
        Submit(at=0.06, request="c", inside=False),
        Kill(at=0.14, stage="talker"),
        Submit(at=0.15, request="d"),
    ),
    seed=3,
)
THREADS = Scenario(
    stages=(
        Stage(name="ear", behaviour={"tokens": 3}, cheap=False),
        Stage(name="left", inputs=("ear",), cheap=False, behaviour={"tokens": 3}),
        Stage(name="right", inputs=("ear",), wire="omni", cheap=False),
        Stage(name="both", inputs=("left", "right"), output="text", cheap=False, behaviour={"tokens": 3}),
    ),
    ops=(Submit(at=0.01, request="a"), Submit(at=0.02, request="b", pace_s=0.1), Submit(at=0.03, request="c")),
    seed=4,
)

OPS = {
    "cancelled": lambda scenario, step: Cancel(),
    "an engine killed": lambda scenario, step: Kill(stage=scenario.stages[step % len(scenario.stages)].name),
    "shut down": lambda scenario, step: Shutdown(drain_s=(None, 0.0)[step % 2]),
    "aborted": lambda scenario, step: Abort(id=requests(scenario)[step % len(requests(scenario))]),
    "left": lambda scenario, step: Leave(request=requests(scenario)[step % len(requests(scenario))]),
}


def requests(scenario: Scenario) -> list[str]:
    return [op.request for op in scenario.ops if isinstance(op, Submit)]


@pytest.mark.parametrize("what", OPS)
@pytest.mark.parametrize("scenario", [SPEECH, STARTING, DYING, THREADS], ids=["speech", "starting", "dying", "threads"])
def test_at_every_step(scenario: Scenario, what: str) -> None:
    """I24, and all the others: at every step the end is complete."""
    plain = simulate(scenario)
    assert check(plain) == []
    for step in range(1, plain.steps + 1, STRIDES.get(what, 1)):
        op = OPS[what](scenario, step)
        history = simulate(scenario, at_step={step: op})
        told = f"{what} at step {step} of {plain.steps}: {op}\n{scenario.to_json()}"
        assert check(history) == [], told
