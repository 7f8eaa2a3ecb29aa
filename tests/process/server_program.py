"""A small server without a socket: two requests run, SIGTERM drains for three seconds, a second one stops now.

Built from the public API alone, as a user would. Says on stdout, in JSON lines, how it goes; exits with 0.
"""

from __future__ import annotations

import json
import signal
import sys
import time

import attrs
import trio

from omni_actors import ShuttingDown, open_omni
from omni_actors.testing.rigs import SHORT, speech

DRAIN_S = 3.0
DEADLINES = attrs.evolve(SHORT, stop_s=1.0, kill_s=0.5)
LONG = {"max_tokens": 1_000_000}


def say(words: str, **more: object) -> None:
    print(json.dumps({"said": words, "at": time.monotonic(), **more}), flush=True)


async def drain_on_sigterm(omni, begun: trio.Event, task_status=trio.TASK_STATUS_IGNORED) -> None:
    with trio.open_signal_receiver(signal.SIGTERM) as signals:
        task_status.started()
        async for _ in signals:
            if begun.is_set():
                omni.request_shutdown(drain_s=0, abort_s=0.2, stop_s=0)
            else:
                omni.request_shutdown(drain_s=DRAIN_S)
                begun.set()


async def serve(omni, name: str, tokens: int) -> None:
    async with omni.generate(name, {"max_tokens": tokens}, modalities=["text"]) as stream:
        async for _ in stream:
            say("it streams", request=name)
            break
        terminal = await stream.result()
    say("it has ended", request=name, kind=terminal.kind.name)


async def refused(omni, begun: trio.Event) -> None:
    await begun.wait()
    try:
        async with omni.generate("too late"):
            raise AssertionError("it was taken")
    except ShuttingDown:
        say("refused")


async def main() -> None:
    thinker = {"tokens": 1_000_000, "token_s": 0.01, "deadlines": DEADLINES}
    stubborn = {"ignore_sigterm": True, "deadlines": DEADLINES}
    async with open_omni(speech(thinker=thinker, talker=stubborn)) as omni, trio.open_nursery() as nursery:
        begun = trio.Event()
        say("pids", pids=dict(omni.pids()))
        await nursery.start(drain_on_sigterm, omni, begun)
        async with trio.open_nursery() as requests:
            requests.start_soon(serve, omni, "short", 100)
            requests.start_soon(serve, omni, "long", LONG["max_tokens"])
            requests.start_soon(refused, omni, begun)
        report = await omni.shutdown()
        say("closed", killed=report.killed, unreaped=report.unreaped)
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    trio.run(main)
    sys.exit(0)
