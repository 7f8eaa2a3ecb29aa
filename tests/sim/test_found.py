"""What the proof, or a look at it, has found in the runtime: the shrunk scenario of each, kept."""

from __future__ import annotations

import msgspec
import pytest

from omni_actors.testing.invariants import check
from omni_actors.testing.sim._history import StageSaid
from omni_actors.testing.sim._scenario import Abort, Resume, Scenario, Stage, Stall, Submit
from omni_actors.testing.sim._simulate import simulate

SEEDS = range(5)
LONG = {"max_tokens": 5000}


@pytest.mark.parametrize("seed", SEEDS)
def test_an_abort_that_finds_its_queue_full_leaves_later(seed):
    """The queue of a stopped engine held an ABORT and its barrier and no more: the next ABORT was lost, its lease never
    released, and the engine, healthy again, was killed as hung.
    """
    names = ("a", "b", "c")
    scenario = Scenario(
        stages=(Stage(name="llm", output="text", behaviour={"tokens": 5000}),),
        ops=(
            *(Submit(at=0.1, request=name, params=LONG) for name in names),
            Stall(at=0.2, stage="llm"),
            *(Abort(at=0.3 + number / 10, id=name) for number, name in enumerate(names)),
            Resume(at=1.0, stage="llm"),
        ),
        hwm=1,
        queue_limit=2,
        buggify=False,
    )
    history = simulate(msgspec.structs.replace(scenario, seed=seed))
    assert check(history) == []
    assert [event.verdict for event in history.of(StageSaid) if event.verdict] == []
