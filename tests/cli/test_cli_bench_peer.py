"""``bench peer``: how rounds of three sides become verdicts, what a side says, faults that are survived or not.

vLLM-Omni is not needed: sides are scripted, or programs of a few lines on the same pipes.
"""

import asyncio
import importlib.metadata
import json
import math
import os
import signal

import attrs
import msgspec
import numpy as np
import pytest
import trio
import yaml
from omni_actors_asyncio.benches import peer as theirs
from typer.testing import CliRunner

from omni_actors._errors import OmniError, StageFailed
from omni_actors.cli._app import app
from omni_actors.cli._bench import BenchOptions, document, judge
from omni_actors.cli.benches import _pairs, _peer_ours, _peer_sides, _peer_work, peer
from omni_actors.cli.benches._pairs import Measured
from omni_actors.cli.benches._peer_sides import Closing, Fault, Sides, broken, idle_cpu_s, open_sides
from omni_actors.cli.benches._peer_work import Closed, Heard, Ready
from omni_actors.cli.benches._work import TOKENS, Answer, Job, Round
from omni_actors.lifecycle.events import Output, TensorChunk, TextChunk
from omni_actors.vllm_omni.tiny import chains


def rounds(second, cpu_s, count=15):
    """Of one request each."""
    return [Round(second, cpu_s, [Answer("five", [5], second / 2, second)]) for _ in range(count)]


def loops(ours, default, event):
    """Each a pair of seconds and CPU seconds per request; at 1, 8 and 64 concurrent alike."""
    return {
        name: {at: Measured(ours=rounds(*ours), reference=rounds(*reference)) for at in (1, 8, 64)}
        for name, reference in (("default", default), ("event", event))
    }


# ---------------------------------------------------------------------- verdicts


def test_each_ratio_is_against_the_loop_that_is_better_at_it():
    made = peer.load_summary("chain2", loops((1.0, 0.1), default=(2.0, 0.25), event=(1.6, 0.5)))

    assert made.metrics["chain2_8_e2e_ratio"] == pytest.approx(1 / 1.6)
    assert made.metrics["chain2_8_ttft_ratio"] == pytest.approx(1 / 1.6)
    assert made.metrics["chain2_8_rps_ratio"] == pytest.approx(1.6)
    assert made.metrics["chain2_8_cpu_ratio"] == pytest.approx(0.1 / 0.25)
    medians = [made.metrics[f"chain2_64_e2e_ms_{side}"] for side in ("ours", "default", "event")]
    assert medians == pytest.approx([1000, 2000, 1600])
    assert set(judge(made).values()) == {"holds"}


def test_what_one_of_the_loops_does_better_than_we_fails():
    made = peer.load_summary("q25", loops((1.0, 0.1), default=(2.0, 0.15), event=(0.9, 0.5)))

    verdicts = judge(made)
    assert {name for name, verdict in verdicts.items() if verdict == "fails"} == set(verdicts)


def test_the_names_are_those_of_the_format():
    found = peer.Found(
        loads={part: loops((1, 0.1), (2, 0.3), (2, 0.3)) for part in peer.PARTS if part != "faults"},
        idle=[{"ours": 0.0, "default": 0.4, "event": 0.02}] * 3,
        closings=[(Closing(seconds=0.5, killed=0), Closing(seconds=15.0, killed=3))] * 4,
        faults={"sigkill": {"ours": Fault(first="StageFailed", answered_s=20.0)}},
    )
    made = peer.summary(found)

    wanted = {
        f"{workload}_{concurrent}_{measure}_ratio"
        for workload in ("chain1", "chain2", "chain3", "q25")
        for concurrent in (1, 8, 64)
        for measure in ("e2e", "ttft", "rps", "cpu")
    }
    assert wanted | {"idle_cpu_s", "peer_idle_cpu_s", "shutdown_ratio"} <= made.metrics.keys()
    assert wanted | {"shutdown_ratio"} <= made.samples.keys()
    assert set(judge(made).values()) == {"holds"}
    assert made.metrics["peer_idle_cpu_s"] == 0.02
    assert any("shutdown: 4 pairs" in note for note in made.notes)


@pytest.mark.parametrize(
    ("seconds", "killed", "failing"),
    [(4.9, 0, set()), (5.1, 0, {"shutdown_ratio"}), (0.5, 1, {"killed"})],
)
def test_a_stop_has_a_third_of_their_time_and_kills_nothing(seconds, killed, failing):
    pairs = [(Closing(seconds=seconds, killed=killed), Closing(seconds=15.0, killed=3))] * 2
    verdicts = judge(peer.closing_summary(pairs))
    assert {name for name, verdict in verdicts.items() if verdict == "fails"} == failing


