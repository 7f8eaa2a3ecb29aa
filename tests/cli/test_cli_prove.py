"""``prove``: what it says, how it ends, and that what it found it finds again."""

import functools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from xml.etree import ElementTree as ET

import msgspec
import pytest
from hypothesis import strategies as st
from typer.testing import CliRunner

from omni_actors.cli._app import app
from omni_actors.cli._prove import prove_batch
from omni_actors.cli._prove_workers import Batch, WorkerLost, Workers
from omni_actors.runtime._stream import Stream
from omni_actors.testing import _prove, _subject
from omni_actors.testing.sim._scenario import Abort, Scenario, Stage, Submit, scenario_from_json

KIND = Scenario(
    stages=(Stage(name="thinker", output="text", behaviour={"tokens": 16, "token_s": 0.1}),),
    ops=(Submit(at=0.1, request="anna"), Submit(at=0.1, request="bert", pace_s=1.0), Abort(at=0.5, id="bert")),
    seed=7,
    buggify=False,
)
DEPLOY = """\
stages:
  - {name: thinker, engine: fake-core, output: text}
"""


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """A folder of its own: failures are drawn into the current one."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def unfenced(monkeypatch):
    """A bug: what was unread when a request was aborted can still be read."""

    def close(self, terminal):
        self.terminal = terminal
        self._wake()

    monkeypatch.setattr(Stream, "close", close)


@pytest.fixture
def always_kind(monkeypatch):
    """The scenarios that are drawn: one, under many seeds; the first few of them lack what it takes."""
    calm = msgspec.structs.replace(KIND, ops=KIND.ops[:1])
    drawn = st.integers(0, 99).map(lambda n: msgspec.structs.replace(KIND if n > 49 else calm, seed=n))
    monkeypatch.setattr(_subject, "scenarios", lambda *_, **__: drawn)


@pytest.fixture
def few(monkeypatch):
    """Batches of ten."""
    monkeypatch.setattr(_prove, "BATCH", 10)


def invoke(*args, text=None):
    return CliRunner(env={"COLUMNS": "110"}).invoke(app, ["prove", *map(str, args)], input=text)


# ---------------------------------------------------------------------- many scenarios


def test_what_holds_is_proved_and_what_was_seen_is_shown(few):
    ended = invoke("--examples", 20, "--seed", 1, "--jobs", 1)
    assert ended.exit_code == 0
    assert ended.stdout.splitlines()[-1] == "proved: 20 scenarios, 0 violations, seed 1"
    assert all(title in ended.stdout for title in ("requests ended", "faults", "operations", "submit"))
    assert not Path("prove-failure.svg").exists()


@pytest.mark.process
def test_a_batch_comes_to_the_same_whoever_runs_it():
    run = functools.partial(prove_batch, None)
    batches = [Batch(0, 5, 4), Batch(1, 6, 4)]
    with Workers(run, 2) as workers:
        shared = workers.results(batches, lambda: None, lambda outcome: outcome.failed)
    assert shared == [(batch, run(batch, lambda: None)) for batch in batches]


@pytest.mark.process
def test_the_work_is_shared_by_as_many_processes_as_it_is_told(few):
    made = json.loads(invoke("--examples", 12, "--seed", 5, "--jobs", 2, "--json").stdout)
    assert (made["verdict"], made["examples"], made["seed"]) == ("proved", 12, 5)


def test_json_is_one_document_with_everything_in_it(few):
    ended = invoke("--examples", 10, "--seed", 1, "--jobs", 1, "--json")
    made = json.loads(ended.stdout)
    assert set(made) == {
        "verdict", "examples", "seed", "seconds", "seen", "never", "violation", "more_violations", "scenario",
        "batch_seed", "again", "svg",
    }  # fmt: skip
    assert (made["verdict"], made["violation"], made["scenario"], made["svg"]) == ("proved", None, None, None)
    assert made["seen"]["op"]["submit"] > 0


def test_without_a_seed_one_is_drawn_and_said(few):
    seeds = {json.loads(invoke("--examples", 1, "--jobs", 1, "--json").stdout)["seed"] for _ in range(2)}
    assert len(seeds) == 2


def test_what_never_happened_is_not_proved(few, monkeypatch):
    monkeypatch.setattr(_prove, "ENOUGH", 1)
    ended = invoke("--examples", 1, "--seed", 1, "--jobs", 1)
    assert ended.exit_code == 1
    last = ended.stdout.splitlines()[-1]
    assert last.startswith("NOT PROVED: nothing of ")
    assert "fault kill" in last
    assert last.endswith("ever happened in 1 scenario, seed 1")


def test_a_user_s_pipeline_is_run_on_fakes(few):
    Path("deploy.yaml").write_text(DEPLOY)
    made = json.loads(invoke("deploy.yaml", "--examples", 10, "--seed", 1, "--jobs", 1, "--json").stdout)
    assert (made["verdict"], made["examples"]) == ("proved", 10)


# ---------------------------------------------------------------------- a violation


def test_a_violation_is_told_drawn_and_found_again(few, unfenced, always_kind):
    found = invoke("--examples", 100, "--seed", 1, "--jobs", 1, "--json")
    assert found.exit_code == 1
    first = json.loads(found.stdout)
    assert first["verdict"] == "violated"
    assert first["violation"]["invariant"] in ("I2", "I3")
    assert first["violation"]["sentence"]
    assert first["violation"]["events"][-1]["type"] == "Got"
    assert first["svg"] == "prove-failure.svg"
    assert ET.parse("prove-failure.svg").getroot().get("class") == "timeline"

    again, alone = first["again"]
    assert again == f"omni-actors prove --seed {first['batch_seed']} --examples 10"
    second = json.loads(invoke(*again.split()[2:], "--jobs", 1, "--json").stdout)
    assert {**second, "seconds": 0, "seen": 0, "examples": 0, "seed": 0} == {
        **first, "seconds": 0, "seen": 0, "examples": 0, "seed": 0,
    }  # fmt: skip
    assert alone.startswith("omni-actors prove --scenario - <<< '{")


def test_a_violation_is_a_story(unfenced):
    Path("one.json").write_text(KIND.to_json())
    ended = invoke("--scenario", "one.json")
    assert ended.exit_code == 1
    told = ended.stdout
    assert "I2 does not hold" in told
    assert "The terminal is the last of a request" in told
    assert "  stage thinker output=text" in told
    assert "     0.5 s  abort    id=bert" in told
    assert KIND.to_json() in told.splitlines()[told.splitlines().index("as JSON:") + 1]
    assert any(line.startswith("violation") and "①" in line for line in told.splitlines())
    assert told.splitlines()[-1] == "VIOLATED: I2, in 1 scenario, seed 7"
    assert "drawn: prove-failure.svg" in told


def test_svg_says_where_to_draw(unfenced, here):
    invoke("--scenario", "-", "--svg", here / "there.svg", text=KIND.to_json())
    assert (here / "there.svg").read_text().startswith("<svg")
    assert not (here / "prove-failure.svg").exists()


# ---------------------------------------------------------------------- one scenario


def test_one_scenario_that_holds_shows_its_timeline_and_draws_only_if_told():
    ended = invoke("--scenario", "-", text=KIND.to_json())
    assert ended.exit_code == 0
    assert "no violation" in ended.stdout
    assert any(line.startswith("bert ") and "■" in line for line in ended.stdout.splitlines())
    assert ended.stdout.splitlines()[-1] == "held: 1 scenario, 0 violations, seed 7"
    assert not Path("prove-failure.svg").exists()
    invoke("--scenario", "-", "--svg", "it.svg", text=KIND.to_json())
    assert Path("it.svg").exists()


def test_one_scenario_as_json():
    made = json.loads(invoke("--scenario", "-", "--json", text=KIND.to_json()).stdout)
    assert (made["verdict"], made["seed"], made["violation"]) == ("held", 7, None)
    assert scenario_from_json(json.dumps(made["scenario"])) == KIND


def test_a_scenario_without_stages_is_run_on_the_pipeline_that_is_named():
    Path("deploy.yaml").write_text(DEPLOY)
    bare = Scenario(ops=(Submit(at=0.1, request="anna"),)).to_json()
    assert invoke("deploy.yaml", "--scenario", "-", text=bare).exit_code == 0
    ended = invoke("--scenario", "-", text=bare)
    assert (ended.exit_code, ended.stdout) == (2, "")
    assert "name the pipeline" in ended.stderr


# ---------------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("tiny-omi",), "did you mean 'tiny-omni'"),
        (("nowhere.yaml",), "no such file"),
        (("--scenario", "nowhere.json"), "cannot read the scenario from nowhere.json"),
        (("--examples", "0"), "--examples"),
        (("--jobs", "0"), "--jobs"),
        (("--seed", "x"), "--seed"),
        (("--svg", "nowhere/it.svg"), "no such folder"),
    ],
)
def test_a_mistake_is_said_at_once(args, words):
    ended = invoke(*args)
    assert (ended.exit_code, ended.stdout) == (2, "")
    assert words in ended.stderr


@pytest.mark.parametrize("text", ["", "{", '{"ops": [{"type": "explode"}]}', '{"stages": 3}'])
def test_what_is_no_scenario_is_said_so(text):
    ended = invoke("--scenario", "-", text=text)
    assert ended.exit_code == 2
    assert "stdin holds no scenario" in ended.stderr
    assert json.loads(invoke("--scenario", "-", "--json", text=text).stdout)["error"]["kind"] == "UsageError"


# ---------------------------------------------------------------------- workers


def doubled(batch, example):
    """Work of a test: twice the seed. Seed 13 kills its worker."""
    if batch.seed == 13:
        os._exit(3)
    for _ in range(batch.examples):
        example()
    return 2 * batch.seed


def children():
    """The pids of this process's children, but for multiprocessing's tracker."""
    found = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
    return [pid for pid in found if b"resource_tracker" not in Path(f"/proc/{pid}/cmdline").read_bytes()]


@pytest.mark.process
def test_results_come_in_order_up_to_the_first_failure():
    counted = []
    before = children()
    batches = [Batch(index, seed, 3) for index, seed in enumerate((1, 2, 5, 4, 5, 9))]
    with Workers(doubled, 2) as workers:
        done = workers.results(batches, lambda: counted.append(1), lambda result: result == 10)
    assert [result for _, result in done] == [2, 4, 10]
    assert len(counted) >= 9
    assert children() == before


@pytest.mark.process
def test_a_worker_that_dies_is_an_error_and_takes_nobody_with_it():
    before = children()
    with pytest.raises(WorkerLost, match="exit code 3"):
        with Workers(doubled, 2) as workers:
            workers.results([Batch(0, 1, 1), Batch(1, 13, 1)], lambda: None, lambda _: False)
    assert children() == before


@pytest.mark.process
@pytest.mark.parametrize("jobs", [1, 2])
def test_ctrl_c_ends_it_at_once_and_leaves_nothing(jobs):
    code = "from omni_actors.cli import main\nmain()"
    if jobs == 1:
        # Ctrl-C in the middle of a run, in the very process that simulates.
        code = (
            "import os, signal\nfrom omni_actors.testing.sim import _driver\nget = _driver.Driver._submit\n"
            "def hit(self, op):\n    os.kill(os.getpid(), signal.SIGINT)\n    get(self, op)\n"
            "_driver.Driver._submit = hit\n" + code
        )
    command = [sys.executable, "-c", code, "prove", "--examples", "100000", "--jobs", str(jobs)]
    running = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    if jobs > 1:
        until(lambda: len(alive(running.pid)) == jobs + 2, "no workers")  # itself and multiprocessing's tracker
        os.killpg(running.pid, signal.SIGINT)
    out, err = running.communicate(timeout=60)
    assert (running.returncode, out) == (130, "")
    assert err.splitlines()[-1] == "interrupted"
    assert "Traceback" not in err
    until(lambda: not alive(running.pid), "something is left")


@pytest.mark.process
def test_workers_end_by_themselves_when_nobody_is_left_to_hear_them():
    command = [sys.executable, "-c", "from omni_actors.cli import main\nmain()", "prove", "--examples", "100000"]
    running = subprocess.Popen(
        [*command, "--jobs", "2"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    until(lambda: len(alive(running.pid)) == 4, "no workers")
    running.kill()
    _, err = running.communicate(timeout=60)
    until(lambda: not alive(running.pid), "something is left")
    assert err == ""


def alive(group):
    """The processes of a group that are not over. Whoever inherits orphans may leave them as zombies for a while."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, of = stat.read_text().rpartition(")")[2].split()[:3]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(of) == group and state != "Z":
            found.append(stat.parent.name)
    return found


def until(holds, words):
    """Look until it holds: of other processes' processes there is nothing that could be waited on."""
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline, words
        time.sleep(0.05)
