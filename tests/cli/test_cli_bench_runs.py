"""What idle, abort, startup and shutdown measure, on fakes: a bench that sees nothing would always be content."""

import os
import random
import subprocess
import sys

import pytest
import trio

from omni_actors import open_omni
from omni_actors.cli._bench import judge
from omni_actors.cli.benches import abort, idle, shutdown, startup
from omni_actors.cli.benches._aborts import WAYS, Asker, Pace, Trial, load, trial
from omni_actors.cli.benches._cycle import Cycle
from omni_actors.cli.benches._proc import Watched, own_shm, shm_names
from omni_actors.lifecycle.events import Output, TensorChunk, TextChunk
from omni_actors.testing import MemoryWorld
from omni_actors.testing.rigs import core, pipeline, speech

DEPLOY = """\
stages:
  - name: thinker
    engine: fake-core
    output: text
  - name: speaker
    engine: fake
    model: none
    inputs: [thinker]
    output: audio
    engine_args: {chunks: 3}
"""


@pytest.fixture
def deploy(tmp_path):
    file = tmp_path / "deploy.yaml"
    file.write_text(DEPLOY)
    return str(file)


@pytest.fixture
def world():
    return MemoryWorld()


# ---------------------------------------------------------------------- idle


async def test_a_process_that_does_nothing_is_seen_to_do_nothing():
    period = await idle.measure([os.getpid()], 0.3)
    assert not period.steps
    assert period.cpu_s < 0.05
    assert period.wakeups < 5


async def test_a_task_that_polls_is_seen_and_named():
    async def polls():
        for _ in range(10_000):
            await trio.sleep(0.01)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(polls, name="the poller")
        period = await idle.measure([os.getpid()], 0.3)
        nursery.cancel_scope.cancel()
    assert period.steps["the poller"] > 5
    assert period.wakeups > 5


async def test_a_process_that_works_costs_what_it_used():
    busy = await trio.lowlevel.open_process([sys.executable, "-c", "while True: pass"])
    try:
        period = await idle.measure([busy.pid], 0.5)
    finally:
        busy.kill()
        await busy.wait()
    assert period.cpu_s > 0.05


# ---------------------------------------------------------------------- abort


@pytest.mark.parametrize("way", WAYS)
async def test_every_way_of_aborting_is_confirmed_and_leaves_nothing(world, autojump_clock, way):
    async with open_omni(speech(), world=world) as omni:
        asker, rng = Asker(omni, ["hello", "goodbye"], {}), random.Random(1)
        usual = await asker.whole()
        assert usual[0] > 5
        for _ in range(10):
            made = await trial(asker, way, rng, usual, quiet=("thinker", "talker"))
            assert (made.way, made.confirmed, made.outputs_after, made.kv_free) == (way, True, 0, True)
        omni.check()


@pytest.mark.parametrize("way", WAYS)
async def test_an_engine_that_does_not_confirm_is_noticed(world, autojump_clock, way):
    stuck = core("llm", output="text", tokens=40, die_at=30, death="stall")
    async with open_omni(pipeline(stuck, abort_s=1.0), world=world) as omni:
        asker = Asker(omni, ["hello"], {"max_tokens": 12})
        usual = await asker.whole()
        asker.sampling = {"max_tokens": 40}
        made = await trial(asker, way, _Last(), (18, 10 * usual[1]), quiet=())
    assert made.confirmed is False
    assert made.return_s >= 1.0


class _Last(random.Random):
    """Every moment is the last one: 12 and 17 tokens, and the engine stalls at its thirtieth."""

    def random(self):
        return 0.999


async def test_the_load_is_there_while_the_block_lasts(world, autojump_clock):
    async with open_omni(pipeline(core("llm", output="text", tokens=30)), world=world) as omni:
        others = Asker(omni, ["hello"], {})
        async with load(others, 8):
            await trio.sleep(1)
            assert omni.in_flight == 8
        assert omni.in_flight == 0
    assert len(others.pace.text) > 100


