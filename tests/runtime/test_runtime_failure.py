"""Engines that die, hang and lie: exactly their requests fail, and the stage comes back."""

from __future__ import annotations

import signal

import attrs
import pytest
import trio

from omni_actors import Kind, StageFailed, StageUnavailable, open_omni
from omni_actors.testing.rigs import SHORT, core, pipeline

LONG = {"max_tokens": 1000}


async def failure(stream) -> StageFailed:
    with pytest.raises(StageFailed) as caught:
        async for _ in stream:
            pass
    return caught.value


async def ready(omni) -> None:
    with trio.fail_after(60):
        await omni.wait_health(lambda health: health.ready)


async def test_a_killed_engine_fails_its_requests_and_comes_back(world, autojump_clock):
    async with open_omni(pipeline(core("llm", output="text", tokens=1000)), world=world) as omni:
        async with omni.generate("x", LONG, request_id="mine") as stream:
            await anext(stream)
            engine = world.launcher.find("llm")
            engine.say("out of memory, sorry")
            engine.kill(signal.SIGKILL)
            error = await failure(stream)
        assert (error.stage, error.replica, error.generation, error.request_id) == ("llm", 0, 1, "mine")
        assert (error.pid, error.signal, error.exit_code) == (engine.pid, "SIGKILL", None)
        assert error.stderr_tail == ("out of memory, sorry",)
        assert "out of memory, sorry" in str(error)
        assert error.terminal.kind is Kind.FAILED
        assert error.terminal.text()
        assert not omni.health().ready
        async with omni.generate("again", {"max_tokens": 3}) as stream:
            assert len((await stream.result()).token_ids("llm")) == 3
        assert omni.health().ready
        omni.check()


@pytest.mark.parametrize(
    ("death", "verdict", "words"),
    [
        ("exit", "exit", "exited with code 3"),
        ("kill", "exit", "SIGKILL"),
        ("sentinel", "sentinel", "reported that its engine is dead"),
        ("garbage", "protocol", "broke its wire"),
        ("stall", "hang", "was silent for"),
    ],
)
async def test_three_detectors_one_verdict(world, autojump_clock, death, verdict, words):
    spec = pipeline(core("llm", output="text", tokens=1000, die_at=4, death=death))
    async with open_omni(spec, world=world) as omni:
        begun = trio.current_time()
        async with omni.generate("x", LONG) as stream:
            error = await failure(stream)
        assert error.verdict == verdict
        assert words in str(error)
        assert trio.current_time() - begun <= SHORT.hang_s + 0.2
        assert len(world.launcher.processes) <= 1
        await ready(omni)
        assert world.launcher.find("llm").launch.generation == 2
        omni.check()


async def test_a_stopped_engine_is_found_and_a_slow_one_is_not(world, autojump_clock):
    deadlines = attrs.evolve(SHORT, hang_s=4)
    async with open_omni(pipeline(core("llm", output="text", deadlines=deadlines, token_s=3)), world=world) as omni:
        async with omni.generate("x", {"max_tokens": 4}) as stream:
            assert (await stream.result()).kind is Kind.FINISHED  # 3 s steps are long, not hung
        await trio.sleep(1000)  # nothing is owed: silence is fine
        assert len(world.launcher.spawned) == 1
        async with omni.generate("x", {"max_tokens": 4}) as stream:
            await anext(stream)
            world.launcher.find("llm").kill(signal.SIGSTOP)
            stopped = trio.current_time()
            error = await failure(stream)
            assert error.verdict == "hang"
            assert trio.current_time() - stopped <= 4.01
        await ready(omni)
        assert len(world.launcher.processes) == 1


async def test_the_sibling_serves_on(world, autojump_clock):
    async with open_omni(pipeline(core("llm", output="text", tokens=50, replicas=2)), world=world) as omni:
        async with omni.generate("a", {"max_tokens": 50}) as one, omni.generate("b", {"max_tokens": 50}) as two:
            await anext(one), await anext(two)
            world.launcher.find("llm", 1).kill(signal.SIGKILL)
            outcomes = []
            for stream in (one, two):
                try:
                    outcomes.append((await stream.result()).kind)
                except StageFailed as error:
                    outcomes.append(error.replica)
            assert set(outcomes) == {1, Kind.FINISHED}
            assert omni.health().ready  # one replica is enough to serve


async def test_the_fourth_failure_marks_it_down_and_requests_learn_at_once(world, autojump_clock):
    spec = pipeline(core("llm", output="text", tokens=1000, die_at=2))
    async with open_omni(spec, world=world) as omni:
        for _ in range(4):
            async with omni.generate("x", LONG) as stream:
                await failure(stream)
        with trio.fail_after(5):
            health = await omni.wait_health(lambda health: health.stages[0].state == "down")
        assert not health.ready
        assert "stage llm is down" in health.reason
        assert "exited with code 3" in health.reason
        before = trio.current_time()
        async with omni.generate("x", LONG) as stream:
            with pytest.raises(StageUnavailable, match="llm is down"):
                await anext(stream)
        assert trio.current_time() == before
        assert len(world.launcher.spawned) == 4
        omni.check()


async def test_waiting_for_a_restart_ends_at_placement_s(world, autojump_clock):
    spec = pipeline(core("llm", output="text", tokens=1000, deadlines=attrs.evolve(SHORT, backoff_first_s=10)))
    async with open_omni(spec, world=world) as omni:
        world.launcher.find("llm").kill(signal.SIGKILL)
        await trio.sleep(0.1)
        before = trio.current_time()
        async with omni.generate("x", LONG) as stream:
            with pytest.raises(StageUnavailable, match="SIGKILL"):
                await anext(stream)
        assert trio.current_time() - before == pytest.approx(SHORT.placement_s)
        omni.check()


async def test_aborting_while_waiting_for_a_restart(world, autojump_clock):
    spec = pipeline(core("llm", output="text", tokens=1000, deadlines=attrs.evolve(SHORT, backoff_first_s=3)))
    async with open_omni(spec, world=world) as omni:
        world.launcher.find("llm").kill(signal.SIGKILL)
        await trio.sleep(0.1)
        async with omni.generate("x", LONG, request_id="r") as stream:
            report = await omni.abort("r")
            assert report.terminals[0].kind is Kind.ABORTED
            assert [output async for output in stream] == []
        await ready(omni)
        assert await omni.call("llm", "has_work") == [False]
        omni.check()


@pytest.mark.parametrize("zero", ["backoff_first_s", "backoff_max_s"])
async def test_without_a_backoff_a_restart_comes_at_once(world, autojump_clock, zero):
    deadlines = attrs.evolve(SHORT, **{zero: 0.0})
    async with open_omni(pipeline(core("llm", output="text", deadlines=deadlines)), world=world) as omni:
        died = trio.current_time()
        world.launcher.find("llm").kill(signal.SIGKILL)
        await omni.wait_health(lambda health: not health.ready)
        await omni.wait_health(lambda health: health.ready)
        assert trio.current_time() == died