def test_a_fault_after_which_nothing_is_answered_is_shown_as_it_is():
    hangs = Fault(first="TimeoutError after 30.0 s", answered_s=None)
    ours = Fault(first="StageFailed: gone after 5.0 s", answered_s=21.5)
    made = peer.fault_summary({"sigstop": {"ours": ours, "default": hangs}})

    assert made.metrics == {"sigstop_answered_s_ours": 21.5, "sigstop_answered_s_default": math.inf}
    assert judge(made) == {"sigstop_answered_s_ours": "holds"}
    (note,) = (note for note in made.notes if "default" in note)
    assert "the first request: TimeoutError" in note
    assert "none was answered" in note
    json.dumps(document("peer", made, judge(made)), allow_nan=False)
    failed = peer.fault_summary({"sigstop": {"ours": hangs}})
    assert judge(failed) == {"sigstop_answered_s_ours": "fails"}


# ---------------------------------------------------------------------- the command


def test_a_part_that_it_has_not_is_a_usage_error():
    ended = CliRunner().invoke(app, ["bench", "peer", "--only", "chain1,chain9"])
    assert ended.exit_code == 2
    assert "chain9" in ended.stderr
    assert "q25" in ended.stderr
    assert CliRunner().invoke(app, ["bench", "idle", "--only", "chain1"]).exit_code == 2


def test_without_vllm_omni_it_says_how_to_get_it_and_exits_3(monkeypatch):
    find = _pairs.importlib.util.find_spec
    monkeypatch.setattr(_pairs.importlib.util, "find_spec", lambda name: None if name == "vllm_omni" else find(name))
    ended = CliRunner().invoke(app, ["bench", "peer", "--json"])
    assert ended.exit_code == 3
    assert "make setup-omni" in json.loads(ended.stdout)["error"]["message"]


async def test_only_the_parts_that_are_asked_for_are_run(monkeypatch):
    ran = []

    async def load(part, options, found):
        ran.append(part)
        found.loads[part] = loops((1, 0.1), (2, 0.3), (2, 0.3))

    monkeypatch.setattr(peer, "require_modules", lambda needed: None)
    monkeypatch.setattr(peer, "_load", load)
    made = await peer.run(BenchOptions(only=("chain1", "q25")))
    assert ran == ["chain1", "q25"]
    assert "q25_1_e2e_ratio" in made.metrics
    assert "shutdown_ratio" not in made.metrics


# ---------------------------------------------------------------------- what a side says


def test_an_answer_is_its_tokens_and_every_sample():
    def heard(samples):
        one = Heard()
        one.take("five", range(TOKENS))
        for piece in samples:
            one.take(samples=piece)
        return one.answer().text

    sound = np.arange(8, dtype=np.float32)
    assert heard([]) == "five"
    assert heard([sound]) == heard([sound[:3], sound[3:]])
    assert "8 samples" in heard([sound])
    assert heard([sound]) != heard([sound + 1e-6])


def test_an_answer_that_is_too_short_is_none():
    one = Heard()
    one.take("five", [1, 2])
    with pytest.raises(AssertionError, match="2 tokens"):
        one.answer()


class Stub:
    """As much of a runtime as ``ask`` uses."""

    def __init__(self, *payloads, error=None):
        self.payloads, self.error = payloads, error

    def generate(self, prompt, *, timeout_s):
        return self

    async def __aenter__(self):
        return self

    async def __aexit__(self, *raised):
        await trio.lowlevel.checkpoint()

    async def __aiter__(self):
        for payload in self.payloads:
            await trio.lowlevel.checkpoint()
            yield Output("r", "stage", "any", payload)
        if self.error:
            raise self.error


async def test_our_side_adds_up_what_comes():
    sound = np.ones(4, np.float32)
    pieces = TextChunk(text="fi", token_ids=list(range(9))), TextChunk(text="ve", token_ids=list(range(9, TOKENS)))
    made = await _peer_ours.ask(Stub(*pieces, TensorChunk(tensors={"audio": sound})), "q25", "two and three")
    assert made.text.startswith("five and 4 samples")
    assert made.token_ids == list(range(TOKENS))
    assert 0 < made.first_s <= made.total_s


