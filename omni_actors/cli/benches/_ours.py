"""Our front-end as a program: ``python -m omni_actors.cli.benches._ours BENCH FOLDER``.

Opens the benchmark's pipeline through the public API, with engines that the reference shares, and runs one round per
``Job`` line on stdin. Ends when stdin does.
"""

from __future__ import annotations

import sys
import time
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import msgspec
import trio

from omni_actors.cli.benches._sharing import shared_world
from omni_actors.cli.benches._work import PARAMS, Answer, Job, own_channel, pipeline, run_round
from omni_actors.runtime import open_omni
from omni_actors.stages._process import ProcessLauncher

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from omni_actors.config import PipelineSpec
    from omni_actors.runtime import OmniRuntime, World

__all__ = ["Host", "main"]


def main() -> None:
    """Run until stdin ends."""
    bench, folder = sys.argv[1:]
    trio.run(_serve, bench, Path(folder), own_channel())


async def _serve(bench: str, folder: Path, channel: TextIO) -> None:
    host = Host(folder)
    async with open_omni(pipeline(bench), world=host.world) as omni:
        sampling = _sampling() if bench == "engine" else None
        channel.write('"ready"\n')
        # Waits without a deadline: the benchmark decides when the next round begins, and closes stdin at the end.
        while line := await trio.to_thread.run_sync(sys.stdin.readline, abandon_on_cancel=True):
            job = msgspec.json.decode(line, type=Job)
            result = await run_round(job, [partial(_one, omni, sampling)] * job.concurrent, host.cpu_s)
            channel.write(msgspec.json.encode(result).decode() + "\n")


class Host:
    """Makes the shared world and keeps its launcher in sight: the reaper's CPU time is ours."""

    def __init__(self, folder: Path, guests: int = 1) -> None:
        self._folder, self._guests = folder, guests
        self._launcher: ProcessLauncher | None = None

    @asynccontextmanager
    async def world(self, spec: PipelineSpec) -> AsyncIterator[World]:
        """For ``open_omni``."""
        async with shared_world(spec, self._folder, self._guests) as place:
            assert isinstance(place.launcher, ProcessLauncher)
            self._launcher = place.launcher
            yield place

    def cpu_s(self) -> float:
        """Process time, in seconds, of this process and of the reaper."""
        assert self._launcher is not None
        reaper = self._launcher.reaper.pid
        assert reaper is not None
        return time.process_time() + time.clock_gettime(_cpu_clock(reaper))


def _cpu_clock(pid: int) -> int:
    """Linux's number for another process's CPU clock (clock_getcpuclockid)."""
    return (~pid << 3) | 2


def _sampling() -> Any:
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    return SamplingParams(**PARAMS, output_kind=RequestOutputKind.DELTA)


async def _one(omni: OmniRuntime, sampling: Any, prompt: str) -> Answer:
    began_at, first_at = time.perf_counter(), 0.0
    pieces: list[str] = []
    tokens: list[int] = []
    async with omni.generate(prompt, sampling) as stream:
        async for output in stream:
            if not first_at:
                first_at = time.perf_counter()
            pieces.append(output.text)
            tokens += output.payload.token_ids  # type: ignore[union-attr]
    return Answer("".join(pieces), tokens, first_at - began_at, time.perf_counter() - began_at)


if __name__ == "__main__":
    main()
