"""Guest mode: trio inside the loop. What a thread of its own gives is given here too, whatever becomes of the loop."""

from __future__ import annotations

import asyncio
import gc
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio
import uvloop
from omni_actors_asyncio import AsyncOmni

from omni_actors import Kind, OmniError, StartupFailed, UsageError
from omni_actors.testing import MemoryWorld
from omni_actors.testing.os_state import Watch
from omni_actors.testing.rigs import core, pipeline

from .conftest import idle_within

NEW_LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
PROGRAM = Path(__file__).with_name("guest_program.py")


def guest(**more) -> AsyncOmni:
    return AsyncOmni(pipeline(core("llm", **{"output": "text", **more})), world=MemoryWorld(), guest=True)


def endless(**more) -> AsyncOmni:
    return guest(tokens=8_000, token_s=0.002, params={"max_tokens": None}, **more)


async def thread_of(omni) -> int:
    async def ident() -> int:
        return threading.get_ident()

    return await asyncio.wrap_future(omni._bridge.run(ident))


async def begin(omni):
    stream = omni.generate_omni("x")
    await anext(stream)
    return stream


async def text_of(omni, prompt: str) -> str:
    return "".join([output.text async for output in omni.generate_omni(prompt)])


async def finished(omni):
    """From another loop: the runtime is all right, forgets the requests of the lost one, and ends."""
    async with asyncio.timeout(20):
        assert await text_of(omni, "y")
        assert await idle_within(omni, 2)
        statistics = await omni.statistics()
        assert statistics.ended[Kind.ABORTED] == 1
        return await omni.close(drain_s=0)


def test_everything_happens_in_the_loops_thread(run):
    async def main():
        async with guest(token_s=0.001) as omni:
            assert await thread_of(omni) == threading.get_ident()
            answers = await asyncio.gather(*(text_of(omni, str(number % 2)) for number in range(8)))
            assert len(set(answers)) == 2
            async for output in omni.generate("x", {"output_kind": 0}, "x"):
                last = output
            assert last.finished
            with ThreadPoolExecutor(1) as threads:  # another loop, in another thread
                loop = asyncio.get_running_loop()
                assert await loop.run_in_executor(threads, asyncio.run, text_of(omni, "0")) == answers[0]
        assert not omni.is_running

    run(main)


def test_leaving_early_frees_the_engine(run):
    async def main():
        async with endless() as omni:
            task = asyncio.ensure_future(text_of(omni, "x"))
            while not any(await omni.call("llm", "has_work")):
                pass
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            return await idle_within(omni, 1)

    assert run(main)


def test_two_guests_of_one_loop(run):
    async def main():
        async with guest() as one, guest() as other:
            first, second = await asyncio.gather(text_of(one, "x"), text_of(other, "x"))
            assert first == second
            await one.close()
            assert await text_of(other, "x") == first

    run(main)


def test_shutdown_inside_of_the_loop_that_it_needs(run):
    async def main():
        omni = await endless().__aenter__()
        stream = await begin(omni)
        omni.shutdown(0)
        assert [output async for output in stream] == []
        assert stream.terminal.kind is Kind.ABORTED
        await asyncio.get_running_loop().run_in_executor(None, omni.shutdown)

    run(main)
    trio.run(trio.sleep, 0)  # the thread has no run any more


def test_shutdown_from_another_thread(run):
    async def main():
        async with endless() as omni:
            stream = await begin(omni)
            await asyncio.get_running_loop().run_in_executor(None, omni.shutdown, 0)
            assert [output async for output in stream] == []

    run(main)


def test_it_does_not_open_and_says_why(run):
    async def main():
        broken = core("llm", output="text", handshake="exit", stderr="no such weights")
        with pytest.raises(StartupFailed, match="no such weights"):
            await AsyncOmni.open(pipeline(broken), world=MemoryWorld(), guest=True)

    run(main)


def test_without_a_loop_there_is_nobody_to_be_a_guest_of():
    omni = guest()
    with pytest.raises(UsageError, match="running asyncio loop"):
        omni.__aenter__().send(None)
    assert not omni.is_running


