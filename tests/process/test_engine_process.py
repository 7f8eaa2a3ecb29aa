"""Engine processes as their replica sees them: spawn, output, exit, destroy, and nothing left."""

from __future__ import annotations

import gc
import logging
import os
import secrets
import signal
import sys
import threading
from contextlib import asynccontextmanager

import attrs
import pytest
import trio

from omni_actors._errors import StartupFailed
from omni_actors.stages._interface import Launch
from omni_actors.stages._process import SCRATCH, device_env, open_launcher
from omni_actors.stages._shield import bounded_shield
from omni_actors.testing.os_state import children

pytestmark = pytest.mark.process


@asynccontextmanager
async def launcher_of(run_folder=None):
    with trio.fail_after(30):
        async with open_launcher(cookie=f"test-{secrets.token_hex(8)}", run_folder=run_folder) as launcher:
            yield launcher


def child(program: str, *, payload: bytes = b"", env: dict[str, str] | None = None) -> Launch:
    argv = [sys.executable, "-S", "-c", program]
    return Launch(stage="thinker", replica=1, generation=3, argv=argv, env=env or {}, payload=payload)


FOREVER = "import signal, sys; print('up', flush=True); signal.pause()"


async def up(process, caplog) -> None:
    """Until the child has said ``up``."""
    arrived = trio.Event()

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.getMessage() == "up":
                arrived.set()

    handler = Handler()
    logger = logging.getLogger("omni_actors.engine")
    logger.addHandler(handler)
    try:
        if "up" not in caplog.messages:
            await arrived.wait()
    finally:
        logger.removeHandler(handler)


@pytest.fixture(autouse=True)
def engine_log(caplog):
    caplog.set_level(logging.INFO, logger="omni_actors.engine")


@pytest.mark.parametrize("nice", [0, 7])
async def test_a_child_is_as_nice_as_its_launch_says(caplog, nice):
    program = "import os; print('nice', os.getpriority(os.PRIO_PROCESS, 0), flush=True); print('up', flush=True)"
    async with launcher_of() as launcher:
        process = await launcher.spawn(attrs.evolve(child("input();" + program, payload=b"x\n"), nice=nice))
        await process.wait()
        await up(process, caplog)
    assert f"nice {os.getpriority(os.PRIO_PROCESS, 0) + nice}" in caplog.messages


async def test_the_payload_arrives_and_stdin_stays_open():
    program = """
import os, struct, sys
size, = struct.unpack("<Q", os.read(0, 8))
data = b""
while len(data) < size: data += os.read(0, size - len(data))
print(size, data[:3].decode(), file=sys.stderr, flush=True)
sys.exit(len(os.read(0, 1)))
"""
    async with launcher_of() as launcher:
        process = await launcher.spawn(child(program, payload=b"abc" * 100_000))
        with trio.move_on_after(0.2) as scope:
            await process.wait()
        assert scope.cancelled_caught, "EOF on stdin, although we hold the lifeline"
        await process.destroy(2)
        assert process.tail() == ("300000 abc",)


async def test_a_child_that_exits_while_its_payload_is_written():
    async with launcher_of() as launcher:
        program = "import sys; print('no such model', file=sys.stderr); sys.exit(3)"
        process = await launcher.spawn(child(program, payload=b"x" * 10_000_000))
        assert await process.wait() == 3
        assert await process.destroy(2) == ()
        assert process.tail() == ("no such model",)


async def test_a_program_that_does_not_exist(tmp_path):
    run_folder = tmp_path / "omni-run"
    run_folder.mkdir(mode=0o700)
    async with launcher_of(str(run_folder)) as launcher:
        with pytest.raises(StartupFailed, match="thinker/1: cannot start /no/such/python") as caught:
            await launcher.spawn(Launch(stage="thinker", replica=1, generation=1, argv=["/no/such/python"],
                                        env={}, payload=b""))  # fmt: skip
        assert (caught.value.stage, caught.value.replica) == ("thinker", 1)
        assert list(run_folder.iterdir()) == []


async def test_the_log_has_stage_and_replica(caplog):
    async with launcher_of() as launcher:
        process = await launcher.spawn(child("print('loading\\r\\n50 %\\r100 %')"))
        await process.wait()
        await process.destroy(2)
        records = [r for r in caplog.records if r.name == "omni_actors.engine"]
        assert [(r.getMessage(), r.stage, r.replica) for r in records] == [
            ("loading", "thinker", 1), ("100 %", "thinker", 1)
        ]  # fmt: skip
        assert process.tail() == ("loading", "100 %"), "stdout, as stderr is empty"


