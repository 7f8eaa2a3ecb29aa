"""What users of such systems ran into (CASES), on the in-memory twin and a virtual clock: C2, C5, C7, C16, C24."""

from __future__ import annotations

import gc
import random
import signal
import warnings

import attrs
import pytest
import trio

from omni_actors import Kind, open_omni
from omni_actors.testing import FakeBehaviour, FakeCoreBehaviour, FakeParams, MemoryWorld, fake_tokens
from omni_actors.testing.rigs import SHORT, core, omni_stage, pipeline, speech

LONG = {"max_tokens": 5000}


def held(omni) -> dict[str, int]:
    """What the runtime holds now; nothing of it may stay."""
    counts = attrs.asdict(omni.statistics())
    return {name: counts[name] for name in ("requests", "leases", "slots", "prompt_bytes", "jobs", "timers", "batches")}


@pytest.fixture
def world() -> MemoryWorld:
    return MemoryWorld()


async def test_c2_a_thousand_streams_cancelled_at_random_moments(world, autojump_clock):
    pick = random.Random(2)
    told = iter(range(1000))
    async with open_omni(
        speech(thinker={"tokens": 60, "params": LONG}, talker={"tokens": 40, "params": LONG}), world=world
    ) as omni:
        before = held(omni)

        async def client() -> None:
            for number in told:
                with trio.move_on_after(pick.uniform(0, 1)):
                    async with omni.generate(f"question {number}") as stream:
                        async for _ in stream:
                            pass

        async with trio.open_nursery() as nursery:
            for _ in range(16):
                nursery.start_soon(client)
        assert held(omni) == before == dict.fromkeys(before, 0)
        assert omni.statistics().ended[Kind.ABORTED] > 300
        for stage in ("thinker", "talker"):
            assert await omni.call(stage, "has_work") == [False]
        assert (await omni.call("vocoder", "stats"))[0]["live"] == 0
        async with omni.generate("the next") as stream:
            terminal = await stream.result()
        behaviour = FakeCoreBehaviour(tokens=60)
        assert terminal.token_ids("thinker") == fake_tokens(
            [ord(c) for c in "the next"], behaviour, FakeParams(max_tokens=5000)
        )
        omni.check()
    assert len(world.launcher.spawned) == 3  # the same engines to the end


async def test_c5_disconnecting_from_a_queue_of_one(world, autojump_clock):
    steps = FakeBehaviour(chunks=50, chunk_s=0.05, capacity=1)
    painter = omni_stage("painter", output="image", chunks=50, chunk_s=0.05, capacity=1)
    async with open_omni(pipeline(painter), world=world) as omni:
        pid = omni.pids()["painter/0"]
        left = trio.Event()

        async def first() -> None:
            async with omni.generate("one") as stream:
                for _ in range(5):
                    await anext(stream)
            left.set()

        async def third(scope: trio.CancelScope) -> None:
            with scope:
                async with omni.generate("three") as stream:
                    await anext(stream)
                    raise AssertionError("it started")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(first)
            await trio.testing.wait_all_tasks_blocked()
            async with omni.generate("two") as stream:
                queued = trio.CancelScope()
                nursery.start_soon(third, queued)
                await trio.sleep(0.1)
                queued.cancel()
                await left.wait()
                gone_at = trio.current_time()
                await anext(stream)
                # Its first step took one step's time, and the first request's engine at most two to stop.
                assert trio.current_time() - gone_at <= 3 * steps.chunk_s + 1e-9
                assert len((await stream.result()).results["painter"][0].tensors["audio"]) == steps.chunks
        assert omni.pids()["painter/0"] == pid
        (stats,) = await omni.call("painter", "stats")
        assert stats == {"live": 0, "made": 5 + 50}


async def wrapped(omni, prompt):
    async with omni.generate(prompt) as stream:
        async for output in stream:
            yield output


async def prefetching(omni, prompt, send) -> None:
    async with send, omni.generate(prompt) as stream:
        async for output in stream:
            await send.send(output)


