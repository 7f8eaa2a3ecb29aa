"""The pure parts of chaos: schedules from seeds, the count of what was done, what is found left behind."""

from __future__ import annotations

import signal
from collections import Counter

import pytest

from omni_actors.testing.chaos import FAULTS, MIN_FAULTS, OPEN_AT, faults_done, schedule
from omni_actors.testing.chaos._left import differences
from omni_actors.testing.chaos._lines import Line, Tally
from omni_actors.testing.chaos._real import real_pipeline, real_schedule
from omni_actors.testing.sim._history import (
    AbortCalled,
    Ended,
    Faulted,
    History,
    Process,
    ShutdownCalled,
    StageSaid,
)
from omni_actors.testing.sim._scenario import Abort, Cancel, Kill, Leave, Resume, Shutdown, Stall, scenario_from_json

HURTS = (Kill, Stall, Abort, Leave, Shutdown, Cancel)
PLACE = {"stage": "thinker", "replica": 0}


@pytest.mark.parametrize("draw", [schedule, real_schedule])
def test_a_schedule_is_a_function_of_its_seed_and_survives_json(draw):
    assert draw(7) == draw(7)
    assert draw(7) != draw(8)
    assert scenario_from_json(draw(7).to_json()) == draw(7)


@pytest.mark.parametrize("seed", range(50))
def test_every_schedule_plans_more_faults_than_it_must_do(seed):
    for scenario in (schedule(seed), real_schedule(seed)):
        assert sum(isinstance(op, HURTS) for op in scenario.ops) >= MIN_FAULTS + 2
        stopped = [op.stage for op in scenario.ops if isinstance(op, Resume)]
        assert Counter(stopped) <= Counter(op.stage for op in scenario.ops if isinstance(op, Stall))


def test_all_kinds_of_faults_are_drawn():
    ops = [op for seed in range(100) for op in schedule(seed).ops]
    assert {type(op) for op in ops} >= set(HURTS)
    assert {(op.signal, op.member) for op in ops if isinstance(op, Kill)} == {
        ("KILL", "engine"),
        ("TERM", "engine"),
        ("KILL", "worker"),
        ("KILL", "next"),
    }
    assert any(isinstance(op, Stall) and op.at < OPEN_AT for op in ops)


@pytest.mark.parametrize("seed", range(20))
def test_every_schedule_is_of_three_stages(seed):
    pipeline = schedule(seed).pipeline()
    assert [stage.engine for stage in pipeline.stages] == ["fake-core", "fake-core", "fake"]
    assert sum(stage.engine_args.get("workers", 0) for stage in pipeline.stages) == 1


def test_the_real_pipeline_is_tiny_omni_in_a_hurry():
    pipeline = real_pipeline()
    assert [stage.name for stage in pipeline.stages] == ["thinker", "talker", "vocoder", "painter"]
    assert all(stage.deadlines.hang_s == 5 for stage in pipeline.stages)


# ---------------------------------------------------------------------- what was done


def history(*events, ops=()):
    scenario = schedule(0).without([])
    from msgspec.structs import replace

    return History(scenario.pipeline(), replace(scenario, ops=tuple(ops)), list(events))


def signalled(signum: int, generation: int = 1, by: str = "fate"):
    return Process(at=1, what="signalled", generation=generation, pid=7, code=signum, by=by, **PLACE)


def faulted(op: str = "kill", generation: int = 1, done: bool = True):
    return Faulted(at=1, op=op, generation=generation, done=done, **PLACE)


def test_signals_are_counted_by_name_and_only_those_of_fate():
    seen = history(
        faulted(),
        signalled(signal.SIGKILL),
        faulted(),
        signalled(signal.SIGTERM),
        faulted("stall"),
        signalled(signal.SIGSTOP),
        faulted("resume"),
        signalled(signal.SIGCONT),
        signalled(signal.SIGTERM, by="us"),
        faulted(done=False),
    )
    assert faults_done(seen) == {"SIGKILL": 1, "SIGTERM": 1, "SIGSTOP": 1}


def test_a_kill_without_a_signal_to_the_engine_was_of_its_worker():
    assert faults_done(history(faulted())) == {"SIGKILL of a worker": 1}


def test_a_generation_killed_before_it_was_ready_crashed_during_recovery():
    ready = StageSaid(at=1, generation=2, kind="ready", **PLACE)
    assert faults_done(history(faulted(), signalled(signal.SIGKILL, 2))) == {"crash during recovery": 1}
    assert faults_done(history(ready, faulted(), signalled(signal.SIGKILL, 2))) == {"SIGKILL": 1}


def test_what_users_do_counts_where_there_was_something_to_do_it_to():
    seen = history(
        AbortCalled(at=1, call=1, id="a", live=("a",)),
        AbortCalled(at=1, call=2, id="b"),
        Ended(at=1, request="a", how="end"),
        Ended(at=1, request="b", how="break"),
        Ended(at=1, request="c", how="Cancelled"),
        Ended(at=1, request="d", how="Cancelled"),
        ops=[Leave(request="c")],
    )
    assert faults_done(seen) == {"abort": 1, "disconnect": 2}


def test_shutdowns_and_the_cancellation_of_the_block():
    calls = [ShutdownCalled(at=1, call=1), ShutdownCalled(at=1, call=2), ShutdownCalled(at=1, call=3, by="leave")]
    cancelled = ShutdownCalled(at=1, call=4, by="leave", drain_s=0.0)
    assert faults_done(history(*calls)) == {"shutdown": 1, "second shutdown": 1}
    assert faults_done(history(cancelled)) == {"cancel": 1}
    assert {"shutdown", "second shutdown", "cancel"} < set(FAULTS)


# ---------------------------------------------------------------------- what is told


def test_differences_name_what_came_and_what_went():
    assert differences(["pipe", "socket"], ["pipe", "socket", "socket"]) == ["+socket"]
    assert differences(["pipe", "socket"], ["socket"]) == ["-pipe"]
    assert differences(["pipe"], ["pipe"]) == []


def test_a_tally_adds_up_and_knows_what_was_wrong():
    tally = Tally(minimum=3)
    tally.add(Line())
    tally.add(Line(seed=1, faults={"abort": 2, "SIGKILL": 1}))
    tally.add(Line(seed=2, faults={"abort": 1}, violations=("I2: no",), left={"files": ["lock"]}))
    tally.add(Line(threads=2))
    assert (tally.schedules, tally.wrong, tally.few) == (2, 3, [2])
    assert tally.faults == {"abort": 3, "SIGKILL": 1}
    said = "\n".join(tally.lines(12.3))
    assert "2 schedules in 12.3 s" in said
    assert "3 violations" in said


def test_a_line_says_what_was_wrong_in_words():
    line = Line(seed=2, violations=("I2: no",), left={"files": ["lock"]}, threads=1)
    assert line.wrong == ["I2: no", "left behind: files: lock", "left behind: 1 threads"]
    assert Line(seed=2).wrong == []
