"""A handful of random schedules on real processes, as ``make chaos`` runs them by the hundred (I24, all the others)."""

from __future__ import annotations

import os
import subprocess
import sys

import msgspec
import pytest

from omni_actors.testing.chaos import MIN_FAULTS, OPEN_AT, Chaos, faults_done, private_base, schedule
from omni_actors.testing.chaos.__main__ import main
from omni_actors.testing.sim._history import Closed, Opened, Process, State, TerminalSeen
from omni_actors.testing.sim._scenario import Kill, Stall, Submit

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def chaos():
    with private_base() as base:
        chaos = Chaos(base)
        first = chaos.run(plain())
        assert first.good, (first.violations, first.left)
        yield chaos


def plain(*ops):
    """A schedule's pipeline, and one request."""
    return msgspec.structs.replace(schedule(0), ops=(Submit(at=OPEN_AT, request="a"), *ops))


def test_schedules_leave_nothing_and_break_nothing(chaos):
    done = 0
    for seed in (11, 12, 13, 14):
        outcome = chaos.run(schedule(seed))
        assert outcome.violations == (), f"seed {seed}: {schedule(seed).to_json()}"
        assert outcome.left == {}, f"seed {seed}: {schedule(seed).to_json()}"
        done += sum(faults_done(outcome.history).values())
    assert done >= 3 * MIN_FAULTS


def test_the_history_of_real_processes_is_one_as_of_a_simulation(chaos):
    outcome = chaos.run(plain(Kill(at=OPEN_AT + 0.03, stage="thinker")))
    history = outcome.history
    assert [event.opened for event in history.of(Closed)] == [True]
    assert len(list(history.of(Opened))) == 1
    (terminal,) = history.of(TerminalSeen)
    assert (terminal.kind, terminal.stage, terminal.generation) == ("failed", "thinker", 1)
    spawned = [event.place for event in history.of(Process) if event.what == "spawned"]
    exited = [event.place for event in history.of(Process) if event.what == "exited"]
    assert sorted(spawned) == sorted(exited)
    assert list(history.of(State))[-1].counts == {"processes": 0, "tasks": 0}
    assert outcome.good, (outcome.violations, outcome.left)


def test_what_is_left_behind_is_found(chaos):
    """Of whatever kind: a process, a descriptor, a file. Here it is this test that leaves them."""
    base = os.environ["XDG_RUNTIME_DIR"]
    with open(os.path.join(base, "forgotten"), "w") as file:
        child = subprocess.Popen([sys.executable, "-S", "-c", "import signal; signal.pause()"])
        try:
            outcome = chaos.run(plain())
        finally:
            child.kill()
            child.wait()
    os.unlink(file.name)
    assert not outcome.good
    assert set(outcome.left) == {"processes", "descriptors", "files"}
    assert outcome.left["processes"] == [str(child.pid)]
    assert outcome.left["files"] == ["forgotten"]


def test_a_frozen_engine_is_found_and_its_request_fails(chaos):
    outcome = chaos.run(plain(Stall(at=OPEN_AT + 0.02, stage="thinker")))
    (terminal,) = outcome.history.of(TerminalSeen)
    assert (terminal.kind, terminal.stage) == ("failed", "thinker")
    assert outcome.good, (outcome.violations, outcome.left)


def test_a_scenario_that_was_printed_runs_again(capsys):
    assert main(["--replay", plain(Kill(at=OPEN_AT + 0.03, stage="talker")).to_json()]) == 0
    assert "SIGKILL 1" in capsys.readouterr().out


def test_what_is_no_scenario_is_refused(capsys):
    assert main(["--replay", "{"]) == 2
    assert "no scenario" in capsys.readouterr().err