async def test_the_tail_is_the_end_of_stderr_and_bounded():
    program = """
import sys
print("stdout is not asked")
for i in range(50): print(i, file=sys.stderr)
sys.stderr.write("x" * 100_000)
"""
    async with launcher_of() as launcher:
        process = await launcher.spawn(child(program))
        await process.wait()
        await process.destroy(2)
        assert process.tail() == (*map(str, range(31, 50)), "x" * 1000)


async def test_the_last_words_are_known_when_the_end_is_though_a_member_holds_the_pipe():
    program = """
import os, signal, sys
if os.fork() == 0:
    signal.pause()
for i in range(3000): print("x" * 100, file=sys.stderr)
print("last words", file=sys.stderr)
os._exit(1)
"""
    async with launcher_of() as launcher:
        process = await launcher.spawn(child(program))
        assert await process.wait() == 1
        assert process.tail()[-1] == "last words"


async def test_cancelled_at_any_step_of_spawning_nothing_is_left():
    """The cancel arrives at the n-th scheduling step after the spawn has begun."""
    before = children(os.getpid())
    async with launcher_of() as launcher:
        for steps in range(12):
            with trio.CancelScope() as scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(launcher.spawn, child(FOREVER))
                    for _ in range(steps):
                        await trio.lowlevel.cancel_shielded_checkpoint()
                    scope.cancel()
            for process in launcher.processes:
                await process.destroy(2)
            assert set(children(os.getpid())) == {*before, launcher.reaper.pid}
            assert launcher.reaper.groups == {}


async def test_any_number_of_waiters():
    async with launcher_of() as launcher:
        process = await launcher.spawn(child("import sys; sys.exit(7)"))
        codes = []

        async def waiter():
            codes.append(await process.wait())

        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(waiter)
        assert codes == [7] * 5
        process.terminate()  # harmless now
        assert process.returncode == 7


async def test_terminate_then_destroy(caplog):
    async with launcher_of() as launcher:
        process = await launcher.spawn(child(FOREVER))
        await up(process, caplog)
        process.terminate()
        assert await process.wait() == -signal.SIGTERM
        assert await process.destroy(2) == ()
        assert launcher.processes == frozenset()


async def test_a_child_that_ignores_sigterm(caplog):
    program = (
        "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True)\nwhile 1: signal.pause()"
    )
    async with launcher_of() as launcher:
        process = await launcher.spawn(child(program))
        await up(process, caplog)
        process.terminate()
        assert await process.destroy(2) == ()
        assert await process.wait() == -signal.SIGKILL


async def test_a_stopped_child(caplog):
    async with launcher_of() as launcher:
        process = await launcher.spawn(child(FOREVER))
        await up(process, caplog)
        os.killpg(process.pid, signal.SIGSTOP)
        assert await process.destroy(2) == ()


async def test_destroy_may_be_called_by_many_and_again(caplog):
    async with launcher_of() as launcher:
        process = await launcher.spawn(child(FOREVER))
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(process.destroy, 2)
        assert await process.destroy(2) == ()


async def test_destroy_takes_the_grandchildren_of_a_dead_leader(watch):
    program = "import os; pid = os.fork()\nif pid: print(pid, flush=True)\nelse:\n import signal; signal.pause()"
    async with launcher_of() as launcher:
        process = await launcher.spawn(child(program))
        assert await process.wait() == 0
        assert await process.destroy(2) == ()
        (pid,) = process.tail()
        assert ended(watch, int(pid))


async def test_a_stranger_that_holds_the_pipe_does_not_hold_us(tmp_path, watch):
    """Nothing tells whose it is: its own session, its parent gone, its environment empty. It is not ours to kill."""
    program = """
import os, signal
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execve("/bin/sh", ["sh", "-c", "echo $$; read x < fifo"], {})
    os._exit(0)
os.wait()
"""
    os.mkfifo(tmp_path / "fifo")
    launch = child(f"import os; os.chdir({str(tmp_path)!r})" + program)
    async with launcher_of() as launcher:
        process = await launcher.spawn(launch)
        assert await process.wait() == 0
        started = trio.current_time()
        assert await process.destroy(2) == ()
        assert trio.current_time() - started < 2
        (pid,) = process.tail()
        assert not ended(watch, int(pid))
    (tmp_path / "fifo").write_text("go\n")


