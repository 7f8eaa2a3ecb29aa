"""Real engines are killed and frozen: exactly their requests fail, the others go on, and the stage comes back.

These come after the tests of answers and aborts (files run in the order of their names): they cost an engine's start.
"""

from __future__ import annotations

import os
import signal

import pytest
import trio

from omni_actors import Kind, StageFailed
from omni_actors.pipelines.tiny_omni._questions import questions

pytestmark = [pytest.mark.engine, pytest.mark.process, pytest.mark.filterwarnings("ignore")]

RESTART_S = 240.0
NOISE_S = 1.0
(FOUR_PARTS,) = questions(1, seed=3, parts=4)


async def at_work(omni, stream, stage: str) -> None:
    """Read until ``stage`` has a lease of the only request that needs it."""
    async for _ in stream:
        if any(lease.stage == stage for lease in omni._handler.table.leases.values()):
            return
    pytest.fail(f"{stage} was never at work")


async def failure(stream) -> StageFailed:
    with pytest.raises(StageFailed) as caught:
        await stream.result()
    return caught.value


async def speaks(omni) -> None:
    async with omni.generate(FOUR_PARTS.text) as stream:
        parts = {output.part async for output in stream if output.modality == "audio"}
    assert stream.terminal.text() == FOUR_PARTS.answer
    assert parts == {0, 1, 2, 3}
    omni.check()


def test_a_killed_talker_fails_its_requests_only_and_comes_back(engines):
    asked = questions(400, seed=5, parts=1)
    served = []

    async def reader(omni, until: trio.Event) -> None:
        while not until.is_set():
            async with omni.generate(asked[len(served) % len(asked)].text, modalities=["text"]) as stream:
                served.append((await stream.result()).kind)

    async def scenario(omni) -> None:
        pid, over = omni.pids()["talker/0"], trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(reader, omni, over)
            slow = {"talker": {"min_tokens": 90, "max_tokens": 90}}
            async with omni.generate(FOUR_PARTS.text, slow, request_id="mine") as stream:
                await at_work(omni, stream, "talker")
                os.kill(pid, signal.SIGKILL)
                killed_at = trio.current_time()
                error = await failure(stream)
                assert trio.current_time() - killed_at <= 1 + NOISE_S
            assert (error.stage, error.replica, error.generation) == ("talker", 0, 1)
            assert (error.pid, error.signal, error.verdict, error.request_id) == (pid, "SIGKILL", "exit", "mine")
            assert error.stderr_tail
            assert str(pid) in str(error)
            health = omni.health()
            assert not health.ready
            assert "talker" in health.reason
            before = len(served)
            await omni.wait_health(lambda health: health.ready)
            assert len(served) > before
            over.set()
        assert set(served) == {Kind.FINISHED}
        assert omni.pids()["talker/0"] != pid
        await speaks(omni)

    engines.attacked.append("talker")
    engines.run(scenario, within_s=RESTART_S)


def test_a_frozen_vocoder_is_found_within_hang_s_and_comes_back(engines):
    async def scenario(omni) -> None:
        pid, hang_s = omni.pids()["vocoder/0"], omni.spec.stage("vocoder").deadlines.hang_s
        os.kill(pid, signal.SIGSTOP)
        async with omni.generate(FOUR_PARTS.text, request_id="mine") as stream:
            error = await failure(stream)
        (timing,) = [timing for timing in error.terminal.timings if timing.stage == "vocoder"]
        assert error.terminal.at - timing.submitted_at <= hang_s + NOISE_S
        assert (error.stage, error.verdict, error.pid, error.request_id) == ("vocoder", "hang", pid, "mine")
        assert error.terminal.text() == FOUR_PARTS.answer
        await omni.wait_health(lambda health: health.ready)
        await speaks(omni)

    engines.attacked.append("vocoder")
    engines.run(scenario, within_s=RESTART_S)
