"""Stages of vLLM-Omni's are killed, frozen, poisoned, their host too: exactly their requests fail, and all comes back.

Every case costs a start of a stage: by default there are a few, on Qwen3-TTS (two stages, pieces of codec frames in
shared memory). All of them, on three models, with ``OMNI_ACTORS_WHOLE_MATRIX=1``, as ``make chaos-omni`` does it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

import attrs
import pytest
import trio

from omni_actors import StageFailed, StageUnavailable
from omni_actors.runtime import open_omni
from omni_actors.testing.chaos import private_base
from omni_actors.testing.os_state import Watch, children, descendants, shared_memory
from omni_actors.vllm_omni import pipeline
from omni_actors.vllm_omni.tiny import options

from .faults import LIMITS, Fault, Matrix, failure, faults, reached_the_last
from .prompts import PROMPTS
from .test_same_outputs import segments
from .watched import Watched, watch_engines

HERE = Path(__file__).parent
WHOLE = bool(os.environ.get("OMNI_ACTORS_WHOLE_MATRIX"))
PROMPT = {"qwen3_tts": "read", "qwen3_omni": "hello", "qwen2_5_omni": "text"}
FEW = [
    Fault(stage=1, phase="stream"),
    Fault(stage=0, phase="waiting"),
    Fault(stage=1, phase="stream", signum=signal.SIGSTOP),
]
START_S = 300.0
HOST_GONE_S = 10.0

pytestmark = [pytest.mark.engine, pytest.mark.process]


def spec_of(model, **limits):
    spec = pipeline(str(model), **options(model))
    limits = {**LIMITS, **limits}
    stages = [attrs.evolve(each, deadlines=attrs.evolve(each.deadlines, **limits)) for each in spec.stages]
    return attrs.evolve(spec, stages=stages)


@pytest.fixture
def nothing_left():
    """No process, no run folder, no piece in shared memory is left when the test is over."""
    pieces, mine = segments(), children(os.getpid())
    with private_base() as base:
        yield base
        assert list(base.iterdir()) == []
    assert segments() <= pieces
    assert children(os.getpid()) == mine


async def matrix(model, cases, monkeypatch):
    """All of them, one after the other; then a shutdown while a killed stage is being started again."""
    watch_engines(monkeypatch)
    pieces, stories = segments(), []
    async with open_omni(spec_of(model)) as omni:
        under_test = Matrix(omni, Watched(omni, pieces), PROMPT[model.name])
        await under_test.begin()
        for case in cases:
            stories.append(await under_test.strike(case))
            print(stories[-1], flush=True)
        await shut_down_in_recovery(omni, PROMPTS[PROMPT[model.name]](str(model)))
    assert len(stories) == len(cases)


async def shut_down_in_recovery(omni, prompt):
    last = omni.spec.stages[-1].name
    everybody = Watch([each for pid in omni.pids().values() for each in (pid, *descendants(pid))])
    async with omni.generate(prompt) as stream:
        await reached_the_last(omni)
        os.kill(omni.pids()[f"{last}/0"], signal.SIGKILL)
        assert isinstance(await failure(stream), StageFailed)
    begun = trio.current_time()
    report = await omni.shutdown(drain_s=0)
    print(f"shutdown in recovery: {trio.current_time() - begun:.2f} s, {report}")
    assert trio.current_time() - begun <= LIMITS["stop_s"] + 5
    assert (report.killed, report.unreaped, report.unconfirmed_leases) == ((), (), 0)
    assert everybody.alive_after(0) == set()
    everybody.close()


async def test_qwen3_tts(tiny_qwen3_tts, nothing_left, monkeypatch):
    await matrix(tiny_qwen3_tts, list(faults(2)) if WHOLE else FEW, monkeypatch)


@pytest.mark.skipif(not WHOLE, reason="27 starts of a stage: with OMNI_ACTORS_WHOLE_MATRIX=1")
@pytest.mark.parametrize("model", ["qwen2_5_omni", "qwen3_omni"])
async def test_three_stages(model, request, nothing_left, monkeypatch):
    await matrix(request.getfixturevalue(f"tiny_{model}"), list(faults(3)), monkeypatch)


def settled(omni, pid, health):
    """Whether the talker that was this process is down, or another one is ready."""
    return health.stages[1].state == "down" or (health.ready and omni.pids().get("talker/0") != pid)


@pytest.mark.skipif(not WHOLE, reason="four starts of a stage: with OMNI_ACTORS_WHOLE_MATRIX=1")
async def test_a_prompt_that_kills_its_stage_does_so_four_times_and_no_more(tiny_qwen2_5_omni, nothing_left):
    """Without a penalty vLLM-Omni's runner fails on a talker's request, and takes its engine with it."""
    poison = {"talker": {"repetition_penalty": 1.0, "max_tokens": 64, "ignore_eos": True}}
    prompt = PROMPTS["text"](str(tiny_qwen2_5_omni))
    async with open_omni(spec_of(tiny_qwen2_5_omni, stable_s=1000.0)) as omni:
        for generation in range(1, 5):
            async with omni.generate(prompt, poison) as stream:
                error = await failure(stream)
            assert isinstance(error, StageFailed), error
            assert (error.stage, error.generation) == ("talker", generation)
            assert error.stderr_tail
            with trio.fail_after(START_S):
                await omni.wait_health(partial(settled, omni, error.pid))
        assert omni.health().stages[1].state == "down"
        begun = trio.current_time()
        async with omni.generate(prompt) as stream:
            error = await failure(stream)
        assert isinstance(error, StageUnavailable)
        assert (error.stage, trio.current_time() - begun < 5) == ("talker", True)
        async with omni.generate(prompt, modalities=["text"]) as stream:
            assert await failure(stream) is None


@pytest.mark.parametrize("after_s", [1.0, 8.0] if WHOLE else [8.0])
async def test_a_start_that_is_given_up_leaves_nothing(tiny_qwen3_tts, nothing_left, after_s):
    with trio.move_on_after(START_S) as scope:
        spec = spec_of(tiny_qwen3_tts)
        scope.deadline = trio.current_time() + after_s
        async with open_omni(spec):
            pytest.fail("it was ready too soon")
    begun = trio.current_time()
    assert scope.cancelled_caught
    assert begun - scope.deadline <= LIMITS["stop_s"]


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM] if WHOLE else [signal.SIGKILL])
def test_a_host_ends_while_it_streams_and_everything_ends_with_it(tiny_qwen3_tts, nothing_left, signum):
    """Pieces in shared memory too, of which the code2wav had not read all: it was stopped."""
    command = [sys.executable, str(HERE / "fault_host_program.py"), str(tiny_qwen3_tts)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as host:
        watchdog = threading.Timer(START_S, host.kill)  # a silent host fails the test, it does not hang it
        watchdog.start()
        try:
            assert host.stdout is not None
            first = next((line for line in host.stdout if line.startswith(b"{")), None)
            assert first, "it ended before it had made a sound"
            pids = json.loads(first)
            everybody = descendants(host.pid)
            assert set(pids.values()) < set(everybody)
            names, watch = shared_memory(everybody), Watch(everybody)
            assert names
            host.send_signal(signum)
            code, alive = host.wait(HOST_GONE_S), watch.alive_after(HOST_GONE_S)
            watch.close()
        finally:
            watchdog.cancel()
            host.kill()
    assert (code, alive) == (-signum, set())
    assert [name for name in names if Path("/dev/shm", name).exists()] == []
