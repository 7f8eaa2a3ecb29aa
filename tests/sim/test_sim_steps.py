"""Diffusion stages and pipelines that branch, in scenarios: C5, ties, progress, a step that never ends."""

from __future__ import annotations

import pytest

from omni_actors.testing import Scenario, Stage, ops, simulate
from omni_actors.testing._fake_omni import HEARTBEAT_S
from omni_actors.testing._prove import STEPS, _seen
from omni_actors.testing.invariants import check
from omni_actors.testing.sim._history import Got, Noted, StageSaid, TerminalSeen, Wire

STEP_S = 0.05
SHOWN = {"painter": {"progress": True}}


def painter(*, inputs=(), segments=False, replicas=1, deadlines=None, **behaviour):
    told = {"steps": 50, "chunks": 1, "chunk_s": STEP_S, **behaviour}
    return Stage(
        name="painter", wire="omni", inputs=inputs, segments=segments, output="image", replicas=replicas,
        behaviour=told, deadlines=deadlines or {},
    )  # fmt: skip


def run(*what, stages=None, seed=5, **limits):
    history = simulate(Scenario(stages=stages or (painter(),), ops=what, seed=seed, **limits))
    assert check(history) == []
    return history


def ends(history):
    return {event.request: (event.kind, event.error) for event in history.of(TerminalSeen)}


def steps(history, number):
    """How many steps the engine began for the request that came as this one."""
    return sum(event.what == "step" and event.key.startswith(f"{number}-") for event in history.of(Noted))


def test_c5_who_leaves_costs_two_steps_at_most_and_who_queues_costs_none():
    history = run(
        ops.Submit(at=0.1, request="first", params=SHOWN, leave_after=5),
        ops.Submit(at=0.11, request="second"),
        ops.Submit(at=0.12, request="third"),
        ops.Leave(at=0.3, request="third"),
        stages=(painter(capacity=1),),
    )
    assert ends(history) == {"first": ("aborted", None), "second": ("finished", None), "third": ("aborted", None)}
    assert steps(history, 1) <= 5 + 2
    assert steps(history, 2) == 50
    assert steps(history, 3) == 0
    assert {event.generation for event in history.of(Noted)} == {1}


@pytest.mark.parametrize("late_s", [-STEP_S, -0.001, 0.0, 0.001])
@pytest.mark.parametrize("seed", range(4))
def test_c6_the_last_step_and_an_abort_in_one_tick(late_s, seed):
    """Whoever wins, it is one end, and nothing comes after it."""
    over_at = 0.1 + 4 * STEP_S
    history = run(
        ops.Submit(at=0.1, request="r", params=SHOWN),
        ops.Abort(at=over_at + late_s, id="r"),
        stages=(painter(steps=4),),
        seed=seed,
    )
    kind, _ = ends(history)["r"]
    assert kind in ("finished", "aborted") if late_s in (0.0, 0.001) else kind == "aborted"
    assert steps(history, 1) <= 4


def test_progress_that_crosses_an_abort_reaches_nobody():
    """It was made before the engine heard of the abort, and arrives after it."""
    history = run(
        ops.Submit(at=0.1, request="r", params=SHOWN),
        ops.Submit(at=0.1, request="other", params=SHOWN),
        *(ops.Abort(at=0.1 + 3 * STEP_S, id=name) for name in ("r", "nobody")),
        stages=(painter(steps=6),),
    )
    done = [event.step[0] for event in history.of(Got) if event.request == "r"]
    assert done in ([1, 2], [1, 2, 3])
    assert [e.step and e.step[0] for e in history.of(Got) if e.request == "other"] == [1, 2, 3, 4, 5, None]


def test_previews_and_steps_are_no_results():
    params = {"painter": {"progress": True, "preview_every": 1}}
    history = run(ops.Submit(at=0.1, request="r", params=params), stages=(painter(steps=6),))
    (end,) = history.of(TerminalSeen)
    assert end.pieces == (("painter", 0, 0, 1),)
    assert sum(event.step is not None for event in history.of(Got)) == 5


def test_a_stuck_step_is_found_fails_its_own_and_the_others_wait_for_the_restart():
    """Two are in the step that never ends, one comes while the engine is being replaced.

    It is found within ``step_s`` and ``silence_s``, and the second in which the engine tells how it is.
    """
    stages = (painter(steps=3, stuck_at_chunk=1, deadlines={"step_s": 1.5, "silence_s": 0.3, "hang_s": 60.0}),)
    asked = [ops.Submit(at=0.1, request=name, params={"painter": {"num_inference_steps": 3}}) for name in ("a", "b")]
    waits = ops.Submit(at=2.5, request="c", params={"painter": {"num_inference_steps": 1}})
    history = run(*asked, waits, stages=stages)
    assert ends(history) == {"a": ("failed", "StageFailed"), "b": ("failed", "StageFailed"), "c": ("finished", None)}
    (hung,) = [event for event in history.of(StageSaid) if event.verdict == "hang" and event.kind == "exited"]
    begun_at = 0.1 + STEP_S
    assert begun_at + 1.5 < hung.at <= begun_at + 1.5 + HEARTBEAT_S + 0.3


def test_whom_the_caller_is_to_blame_for_is_told_so_and_nobody_else_notices():
    history = run(
        ops.Submit(at=0.1, request="none", params={"painter": {"num_inference_steps": 0}}),
        ops.Submit(at=0.1, request="some"),
        stages=(painter(steps=2),),
    )
    assert ends(history) == {"none": ("failed", "InvalidRequest"), "some": ("finished", None)}


BRANCHES = (
    Stage(name="thinker", output="text", behaviour={"tokens": 16}),
    Stage(name="talker", inputs=("thinker",), segments=True, behaviour={"tokens": 3}),
    Stage(name="vocoder", wire="omni", inputs=("talker",), output="audio", behaviour={"chunks": 2}),
    painter(inputs=("thinker",), segments=True, steps=5),
)


@pytest.mark.parametrize("wanted", [("text",), ("audio",), ("image",), ("text", "audio", "image")])
def test_a_pipeline_that_branches_makes_what_is_asked_for_and_no_more(wanted):
    history = run(ops.Submit(at=0.1, request="r", modalities=wanted, params=SHOWN), stages=BRANCHES)
    assert ends(history) == {"r": ("finished", None)}
    assert {event.modality for event in history.of(Got)} == set(wanted)
    worked = {event.stage for event in history.of(Wire) if event.what == "add"}
    assert ("painter" in worked, "vocoder" in worked) == ("image" in wanted, "audio" in wanted)


def test_leaving_while_both_branches_are_at_work_ends_both():
    history = run(
        ops.Submit(at=0.1, request="r", params=SHOWN),
        ops.Abort(at=0.26, id="r"),
        ops.Submit(at=0.1, request="other", params=SHOWN),
        stages=BRANCHES,
    )
    assert ends(history) == {"r": ("aborted", None), "other": ("finished", None)}
    assert {event.stage for event in history.of(Wire) if event.what == "abort"} >= {"painter"}
    assert set(_seen(history)) >= {"step shown", "step shared", "step aborted"}


def test_a_proof_that_has_not_seen_each_of_them_is_none():
    assert set(STEPS) == {"step shown", "step shared", "step aborted", "step stuck"}
