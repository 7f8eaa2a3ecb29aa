"""I25: the same scenario and seed give the same history, byte for byte, in every process and under every hash seed."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from itertools import zip_longest
from pathlib import Path

import msgspec
import pytest

from omni_actors.testing.sim._history import TerminalSeen, events_from_json
from omni_actors.testing.sim._scenario import (
    Abort,
    Call,
    Cancel,
    Exit,
    Inject,
    Kill,
    Leave,
    Op,
    Resume,
    Scenario,
    Shutdown,
    Stage,
    Stall,
    Submit,
    scenario_from_json,
)

PROGRAM = Path(__file__).with_name("replay_program.py")
SCENARIOS = 25
HASH_SEEDS = ("0", "1", "random")

PIPELINES = (
    (
        Stage(name="t", output="text", behaviour={"tokens": 10}),
        Stage(name="k", inputs=("t",), segments=True, behaviour={"tokens": 8}, replicas=3),
        Stage(name="v", wire="omni", inputs=("k",), output="audio", replicas=2),
    ),
    (
        Stage(name="a", behaviour={"tokens": 6}, replicas=2),
        Stage(name="b", inputs=("a",), output="text", cheap=False),
        Stage(name="c", wire="omni", inputs=("a",), output="image", replicas=3),
        Stage(name="d", inputs=("b", "c"), output="audio", cheap=False),
        Stage(name="e", wire="omni", inputs=("d", "a"), output="video"),
    ),
)


def scenario(seed: int) -> Scenario:
    """A scenario full of everything, from its seed."""
    draw = random.Random(seed)
    stages = PIPELINES[seed % len(PIPELINES)]
    submits = [_submit(draw, f"r{number}") for number in range(draw.randrange(4, 9))]
    faults = [_op(draw, stages) for _ in range(draw.randrange(4, 12))]
    limits = {"hwm": draw.choice((10_000, 2)), "queue_limit": draw.choice((10_000, 16))}
    return Scenario(stages=stages, ops=(*submits, *faults), seed=seed, **limits)


def _submit(draw: random.Random, request: str) -> Submit:
    return Submit(
        at=round(draw.uniform(0, 1), 2),
        request=request,
        id=draw.choice(("", "same")),
        pace_s=draw.choice((0.0, 0.02)),
        leave_after=draw.choice((None, None, 2)),
        leave=draw.choice(("break", "raise", "cancel")),
        timeout_s=draw.choice((None, None, 0.2)),
        inside=draw.random() < 0.5,
    )


def _op(draw: random.Random, stages: tuple[Stage, ...]) -> Op:
    at, stage = round(draw.uniform(0, 2), 2), draw.choice(stages)
    where = {"at": at, "stage": stage.name, "replica": draw.randrange(stage.replicas)}
    what = draw.choice(("garbage", "truncated", "empty", "late release", "stranger", "late output"))
    request = f"r{draw.randrange(8)}"
    ops: list[Op] = [
        Abort(at=at, id=draw.choice((request, "same"))),
        Leave(at=at, request=request),
        Call(at=at, stage=stage.name),
        Kill(**where),
        Kill(**where, signal="TERM"),
        Exit(**where),
        Stall(**where),
        Resume(**where),
        Inject(**where, what=what),
        Shutdown(at=at + 1),
        Cancel(at=at + 1),
    ]
    return draw.choice(ops)


def histories(scenarios: list[Scenario], hash_seed: str) -> list[bytes]:
    """What another process makes of the scenarios."""
    run = subprocess.run(
        [sys.executable, PROGRAM],
        input="".join(f"{scenario.to_json()}\n" for scenario in scenarios).encode(),
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        timeout=120,
    )
    assert run.returncode == 0, run.stderr.decode()
    return run.stdout.splitlines()


def first_difference(one: bytes, other: bytes) -> str:
    """The first event that is not the same."""
    pairs = zip_longest(events_from_json(one), events_from_json(other))
    return next((f"event {n}: {a}\n     but: {b}" for n, (a, b) in enumerate(pairs) if a != b), "the same events")


@pytest.mark.process
def test_every_process_sees_the_same() -> None:
    first = random.randrange(10_000)
    scenarios = [scenario(first + number) for number in range(SCENARIOS)]
    runs = [histories(scenarios, hash_seed) for hash_seed in HASH_SEEDS]
    assert [len(run) for run in runs] == [SCENARIOS] * len(HASH_SEEDS)
    kinds = set()
    for played, *seen in zip(scenarios, *runs, strict=True):
        for hash_seed, history in zip(HASH_SEEDS[1:], seen[1:], strict=True):
            told = f"hash seed {hash_seed}: {played.to_json()}"
            assert history == seen[0], f"{first_difference(seen[0], history)}\n{told}"
        kinds |= {event.kind for event in events_from_json(seen[0]) if isinstance(event, TerminalSeen)}
    # Otherwise the scenarios were too tame to show anything.
    assert {"finished", "aborted", "failed"} <= kinds


@pytest.mark.process
def test_another_seed_is_seen_as_a_difference() -> None:
    """The comparison can fail."""
    played = msgspec.structs.replace(scenario(3), buggify=True)
    other = msgspec.structs.replace(played, seed=played.seed + 2)
    one, two = histories([played, other], "0")
    assert one != two
    assert first_difference(one, two).startswith("event ")


def test_a_scenario_survives_its_own_text() -> None:
    for seed in range(SCENARIOS):
        assert scenario_from_json(scenario(seed).to_json()) == scenario(seed)
