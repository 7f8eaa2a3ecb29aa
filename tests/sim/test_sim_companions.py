"""Early, late, refused and dead companions, each in a scenario: all of them reached, and every invariant holds."""

from __future__ import annotations

from omni_actors.testing import Scenario, Stage, ops, simulate
from omni_actors.testing._prove import COMPANIONS, _seen
from omni_actors.testing.invariants import check
from omni_actors.testing.sim._history import TerminalSeen

ASK = ops.Submit(at=0.1, request="r")


def guided(*more, **behaviour):
    """A thinker with a short and a long companion, two copies of it, and a painter that sees them."""
    thinker = Stage(
        name="thinker",
        output="text",
        companions=True,
        replicas=2,
        behaviour={"tokens": 12, "token_s": 0.1, **behaviour},
    )
    painter = Stage(name="painter", wire="omni", inputs=("thinker",), output="image")
    return Scenario(stages=(thinker, painter), ops=(ASK, *more), seed=3)


def run(scenario):
    history = simulate(scenario)
    assert check(history) == []
    (end,) = history.of(TerminalSeen)
    return set(_seen(history)), end


def test_early_and_late():
    """The short one ends with the first token of the main work's two, the long one after twelve."""
    seen, end = run(guided())
    assert {"companion early", "companion late"} <= seen
    assert end.kind == "finished"


def test_dead():
    """Its engine is killed while only the long one is at work."""
    seen, end = run(guided(*(ops.Kill(at=0.8, stage="thinker", replica=replica) for replica in (0, 1))))
    assert "companion dead" in seen
    assert (end.kind, end.error, end.stage) == ("failed", "StageFailed", "thinker")
    assert "companion 'long' of stage thinker" in end.reason


def test_refused():
    seen, end = run(guided(reject="long"))
    assert "companion failed" in seen
    assert (end.kind, end.error) == ("failed", "EngineRejected")
    assert "companion 'long' of stage thinker" in end.reason


def test_aborted_while_only_a_companion_is_at_work():
    seen, end = run(guided(ops.Abort(at=0.8, id="r")))
    assert not seen & {"companion dead", "companion failed", "companion late"}
    assert end.kind == "aborted"


def test_a_proof_that_has_not_seen_each_of_them_is_none():
    assert set(COMPANIONS) == {"companion early", "companion late", "companion dead"}