async def test_cancelled_while_it_destroys_it_finishes_first(caplog):
    async with launcher_of() as launcher:
        process = await launcher.spawn(child(FOREVER))
        await up(process, caplog)
        with trio.CancelScope() as scope:
            scope.cancel()
            await process.destroy(2)
        assert process.returncode == -signal.SIGKILL


async def test_output_flows_while_everything_around_is_cancelled(caplog):
    """An engine that says much while it stops must not block on a full pipe (64 KiB)."""
    program = """
import signal, sys
def stop(*_):
    for i in range(20_000): print("stopping", i)
    print("done", file=sys.stderr); sys.exit(0)
signal.signal(signal.SIGTERM, stop)
print("up", flush=True)
signal.pause()
"""
    caplog.set_level(logging.WARNING, logger="omni_actors.reaper")
    with trio.CancelScope() as around:
        async with launcher_of() as launcher:
            process = await launcher.spawn(child(program))
            await up(process, caplog)
            around.cancel()
            process.terminate()
            with bounded_shield(trio.current_time() + 10) as shield:
                assert await process.wait() == 0
                assert process.tail() == ("done",)
                await process.destroy(2)
    assert not shield.cancelled_caught, "it blocked on its pipe"


async def test_leaving_the_block_with_an_error_destroys_and_keeps_the_error(watch, caplog):
    seen = []

    async def body():
        async with launcher_of() as launcher:
            process = await launcher.spawn(child(FOREVER))
            seen.append(watch(process.pid, launcher.reaper.pid))
            raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        await body()
    assert seen[0].alive_after(0) == set()


async def test_environment_and_scratch(tmp_path):
    run_folder = tmp_path / "omni-run"
    run_folder.mkdir(mode=0o700)
    program = f"""
import os, stat, sys, tempfile
folder = os.environ["{SCRATCH}"]
open(folder + "/socket", "w").close()
tempfile.mkstemp()
print(oct(os.stat(folder).st_mode & 0o777), os.environ["CUDA_VISIBLE_DEVICES"], os.environ["HOME"], file=sys.stderr)
"""
    async with launcher_of(str(run_folder)) as launcher:
        process = await launcher.spawn(child(program, env={"HOME": "elsewhere", **device_env("0,1")}))
        await process.wait()
        await process.destroy(2)
        assert process.tail() == ("0o700 0,1 elsewhere",)
        assert list(run_folder.iterdir()) == []
    assert run_folder.exists(), "a clean end leaves the folder to its owner"


async def test_the_reaper_is_replaced_and_knows_the_groups(watch, caplog):
    async with launcher_of() as launcher:
        process = await launcher.spawn(child(FOREVER))
        first = launcher.reaper.pid
        seen = watch(first)
        os.kill(first, signal.SIGKILL)
        assert seen.alive_after(5) == set()
        # The next registration finds it dead at the latest, and waits for its successor.
        other = await launcher.spawn(child(FOREVER))
        assert launcher.reaper.pid not in (first, None)
        assert {process.pid, other.pid} <= launcher.reaper.groups.keys()
        assert await process.destroy(2) == await other.destroy(2) == ()


def ended(watch, pid: int) -> bool:
    """A zombie that is not ours to reap has ended too."""
    try:
        return watch(pid).alive_after(0) == set()
    except ProcessLookupError:
        return True


async def test_nothing_is_left_after_a_cycle(caplog):
    """Descriptors and threads are the same after the second to the fifth cycle.

    Threads that were there before do not count: those of earlier tests may end meanwhile.
    """
    seen, before, threads = [], children(os.getpid()), set(threading.enumerate())
    for _ in range(5):
        async with launcher_of() as launcher:
            processes = [await launcher.spawn(child(FOREVER)) for _ in range(3)]
            processes[0].terminate()
            await processes[0].wait()
            await processes[0].destroy(2)
        gc.collect()
        seen.append((sorted(os.listdir("/proc/self/fd")), len(set(threading.enumerate()) - threads)))
        assert children(os.getpid()) == before
    assert len(set(map(repr, seen[1:]))) == 1
