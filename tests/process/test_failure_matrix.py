"""The failure matrix: {idle, loaded} by {SIGKILL, SIGTERM, SIGINT} by {worker, engine, host}, and out of memory.

Each time: what the users see, that all of it is gone within 5 s, and that nothing of it is left.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import threading
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import attrs
import pytest
import trio

from omni_actors import EngineRejected, Kind, RequestFailed, StageFailed
from omni_actors.testing.chaos import workers
from omni_actors.testing.os_state import descendants, shared_memory
from omni_actors.testing.rigs import SHORT, core, open_in_time, pipeline

pytestmark = pytest.mark.process

PROGRAM = Path(__file__).with_name("matrix_host_program.py")
GONE_S = 5.0
SIGNALS = [signal.SIGKILL, signal.SIGTERM, signal.SIGINT]
LIMITS = attrs.evolve(SHORT, backoff_first_s=0.05)
LONG = {"max_tokens": 100_000}
FEW = {"max_tokens": 10}


def matrix_pipeline():
    """Two LLMs side by side: what happens to one must not touch the other."""
    behaviour = {"tokens": 100_000, "token_s": 0.005, "params": LONG, "deadlines": LIMITS}
    writer = core("writer", output="text", **behaviour)
    return pipeline(writer, core("painter", output="image", workers=1, hoard="more", **behaviour))


class Victim:
    """The painter's first generation: everything that must end with it."""

    def __init__(self, omni, watch) -> None:
        self.pid = omni.pids()["painter/0"]
        family = [self.pid, *descendants(self.pid)]
        assert len(family) == 3  # the engine, its worker, its resource tracker
        self.names = shared_memory(family)
        assert len(self.names) == 1
        self._watched = watch(*family)

    def hit(self, member: str, signum: int) -> None:
        (worker,) = workers(self.pid)
        os.kill(worker if member == "worker" else self.pid, signum)

    async def gone(self) -> None:
        alive = await trio.to_thread.run_sync(self._watched.alive_after, GONE_S)
        assert alive == set()
        assert still_there(self.names) == []


def still_there(names) -> list[str]:
    return [name for name in names if Path("/dev/shm", name).exists()]


@asynccontextmanager
async def matrix(watch):
    async with open_in_time(matrix_pipeline()) as omni:
        yield omni, Victim(omni, watch)


async def recovered(omni, victim) -> None:
    await omni.wait_health(lambda health: health.ready and omni.pids().get("painter/0") != victim.pid)
    async with omni.generate("again", FEW) as stream:
        assert (await stream.result()).kind is Kind.FINISHED
    omni.check()


@pytest.mark.parametrize("signum", SIGNALS)
@pytest.mark.parametrize("member", ["worker", "engine"])
async def test_an_idle_engine_dies_and_nobody_notices(run_base, watch, member, signum):
    async with matrix(watch) as (omni, victim):
        victim.hit(member, signum)
        await victim.gone()
        await recovered(omni, victim)


@pytest.mark.parametrize("signum", SIGNALS)
@pytest.mark.parametrize("member", ["worker", "engine"])
async def test_a_loaded_engine_takes_only_its_own_requests_with_it(run_base, watch, member, signum):
    async with matrix(watch) as (omni, victim):
        async with omni.generate("a text", modalities=["text"]) as other, omni.generate("a picture") as mine:
            await until_at_work(mine)
            victim.hit(member, signum)
            error = await failure(mine)
            if (member, signum) == ("engine", signal.SIGTERM):
                # Asked to end, it does so in order: it says itself, and first, of whom it takes leave.
                assert isinstance(error, EngineRejected)
                assert error.stage == "painter"
            else:
                assert isinstance(error, StageFailed)
                assert (error.stage, error.replica, error.generation, error.pid) == ("painter", 0, 1, victim.pid)
            await victim.gone()
            assert other.terminal is None
            await anext(other)
        await recovered(omni, victim)


async def until_at_work(stream) -> None:
    async for output in stream:
        if output.stage == "painter":
            return


async def failure(stream) -> RequestFailed:
    with pytest.raises(RequestFailed) as caught:
        await stream.result()
    return caught.value


async def test_an_engine_that_may_have_no_more_memory_says_so_and_dies(run_base, watch):
    async with matrix(watch) as (omni, victim):
        async with (
            omni.generate("a text", modalities=["text"]) as other,
            omni.generate("more", modalities=["image"]) as mine,
        ):
            limit = bytes_of(victim.pid)["VmSize"] + (16 << 20)
            resource.prlimit(victim.pid, resource.RLIMIT_AS, (limit, limit))
            error = await failure(mine)
            assert (error.stage, error.exit_code) == ("painter", 1)
            assert any("MemoryError" in line for line in error.stderr_tail)
            await victim.gone()
            await anext(other)
        await recovered(omni, victim)


async def test_an_engine_that_the_kernel_kills_for_its_memory(run_base, watch):
    """As its out-of-memory killer does it: SIGKILL, once it has taken too much."""
    async with matrix(watch) as (omni, victim):
        async with (
            omni.generate("a text", modalities=["text"]) as other,
            omni.generate("more", modalities=["image"]) as mine,
        ):
            before = bytes_of(victim.pid)["VmRSS"]
            async for _ in mine:
                if bytes_of(victim.pid)["VmRSS"] > before + (32 << 20):
                    break
            victim.hit("engine", signal.SIGKILL)
            error = await failure(mine)
            assert (error.stage, error.signal) == ("painter", "SIGKILL")
            await victim.gone()
            await anext(other)
        await recovered(omni, victim)


def bytes_of(pid: int) -> dict[str, int]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {line.split(":")[0]: int(line.split()[1]) << 10 for line in lines if line.endswith(" kB")}


# ---------------------------------------------------------------------- the host


@contextmanager
def host(load: str):
    with subprocess.Popen(
        [sys.executable, str(PROGRAM), load], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        watchdog = threading.Timer(60, process.kill)  # a silent host fails the test, it does not hang it
        watchdog.start()
        try:
            assert process.stdout is not None
            yield process, json.loads(process.stdout.readline())
        finally:
            watchdog.cancel()
            process.kill()


@pytest.mark.parametrize("signum", SIGNALS)
@pytest.mark.parametrize("load", ["idle", "loaded"])
def test_the_host_is_ended_and_everything_ends_with_it(run_base, watch, load, signum):
    with host(load) as (process, pids):
        family = descendants(process.pid)
        names = shared_memory(family)
        assert len(names) == 1
        assert set(pids.values()) < set(family)
        everybody = watch(*family)
        process.send_signal(signum)
        assert process.wait(GONE_S) == (130 if signum == signal.SIGINT else -signum)
        assert everybody.alive_after(GONE_S) == set()
        assert still_there(names) == []
        assert list(run_base.iterdir()) == []
