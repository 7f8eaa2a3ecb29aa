"""Our side of ``startup`` and ``shutdown``: a program that opens a pipeline and closes it again, as it is told.

Run in a process of its own. Each line of stdin is one command: ``open`` (answered by ``ready {json}``), ``close``
(``closed {json}``), ``count`` (``counted {json}``: its descriptors and threads). The end of stdin ends it. The pipeline
is opened through ``open_omni`` and nothing else.
"""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any, TextIO

import trio

from omni_actors.cli.benches._work import own_channel
from omni_actors.runtime import OmniRuntime, open_omni

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from omni_actors.stages import StageEvent

__all__: list[str] = []


async def main(pipeline: str, channel: TextIO) -> None:
    """Obey until stdin ends; cancelled by nobody, killed by some."""

    def say(word: str, value: dict[str, Any]) -> None:
        channel.write(f"{word} {json.dumps(value)}\n")

    async with trio.lowlevel.FdStream(os.dup(0)) as stdin:
        commands = _commands(stdin)
        async for command in commands:
            if command == "open":
                await _cycle(pipeline, commands, say)
            elif command == "count":
                say("counted", _count())


async def _cycle(pipeline: str, commands: AsyncIterator[str], say: Callable[[str, dict[str, Any]], None]) -> None:
    began_at = trio.current_time()
    stages: dict[str, float] = {}

    def took(event: StageEvent) -> None:
        if event.kind == "ready":
            stages[event.stage] = trio.current_time() - began_at

    async with open_omni(pipeline, on_event=took) as omni:
        say("ready", {"pids": dict(omni.pids()), "stages": stages, "seconds": trio.current_time() - began_at})
        await anext(commands)
    say("closed", _report(omni))


def _report(omni: OmniRuntime) -> dict[str, Any]:
    report = omni.shutdown_report
    return {
        "stopped": report.stopped,
        "terminated": report.terminated,
        "killed": report.killed,
        "unreaped": report.unreaped,
    }


def _count() -> dict[str, Any]:
    fds = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            fds[name] = os.readlink(f"/proc/self/fd/{name}")
        except OSError:  # the descriptor of this listing
            continue
    return {"fds": fds, "threads": len(os.listdir("/proc/self/task"))}


async def _commands(stdin: trio.lowlevel.FdStream) -> AsyncIterator[str]:
    rest = b""
    while data := await stdin.receive_some(4096):
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            yield line.decode()


if __name__ == "__main__":
    trio.run(main, sys.argv[1], own_channel())
