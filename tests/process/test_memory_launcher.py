"""The in-memory launcher ends "processes" as the operating system ends real ones."""

from __future__ import annotations

import signal

import msgspec
import pytest
import trio

from omni_actors._errors import StartupFailed
from omni_actors.stages._interface import Launch
from omni_actors.testing._launcher import Exit, MemoryLauncher, current_process, open_memory_launcher
from omni_actors.transport import MemoryTransport


def launch(stage: str = "thinker", argv=("python", "-m", "fake"), **payload) -> Launch:
    return Launch(stage=stage, replica=0, generation=1, argv=argv, env={}, payload=msgspec.msgpack.encode(payload))


async def spawn(nursery, engine, transport=None, **payload):
    return await MemoryLauncher(nursery, {"fake": engine}, transport or MemoryTransport()).spawn(launch(**payload))


async def forever(launch, payload, transport):
    await trio.sleep_forever()


@pytest.mark.parametrize("code", [0, 3, -9])
async def test_an_engine_chooses_its_end(nursery, code):
    async def engine(launch, payload, transport):
        if payload["code"]:
            raise Exit(payload["code"])

    process = await spawn(nursery, engine, code=code)
    assert await process.wait() == code


async def test_an_exit_deep_inside_a_nursery_counts(nursery):
    async def engine(launch, payload, transport):
        async with trio.open_nursery() as inner:
            inner.start_soon(trio.sleep_forever)
            raise Exit(5)

    assert await (await spawn(nursery, engine)).wait() == 5


async def test_an_exception_is_exit_code_1_and_its_last_words(nursery):
    async def engine(launch, payload, transport):
        current_process().say("loading")
        raise ValueError("no such model")

    process = await spawn(nursery, engine)
    assert await process.wait() == 1
    assert process.tail()[0] == "loading"
    assert process.tail()[-1] == "ValueError: no such model"


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM])
async def test_a_signal_ends_it(nursery, signum):
    process = await spawn(nursery, forever)
    process.kill(signum)
    assert await process.wait() == -signum
    process.terminate()  # harmless now
    assert process.returncode == -signum


async def test_sigterm_can_be_handled(nursery):
    async def engine(launch, payload, transport):
        def stop():
            raise Exit(0)

        current_process().on_terminate(stop)
        await trio.sleep_forever()

    process = await spawn(nursery, engine)
    await trio.testing.wait_all_tasks_blocked()
    process.terminate()
    assert await process.wait() == 0


async def test_a_stopped_process_says_nothing_hears_no_sigterm_and_goes_on_later(nursery):
    transport = MemoryTransport()
    socket = transport.pull("out")

    async def engine(launch, payload, transport):
        out = transport.push("mem://out")
        for word in (b"one", b"two"):
            out.send([word])
            await trio.testing.wait_all_tasks_blocked()
        await trio.sleep_forever()

    process = await spawn(nursery, engine, transport)
    assert [bytes(message[0]) for message in await socket.receive()] == [b"one"]
    process.kill(signal.SIGSTOP)
    process.terminate()
    await trio.testing.wait_all_tasks_blocked()
    assert (socket.drain(), process.returncode) == ([], None)
    process.kill(signal.SIGCONT)
    assert await process.wait() == -signal.SIGTERM
    assert [bytes(message[0]) for message in socket.drain()] == [b"two"]


async def test_what_a_stopped_process_had_not_sent_is_lost_with_it(nursery):
    transport = MemoryTransport()
    socket = transport.pull("out")

    async def engine(launch, payload, transport):
        out = transport.push("mem://out")
        out.send([b"one"])
        await trio.testing.wait_all_tasks_blocked()
        out.send([b"two"])
        await trio.sleep_forever()

    process = await spawn(nursery, engine, transport)
    await socket.receive()
    process.kill(signal.SIGSTOP)
    await trio.testing.wait_all_tasks_blocked()
    assert await process.destroy(2) == ()
    assert process.returncode == -signal.SIGKILL
    assert socket.drain() == []


async def test_processes_outlive_the_cancellation_of_the_body_but_not_the_body():
    async with open_memory_launcher({"thinker": forever}, MemoryTransport()) as launcher:
        process = await launcher.spawn(launch(argv=("whatever",)))
        with trio.CancelScope() as scope:
            scope.cancel()
            await trio.lowlevel.checkpoint()
        assert launcher.processes == [process]
        assert launcher.find("thinker") is process
    assert process.returncode == -signal.SIGKILL


async def test_a_program_that_does_not_exist(nursery):
    with pytest.raises(StartupFailed, match="thinker/0: cannot start python: no such program"):
        await MemoryLauncher(nursery, {}, MemoryTransport()).spawn(launch())