def test_a_bug_in_the_runtime_is_not_the_loops(run, monkeypatch):
    from omni_actors.runtime._router import Router

    def bug(self, batch):
        raise ZeroDivisionError

    async def main():
        omni = await endless().__aenter__()
        monkeypatch.setattr(Router, "apply", bug)
        assert await text_of(omni, "x") == ""
        with pytest.raises(OmniError, match="ZeroDivisionError"):
            await omni.close()
        return "the loop lives"

    assert run(main)


@pytest.mark.parametrize("kind", NEW_LOOPS)
@pytest.mark.parametrize("pending", [False, True], ids=["idle", "a tick is due"])
def test_the_loop_is_closed_and_the_run_goes_on_in_another_thread(kind, pending):
    loop = NEW_LOOPS[kind]()
    omni = loop.run_until_complete(guest(tokens=12, token_s=0.2).__aenter__())
    stream = loop.run_until_complete(begin(omni))
    if pending:  # what the loop was asked to run, and never will
        omni._bridge.post(lambda: None)
        wait_until(lambda: omni._bridge._host._due.qsize())
    loop.close()
    asyncio.run(finished(omni))
    trio.run(trio.sleep, 0)
    del stream
    gc.collect()


def wait_until(true) -> None:
    deadline = time.monotonic() + 10
    while not true():
        assert time.monotonic() < deadline


@pytest.mark.parametrize("kind", NEW_LOOPS)
def test_the_loop_is_stopped_and_resumed(kind):
    loop = NEW_LOOPS[kind]()
    omni = loop.run_until_complete(guest(token_s=0.01).__aenter__())
    stream = loop.run_until_complete(begin(omni))
    asyncio.run(asyncio.sleep(0.05))  # nobody works on it meanwhile

    async def rest() -> str:
        return "".join([output.text async for output in stream])

    assert loop.run_until_complete(rest()) == loop.run_until_complete(text_of(omni, "x"))[1:]
    assert loop.run_until_complete(thread_of(omni)) == threading.get_ident()
    loop.run_until_complete(omni.close())
    loop.close()


@pytest.mark.parametrize("kind", NEW_LOOPS)
def test_the_loop_is_stopped_and_somebody_closes_the_runtime(kind):
    loop = NEW_LOOPS[kind]()
    omni = loop.run_until_complete(endless().__aenter__())
    stream = loop.run_until_complete(begin(omni))
    omni.shutdown(0)
    assert stream.terminal.kind is Kind.ABORTED
    loop.close()


# ---------------------------------------------------------------------- real processes


@pytest.fixture
def base():
    folder = Path(tempfile.mkdtemp(prefix="oa-"))  # socket paths must be short
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def started(how: str, kind: str, base: Path) -> Iterator[subprocess.Popen[str]]:
    program = subprocess.Popen(
        [sys.executable, str(PROGRAM), how, kind],
        env={**os.environ, "XDG_RUNTIME_DIR": str(base)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with program:
        try:
            yield program
        finally:
            program.kill()


@pytest.mark.process
@pytest.mark.parametrize(
    ("how", "kind", "sent", "code"),
    [
        ("closed", "asyncio", None, 0),
        ("closed", "uvloop", None, 0),
        ("stopped", "asyncio", None, 0),
        ("stopped", "uvloop", None, 0),
        ("elsewhere", "asyncio", None, 0),
        ("error", "uvloop", None, 7),
        ("busy", "asyncio", signal.SIGINT, -signal.SIGINT),
        ("busy", "uvloop", signal.SIGKILL, -signal.SIGKILL),
    ],
)
def test_a_program_that_ends_leaves_no_engine(how, kind, sent, code, base):
    with started(how, kind, base) as program:
        pids = {int(pid) for pid in program.stdout.readline().split()}
        assert len(pids) == 1, program.communicate(timeout=30)
        watch = Watch(pids)
        if sent is not None:
            program.send_signal(sent)
        _, stderr = program.communicate(timeout=60)
    assert program.returncode == code, stderr
    assert ("Traceback" in stderr) == (sent is signal.SIGINT), stderr
    assert watch.alive_after(5) == set()
    watch.close()
    wait_until(lambda: list(base.iterdir()) == [])
