"""Ours and the reference, in pairs: two processes on the same engines, taking turns in random order.

Owns both processes and the folder in which the reference's sockets lie. Every pair runs the same prompts and compares
what was said.
"""

from __future__ import annotations

import importlib.util
import os
import random
import sys
import tempfile
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

import attrs
import msgspec
import trio

from omni_actors._errors import OmniError
from omni_actors.cli._exit import Missing
from omni_actors.cli.benches._work import Job, Round
from omni_actors.stages import bounded_shield

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

__all__ = ["Measured", "Pair", "measure", "open_pair", "require_engines"]

_START_S = 300.0
_ROUND_S = 300.0
_STOP_S = 60.0
_SAID_BYTES = 64 << 20

_T = TypeVar("_T")


def require_engines() -> None:
    """Raises Missing without vLLM or without uvloop, on which the reference runs."""
    for module, how in (("vllm", "install omni-actors[vllm] or omni-actors[cpu]"), ("uvloop", "pip install uvloop")):
        if importlib.util.find_spec(module) is None:
            raise Missing(f"this benchmark needs {module} ({how})")


@attrs.frozen
class Measured:
    """All rounds at one concurrency, pair by pair."""

    ours: list[Round] = attrs.field(factory=list)
    reference: list[Round] = attrs.field(factory=list)

    def values(self, of: Callable[[Round], float]) -> tuple[list[float], list[float]]:
        """One number per round, ours and the reference's."""
        return [of(each) for each in self.ours], [of(each) for each in self.reference]

    @property
    def different(self) -> int:
        """How many answers were not the same for both."""
        return sum(
            (mine.text, mine.token_ids) != (other.text, other.token_ids)
            for ours, reference in zip(self.ours, self.reference, strict=True)
            for mine, other in zip(ours.answers, reference.answers, strict=True)
        )


class _FrontEnd:
    """One of the two programs: a job in, a round out."""

    def __init__(self, process: trio.Process, errors: Path) -> None:
        self._process, self._errors = process, errors
        self._said = bytearray()

    async def ready(self) -> None:
        """Wait until it can take a job. Raises OmniError with its own last words, ``trio.TooSlowError``."""
        with trio.fail_after(_START_S):
            msgspec.json.decode(await self._line())

    async def run(self, job: Job) -> Round:
        """Raises like ``ready``."""
        assert self._process.stdin is not None
        with trio.fail_after(_ROUND_S):
            await self._process.stdin.send_all(msgspec.json.encode(job) + b"\n")
            return msgspec.json.decode(await self._line(), type=Round)

    async def _line(self) -> bytes:
        assert self._process.stdout is not None
        while (end := self._said.find(b"\n")) < 0:
            data = await self._process.stdout.receive_some(1 << 20)
            if not data or len(self._said) > _SAID_BYTES:
                tail = "\n".join(self._errors.read_text(errors="replace").splitlines()[-15:])
                raise OmniError(f"a front-end of the benchmark ended: {tail}")
            self._said += data
        line = bytes(self._said[:end])
        del self._said[: end + 1]
        return line

    async def stop(self) -> None:
        """Close its stdin and wait for its end; what does not end by itself is killed. Shielded, at most a minute."""
        assert self._process.stdin is not None
        with bounded_shield(trio.current_time() + _STOP_S):
            await self._process.stdin.aclose()
            await self._process.wait()
        if self._process.returncode is None:
            self._process.kill()


class Side(Protocol):
    """What is measured: a job in, a round out."""

    async def run(self, job: Job) -> Round:
        """Raises OmniError, ``trio.TooSlowError``."""


@attrs.frozen
class Pair:
    """Both sides, ready."""

    ours: Side
    reference: Side

    async def run(self, job: Job, into: Measured, *, ours_first: bool) -> None:
        """One pair of rounds."""
        turns = [(self.ours, into.ours), (self.reference, into.reference)]
        for front_end, rounds in turns if ours_first else reversed(turns):
            rounds.append(await front_end.run(job))


OURS = "omni_actors.cli.benches._ours"
REFERENCE = "omni_actors.cli.benches._reference"


@asynccontextmanager
async def open_pair(bench: str, *, ours: str = OURS) -> AsyncIterator[Pair]:
    """Start the engines and both front-ends; ``ours`` is the module that is run for ours, and starts the engines.

    Raises OmniError, ``trio.TooSlowError``; leaves nothing behind.
    """
    with tempfile.TemporaryDirectory(prefix="omni-bench-") as name:
        folder = Path(name)
        mine, other = [await _spawn(program, bench, folder) for program in (ours, REFERENCE)]
        try:
            for each in (mine, other):
                await each.ready()
            yield Pair(mine, other)
        finally:
            await other.stop()
            await mine.stop()


async def _spawn(program: str, bench: str, folder: Path) -> _FrontEnd:
    # Both get the same environment: what vLLM reads of it on the host's side must not differ.
    environment = {"VLLM_LOGGING_LEVEL": "ERROR", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    errors = folder / f"{program.rpartition('.')[2]}.err"
    with errors.open("wb") as stderr:
        process = await trio.lowlevel.open_process(
            [sys.executable, "-m", program, bench, str(folder)],
            stdin=-1,
            stdout=-1,
            stderr=stderr,
            env={**os.environ, **environment},
            process_group=0,
        )
    return _FrontEnd(process, errors)


async def measure(
    pair: Pair, loads: Mapping[int, int], pairs: int, progress: Callable[[str], None]
) -> dict[int, Measured]:
    """``loads``: concurrency → requests per round. Raises OmniError if the two did not say the same."""
    order, found = random.Random(0), {concurrent: Measured() for concurrent in loads}
    for concurrent in loads:
        await pair.run(Job(concurrent, 2 * concurrent + 8), Measured(), ours_first=True)
    for number in range(1, pairs + 1):
        for concurrent, requests in loads.items():
            job = Job(concurrent, requests, first=number)
            await pair.run(job, found[concurrent], ours_first=order.random() < 0.5)
        progress(f"pair {number} of {pairs}: {_speeds(found)}")
    for concurrent, measured in found.items():
        if measured.different:
            raise OmniError(f"{measured.different} answers differ from the reference's at {concurrent} concurrent")
    return found


def _speeds(found: Mapping[int, Measured]) -> str:
    return ", ".join(
        f"{len(m.ours[-1].answers) / m.ours[-1].wall_s:.0f}/{len(m.reference[-1].answers) / m.reference[-1].wall_s:.0f}"
        f" req/s at {concurrent}"
        for concurrent, m in found.items()
    )