@pytest.mark.parametrize("how", ["break", "aclose", "garbage collection", "a wrapper that prefetches"])
async def test_c7_a_reader_that_goes_is_an_abort(world, autojump_clock, how):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        async with open_omni(pipeline(core("llm", output="text", tokens=5000, params=LONG)), world=world) as omni:
            await go(omni, how)
            with trio.fail_after(0.1):
                while await omni.call("llm", "has_work") != [False]:
                    assert omni.statistics().ended[Kind.ABORTED] == 1
            omni.check()
            assert held(omni) == dict.fromkeys(held(omni), 0)
            assert omni.statistics().ended[Kind.ABORTED] == 1
    # trio itself says so of a generator that is left to the collector; nobody says more.
    said = [w for w in caught if not (how == "garbage collection" and issubclass(w.category, ResourceWarning))]
    assert said == []


async def go(omni, how) -> None:
    match how:
        case "break":
            async with omni.generate("x") as stream:
                async for _ in stream:
                    break
        case "aclose":
            outputs = wrapped(omni, "x")
            await anext(outputs)
            await outputs.aclose()
        case "garbage collection":
            outputs = wrapped(omni, "x")
            await anext(outputs)
            del outputs
            gc.collect()
        case _:
            async with trio.open_nursery() as nursery:
                send, receive = trio.open_memory_channel[object](1)
                nursery.start_soon(prefetching, omni, "x", send)
                await receive.receive()
                nursery.cancel_scope.cancel()


async def polled(omni, seen) -> None:
    while True:
        seen.append((trio.current_time(), omni.health()))
        await trio.sleep(0.05)


async def test_c16_health_while_a_stage_dies(world, autojump_clock):
    spec = speech(talker={"deadlines": attrs.evolve(SHORT, backoff_first_s=2.0), "start_s": 1.0})
    async with open_omni(spec, world=world) as omni, trio.open_nursery() as nursery:
        seen: list = []
        nursery.start_soon(polled, omni, seen)
        await trio.sleep(1)
        died = trio.current_time()
        world.launcher.find("talker").kill(signal.SIGKILL)
        await omni.wait_health(lambda health: not health.ready)
        assert trio.current_time() - died <= 1
        with trio.fail_after(10):
            await omni.wait_health(lambda health: health.ready)
        nursery.cancel_scope.cancel()
    for _, health in seen:
        assert health.ready == all(stage.ready > 0 for stage in health.stages)
    unready = [health for _, health in seen if not health.ready]
    assert unready
    assert all("talker" in health.reason for health in unready)
    assert any("SIGKILL" in health.reason for health in unready)


async def test_c16_health_while_a_stage_is_alive_and_makes_nothing(world, autojump_clock):
    stuck = {"stuck_at_chunk": 1, "deadlines": attrs.evolve(SHORT, hang_s=30, edge_s=60)}
    async with open_omni(speech(vocoder=stuck), world=world) as omni:
        (vocoder,) = (stage for stage in omni.health().stages if stage.stage == "vocoder")
        assert vocoder.stalled_s == 0
        async with omni.generate("x", modalities=["audio"]) as stream:
            await anext(stream)
            await trio.sleep(10)
            stalled = {stage.stage: stage.stalled_s for stage in omni.health().stages}
            assert stalled == {"thinker": 0, "talker": 0, "vocoder": pytest.approx(10, abs=0.1)}
            assert omni.health().ready  # it breathes: heartbeats come, so it is no hang
        assert all(stage.stalled_s == 0 for stage in omni.health().stages)


async def test_c24_everybody_leaves_at_once(world, autojump_clock):
    thinker = core("thinker", output="text", tokens=5000, max_running=20, params=LONG)
    async with open_omni(pipeline(thinker), world=world) as omni:
        before = omni.statistics()
        with trio.CancelScope() as clients:
            async with trio.open_nursery() as nursery:
                for number in range(40):
                    nursery.start_soon(read, omni, f"{number}")
                await trio.sleep(1)
                assert omni.in_flight == 40
                cancelled_at = trio.current_time()
                clients.cancel()
        assert trio.current_time() - cancelled_at <= 1
        after = omni.statistics()
        assert await omni.call("thinker", "has_work") == [False]
        assert held(omni) == dict.fromkeys(held(omni), 0)
        assert after.ended[Kind.ABORTED] - before.ended[Kind.ABORTED] == 40
        assert after.ended[Kind.FINISHED] == 0
        omni.check()


async def read(omni, prompt) -> None:
    async with omni.generate(prompt) as stream:
        await stream.result()