async def test_steps_are_tokens_of_one_request_and_sounds_of_an_unfinished_sentence(autojump_clock):
    pace = Pace()

    def say(request, payload, part=0):
        pace.take(request, Output(request, "stage", "any", payload, part=part))

    for request in ("a", "b"):
        say(request, TextChunk(text="x"))
    await trio.sleep(2)
    say("a", TextChunk(text="x"))
    assert pace.text == [2]
    say("a", TensorChunk())
    await trio.sleep(3)
    say("b", TensorChunk(finish_reason="stop"), part=1)
    say("a", TensorChunk(finish_reason="stop"))
    await trio.sleep(4)
    say("b", TensorChunk())
    assert pace.sound == [3]
    assert pace.steps == [3]


def test_an_abort_that_takes_longer_than_a_step_and_five_milliseconds_fails():
    def condition(return_s):
        one = Trial(way="block", return_s=return_s, confirmed=True, outputs_after=0, kv_free=True)
        others = tuple(
            abort.Condition(pipeline=name, loaded=loaded, trials=_each_way(one), steps=(0.010, 0.012))
            for name in ("one", "three")
            for loaded in (False, True)
        )
        return judge(abort.summary(others))

    assert set(condition(0.015).values()) == {"holds"}
    assert condition(0.030)["three_loaded_ms_p50"] == "fails"


def _each_way(one):
    return tuple(Trial(way=way, return_s=one.return_s, confirmed=True, outputs_after=0, kv_free=True) for way in WAYS)


# ---------------------------------------------------------------------- startup and shutdown


@pytest.mark.process
async def test_a_clean_stop_leaves_nothing(deploy):
    left = await shutdown.openings(deploy, threads_s=2.0)
    assert left == shutdown.Leftovers(strays=left.strays)


@pytest.mark.process
@pytest.mark.parametrize("stopped_engine", [False, True])
async def test_the_death_of_a_host_is_timed_to_the_end(deploy, stopped_engine):
    made = await shutdown.death(deploy, stopped_engine=stopped_engine)
    assert 0 < made.gone_s <= made.clean_s < 5


@pytest.mark.process
async def test_who_lives_and_what_it_maps_is_seen():
    program = (
        "import sys; from multiprocessing.shared_memory import SharedMemory; s = SharedMemory(create=True, size=9);"
        "print(s.name, flush=True); sys.stdin.read(); s.close(); s.unlink()"
    )
    child = await trio.lowlevel.open_process(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    name = (await child.stdout.receive_some()).decode().strip()
    watched = Watched([child.pid])
    assert watched.alive() == [child.pid]
    assert name in own_shm([child.pid])
    await child.stdin.aclose()
    assert await watched.gone(10) < 10
    assert watched.alive() == []
    watched.close()
    await child.wait()
    await child.stdout.aclose()
    assert name not in shm_names()


def _pairs(ours, reference):
    ready, closed = {"stages": {"thinker": ours - 1}}, {"killed": []}
    mine = Cycle(side="ours", start_s=ours, stop_s=ours / 10, ready=ready, closed=closed)
    other = Cycle(side="reference", start_s=reference, stop_s=reference / 10, ready={}, closed={})
    return [(mine, other)] * 15


@pytest.mark.parametrize(("ours", "verdict"), [(10.9, "holds"), (11.2, "fails")])
def test_a_start_may_take_a_tenth_longer(ours, verdict):
    assert judge(startup.summary(_pairs(ours, 10.0))) == {"startup_ratio": verdict}


def test_whatever_is_left_fails():
    death = shutdown.Death(gone_s=0.5, clean_s=3, stopped_engine=False)
    clean = shutdown.summary(_pairs(10, 10), shutdown.Leftovers(), [death])
    assert set(judge(clean).values()) == {"holds"}
    left = shutdown.Leftovers(processes=("7",), files=("f",), shm=("s",), fds=("9 -> pipe",), threads=1)
    verdicts = judge(shutdown.summary(_pairs(10, 10), left, [death]))
    assert {name for name, verdict in verdicts.items() if verdict == "fails"} == {
        "left_processes", "left_files", "left_shm", "left_fds", "left_threads",
    }  # fmt: skip


def test_few_pairs_say_so():
    made = startup.summary(_pairs(10.0, 10.0)[:5])
    assert any("5 pairs" in note and "--pairs 15" in note for note in made.notes)
    assert not any("--pairs" in note for note in startup.summary(_pairs(10.0, 10.0)).notes)