async def test_a_request_of_ours_that_failed_is_an_answer_without_tokens():
    made = await _peer_ours.ask(Stub(error=StageFailed("the engine is gone", stage="llm1")), "chain3", "two and three")
    assert made.token_ids == []
    assert made.text == "StageFailed: the engine is gone"


@attrs.frozen
class TheirOutput:
    """As much of vLLM-Omni's OmniRequestOutput as is read."""

    outputs: list
    final_output_type: str = "text"
    multimodal_output: dict = attrs.field(factory=dict)


@attrs.frozen
class Choice:
    text: str
    token_ids: list


class TheirEngine:
    def __init__(self, outputs, error=None, hangs=False):
        self.outputs, self.error, self.hangs = outputs, error, hangs

    async def generate(self, prompt, *, request_id, sampling_params_list):
        for output in self.outputs:
            yield output
        if self.error:
            raise self.error
        if self.hangs:
            await asyncio.Event().wait()


def test_their_side_adds_up_what_comes():
    outputs = [TheirOutput([Choice("fi", list(range(9)))]), TheirOutput([Choice("ve", list(range(9, TOKENS)))])]
    made = asyncio.run(theirs.ask(TheirEngine(outputs), None, "chain1", "two and three", "r"))
    assert (made.text, made.token_ids) == ("five", list(range(TOKENS)))


@pytest.mark.parametrize(
    ("engine", "words"),
    [(TheirEngine([], error=ValueError("bad")), "ValueError: bad"), (TheirEngine([], hangs=True), "TimeoutError")],
)
def test_a_request_of_theirs_that_failed_or_hangs_is_an_answer_without_tokens(engine, words, monkeypatch):
    monkeypatch.setattr(theirs, "ANSWER_S", 0.05)
    made = asyncio.run(theirs.ask(engine, None, "chain1", "two and three", "r"))
    assert (made.text, made.token_ids) == (words, [])


# ---------------------------------------------------------------------- processes

SIDE = """
import json, os, subprocess, sys
engine = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
def say(value): print(json.dumps(value), flush=True)
say({"engines": [engine.pid], "host": [os.getpid()]})
for line in sys.stdin:
    job = json.loads(line)
    try:
        alive = engine.wait(0.3) is None
    except subprocess.TimeoutExpired:
        alive = True
    answer = {"text": "five" if alive else "gone", "token_ids": [5] * alive, "first_s": 0.1, "total_s": 0.2}
    say({"wall_s": 0.2, "cpu_s": 0.1, "answers": [answer] * job["requests"]})
    if not alive:
        engine = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
engine.kill()
engine.wait()
say({"killed": 1})
"""


@pytest.fixture
def scripted(monkeypatch, tmp_path):
    """All sides are SIDE, which replaces its engine after one request has failed."""
    (tmp_path / "scripted_side.py").write_text(SIDE)
    monkeypatch.setattr(_peer_sides, "_OURS", "scripted_side")
    monkeypatch.setattr(_peer_sides, "_PEER", "scripted_side")
    real = _peer_work.environment

    def environment(folder):
        made = real(folder)
        return {**made, "PYTHONPATH": f"{tmp_path}:{made['PYTHONPATH']}"}

    monkeypatch.setattr(_peer_sides, "environment", environment)


@pytest.mark.process
async def test_sides_are_started_asked_watched_and_stopped(scripted):
    async with open_sides("chain1", ("default", "event")) as sides:
        assert list(sides.by_name) == ["ours", "default", "event"]
        made = await sides.ours.run(Job(concurrent=2, requests=3))
        assert len(made.answers) == 3
        assert (await idle_cpu_s(sides, 0.1))["event"] < 0.05
        closing = await sides.ours.close()
        assert closing.killed == 1
        assert closing.seconds < 10


@pytest.mark.process
async def test_a_killed_stage_is_noticed_and_so_is_the_first_answer_after_it(scripted):
    async with open_sides("chain1", ("default",)) as sides:
        fault = await broken(sides.ours, 0, signal.SIGKILL, 20.0)
        assert fault.first == "gone after 0.2 s"
        assert 0.5 < fault.answered_s < 20


@pytest.mark.process
async def test_a_host_that_ends_with_its_stage_has_not_answered(scripted):
    async with open_sides("chain1", ("default",)) as sides:
        side = sides.peers["default"]
        side._ready = Ready(engines=[side._front_end.pid], host=[])
        fault = await broken(side, 0, signal.SIGKILL, 20.0)
        assert fault.first.startswith("a front-end of the benchmark ended")
        assert fault.answered_s is None


