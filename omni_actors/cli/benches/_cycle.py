"""One start and one stop of three engines, ours or bare, timed from outside by the same rule for both.

A start counts from the creation of the host's process to its word ``ready``; a stop from the command to stop until the
host has said ``closed`` and every process below it has ended. The host is a fresh process each time, its engines the
demo's: the same kinds, arguments and environment on both sides.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal

import attrs
import trio

from omni_actors._errors import OmniError
from omni_actors.cli._demo import PIPELINE
from omni_actors.config import resolve
from omni_actors.stages import bounded_shield
from omni_actors.stages.omni import DIFFUSION, KIND

from ._proc import Watched, descendants

if TYPE_CHECKING:
    from omni_actors.cli._bench import BenchOptions

__all__ = ["READY_S", "Cycle", "Host", "Side", "open_host", "pairs", "take"]

Side = Literal["ours", "reference"]

_HERE = Path(__file__).parent
READY_S = 300.0
_CLOSED_S = 60.0
_END_S = 30.0
_HOSTED = {"generation": KIND, "diffusion": DIFFUSION}
"""The engines that load a class."""


@attrs.frozen(kw_only=True)
class Cycle:
    """Seconds of one start and one stop; ``ready`` and ``closed`` are what the host said with these words."""

    side: Side
    start_s: float
    stop_s: float
    ready: Mapping[str, Any]
    closed: Mapping[str, Any]


class Host:
    """A host process under our command. ``began_at``: when it was created (``trio.current_time()``)."""

    def __init__(self, process: trio.Process, errors: IO[bytes], began_at: float) -> None:
        self.process, self.began_at = process, began_at
        self._errors, self._rest = errors, b""

    @property
    def pid(self) -> int:
        """Its process."""
        return self.process.pid

    async def tell(self, command: str) -> None:
        """One line to its stdin."""
        assert self.process.stdin is not None
        await self.process.stdin.send_all(f"{command}\n".encode())

    async def hear(self, word: str, limit_s: float) -> dict[str, Any]:
        """The JSON after the next line that begins with ``word``. Raises OmniError, with its last words, without it."""
        with trio.move_on_after(limit_s):
            while (line := await self._line()) is not None:
                said, _, value = line.partition(" ")
                if said == word:
                    heard: dict[str, Any] = json.loads(value)
                    return heard
        raise OmniError(f"the benchmark's host did not say {word!r}: {self._last_words()}")

    async def _line(self) -> str | None:
        assert self.process.stdout is not None
        while b"\n" not in self._rest:
            if not (data := await self.process.stdout.receive_some(65536)):
                return None
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        return line.decode(errors="replace")

    def _last_words(self) -> str:
        self._errors.seek(max(0, self._errors.seek(0, os.SEEK_END) - 2000))
        return self._errors.read().decode(errors="replace").strip() or "it wrote nothing to stderr"

    async def kill(self) -> None:
        """SIGKILL and reap."""
        self.process.kill()
        await self.process.wait()


@asynccontextmanager
async def open_host(side: Side, pipeline: str = PIPELINE) -> AsyncIterator[Host]:
    """A host for the length of the block; what still lives of it at the end is killed."""
    with tempfile.TemporaryFile() as errors, tempfile.TemporaryDirectory(prefix="omni-bench-") as folder:
        began_at = trio.current_time()
        process = await trio.lowlevel.open_process(
            [sys.executable, "-P", *_program(side, pipeline)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            env={**os.environ, **_environment(side, folder)},
        )
        host = Host(process, errors, began_at)
        try:
            await host.tell("open" if side == "ours" else json.dumps(_bare_job()))
            yield host
        finally:
            with bounded_shield(trio.current_time() + _END_S):
                await _end(host)


async def _end(host: Host) -> None:
    below = descendants(host.pid)
    assert host.process.stdin is not None
    await host.process.stdin.aclose()
    with trio.move_on_after(_END_S / 3):
        await host.process.wait()
        return
    for pid in (host.pid, *below):
        with suppress(ProcessLookupError):
            os.kill(pid, 9)
    await host.process.wait()


def _program(side: Side, pipeline: str) -> list[str]:
    return [str(_HERE / "_opened.py"), pipeline] if side == "ours" else [str(_HERE / "_bare.py")]


def _environment(side: Side, folder: str) -> dict[str, str]:
    """Ours gives each engine its own; the script's engines inherit the script's."""
    return {} if side == "ours" else {**_engine_environment(), "VLLM_RPC_BASE_PATH": folder}


def _engine_environment() -> dict[str, str]:
    from omni_actors.stages.vllm import KIND

    stage = next(stage for stage in resolve(PIPELINE).spec.stages if stage.engine == "vllm")
    return dict(KIND.launch(stage, {"handshake": ""}, replica=0, generation=1).env)


def _bare_job() -> dict[str, Any]:
    stages = resolve(PIPELINE).spec.stages
    hosted = [_HOSTED[stage.engine].payload(stage) for stage in stages if stage.engine in _HOSTED]
    return {
        "llms": [{"model": stage.model, **stage.engine_args} for stage in stages if stage.engine == "vllm"],
        "generators": [{"path": payload["class"], "args": payload["args"]} for payload in hosted],
    }


async def take(side: Side) -> Cycle:
    """One start and one stop."""
    async with open_host(side) as host:
        ready = await host.hear("ready", READY_S)
        start_s = trio.current_time() - host.began_at
        below = Watched(descendants(host.pid))
        try:
            began_at = trio.current_time()
            await host.tell("close")
            closed = await host.hear("closed", _CLOSED_S)
            await below.gone(_CLOSED_S)
            stop_s = trio.current_time() - began_at
        finally:
            below.close()
    return Cycle(side=side, start_s=start_s, stop_s=stop_s, ready=ready, closed=closed)


async def pairs(options: BenchOptions) -> list[tuple[Cycle, Cycle]]:
    """``options.pairs`` pairs (ours, reference), the two of a pair in alternating order."""
    taken: list[tuple[Cycle, Cycle]] = []
    for number in range(options.pairs):
        order: tuple[Side, ...] = ("ours", "reference") if number % 2 == 0 else ("reference", "ours")
        made = {side: await take(side) for side in order}
        taken.append((made["ours"], made["reference"]))
        words = " ".join(f"{side} {one.start_s:.1f}/{one.stop_s:.1f}" for side, one in made.items())
        options.progress(f"pair {number + 1} of {options.pairs}, start/stop in s: {words}")
    return taken
