"""A process that opens and closes runtimes again and again; prints what the operating system shows of it after each.

One line of JSON per cycle: ``name``, ``state`` (see ``OsState``). The last line, ``idle``, comes when trio's idle
worker threads are gone.
"""

from __future__ import annotations

import json
import os
import signal
import time

import attrs
import trio

from omni_actors import StageFailed, StartupFailed, open_omni
from omni_actors.testing.os_state import OsState
from omni_actors.testing.rigs import SHORT, speech

DEADLINES = attrs.evolve(SHORT, backoff_first_s=0.05)
LONG = {"max_tokens": 100_000}
THREAD_CACHE_S = 10.0


async def whole() -> None:
    async with open_omni(speech()) as omni, omni.generate("hello") as stream:
        await stream.result()


async def failed_start() -> None:
    try:
        async with open_omni(speech(talker={"handshake": "exit"})):
            pass
    except StartupFailed:
        return
    raise AssertionError("it started")


async def cancelled_start() -> None:
    with trio.move_on_after(0.5):
        async with open_omni(speech(talker={"start_s": 60})):
            raise AssertionError("it started")


async def killed_and_restarted() -> None:
    spec = speech(thinker={"tokens": 100_000, "params": LONG, "deadlines": DEADLINES})
    async with open_omni(spec) as omni:
        for _ in range(2):
            async with omni.generate("hello") as stream:
                await anext(stream)
                os.kill(omni.pids()["thinker/0"], signal.SIGKILL)
                try:
                    await stream.result()
                except StageFailed:
                    continue
            raise AssertionError("it finished")


async def killed_while_it_stops() -> None:
    spec = speech(talker={"ignore_sigterm": True, "deadlines": DEADLINES})

    def kill(event) -> None:
        if (event.stage, event.kind) == ("talker", "stopping"):
            os.kill(omni.pids()["talker/0"], signal.SIGKILL)

    async with open_omni(spec, on_event=kill) as omni, omni.generate("hello") as stream:
        await stream.result()
    assert omni.shutdown_report.terminated == ("talker/0",), omni.shutdown_report


async def interrupted() -> None:
    with trio.CancelScope() as scope:
        async with open_omni(speech(thinker={"tokens": 100_000, "params": LONG})) as omni:
            async with omni.generate("hello") as stream:
                await anext(stream)
                scope.cancel()
                await stream.result()


def report(name: str) -> OsState:
    state = OsState.now()
    print(
        json.dumps({"name": name, "state": attrs.asdict(attrs.evolve(state, run_folders=sorted(state.run_folders)))}),
        flush=True,
    )
    return state


def idle_threads_gone(expected: int) -> None:
    """trio's thread cache has no switch, and nothing tells when one of its threads has ended."""
    deadline = time.monotonic() + 2 * THREAD_CACHE_S
    while time.monotonic() < deadline and OsState.now().threads > expected:
        time.sleep(0.1)


def main() -> None:
    threads = OsState.now().threads
    for cycle in (
        whole,
        whole,
        failed_start,
        cancelled_start,
        killed_and_restarted,
        killed_while_it_stops,
        interrupted,
        whole,
    ):
        trio.run(cycle)
        report(cycle.__name__)
    idle_threads_gone(threads)
    report("idle")


if __name__ == "__main__":
    main()