@pytest.mark.process
async def test_every_side_gets_every_fault(scripted, monkeypatch):
    monkeypatch.setattr(peer, "_STAGE", 0)
    monkeypatch.setattr(peer, "loops_at_once", lambda stages: (("default",),))
    made = await peer.run_parts(("faults",), BenchOptions(progress=lambda words: None))
    assert {name: list(sides) for name, sides in made.faults.items()} == {
        "sigkill": ["ours", "default"],
        "sigstop": ["ours", "default"],
    }
    assert made.faults["sigkill"]["default"].first == "gone after 0.2 s"
    assert made.faults["sigstop"]["ours"].first == "answered after 0.2 s"


@pytest.mark.process
async def test_a_failed_request_is_no_measurement(scripted):
    async with open_sides("chain1", ()) as sides:
        os.kill(sides.ours.engines[0], signal.SIGKILL)
        with pytest.raises(OmniError, match="2 of 2 requests failed: gone"):
            await sides.ours.run(Job(concurrent=1, requests=2))


async def test_what_never_answers_again_has_no_time(autojump_clock, monkeypatch):
    class Hangs:
        engines = (0,)
        asked = 0

        async def ask(self):
            self.asked += 1
            if self.asked > 1:
                await trio.sleep_forever()
            return Answer("five", [5], 0.1, 0.2)

    sent = []
    monkeypatch.setattr(_peer_sides.os, "kill", lambda pid, how: sent.append(how))
    side, began_at = Hangs(), trio.current_time()
    fault = await broken(side, 0, signal.SIGSTOP, 60.0)
    assert sent == [signal.SIGSTOP]
    assert fault == Fault(first="hangs, 60 s and on", answered_s=None)
    assert trio.current_time() == pytest.approx(began_at + 60)


def test_both_loops_share_their_pairs_only_where_there_is_memory(monkeypatch):
    monkeypatch.setattr(_peer_sides, "available_bytes", lambda: 64 << 30)
    assert _peer_sides.loops_at_once(3) == (("default", "event"),)
    monkeypatch.setattr(_peer_sides, "available_bytes", lambda: 8 << 30)
    assert _peer_sides.loops_at_once(3) == (("default",), ("event",))
    assert _peer_sides.loops_at_once(1) == (("default", "event"),)


async def test_rounds_of_one_opening_are_told_apart_by_their_loop():
    class Scripted:
        def __init__(self, second):
            self.second = second

        async def run(self, job):
            await trio.lowlevel.checkpoint()
            return Round(self.second, self.second, [Answer("five", [5], 0.1, 0.2)] * job.requests)

    sides = Sides(ours=Scripted(1.0), peers={"default": Scripted(2.0), "event": Scripted(3.0)})
    made = await peer._measured(sides, {8: 4}, BenchOptions(pairs=2, progress=lambda words: None))
    assert {name: found[8].reference[0].wall_s for name, found in made.items()} == {"default": 2.0, "event": 3.0}
    assert all(found[8].ours[1].wall_s == 1.0 for found in made.values())
    alone = Sides(ours=sides.ours, peers={"event": sides.peers["event"]})
    assert list(await peer._measured(alone, {8: 4}, BenchOptions(pairs=1, progress=lambda words: None))) == ["event"]


# ---------------------------------------------------------------------- chains


def test_an_announced_folder_is_a_plug_in_of_vllm_omni(tmp_path):
    chains.announce(tmp_path)
    (found,) = importlib.metadata.distributions(path=[str(tmp_path)])
    (entry,) = found.entry_points
    assert entry.group == "vllm_omni.general_plugins"
    assert entry.load() is chains.register


def test_a_chain_s_deploy_file_has_its_stages_on_devices_of_their_own():
    made = yaml.safe_load(chains.deploy(3, {"max_tokens": 16}))
    assert made["pipeline"] == "tiny_chain_3"
    assert [(stage["stage_id"], stage["devices"]) for stage in made["stages"]] == [(0, "0"), (1, "1"), (2, "2")]
    assert made["stages"][2]["default_sampling_params"] == {"max_tokens": 16}


def test_what_a_side_says_travels_as_json():
    for said in (Ready(engines=[1], host=[2, 3]), Closed(killed=1)):
        assert msgspec.convert(json.loads(msgspec.json.encode(said)), type(said)) == said
