"""Ours and the reference, in pairs: processes on the same engines, taking turns in random order.

Where a floor is asked for it is a third in every pair: the least that a design like ours could cost. Owns the processes
and the folder in which the guests' sockets lie. In every pair all run the same prompts, and what they said is compared.
"""

from __future__ import annotations

import importlib.util
import os
import random
import sys
import tempfile
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import attrs
import msgspec
import trio

from omni_actors._errors import OmniError
from omni_actors.cli._exit import Missing
from omni_actors.cli.benches._work import Job, Round
from omni_actors.stages import bounded_shield

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

__all__ = [
    "FrontEnd", "Measured", "Pair", "measure", "open_pair", "require_engines", "require_modules", "spawn",
]  # fmt: skip

_START_S = 300.0
_ROUND_S = 300.0
_STOP_S = 60.0
_SAID_BYTES = 64 << 20


def require_engines() -> None:
    """Raises Missing without vLLM or without uvloop, on which the reference runs."""
    require_modules({"vllm": "install omni-actors[vllm] or omni-actors[cpu]", "uvloop": "pip install uvloop"})


def require_modules(needed: Mapping[str, str]) -> None:
    """Modules, and how each is had. Raises Missing."""
    for module, how in needed.items():
        if importlib.util.find_spec(module) is None:
            raise Missing(f"this benchmark needs {module} ({how})")


@attrs.frozen
class Measured:
    """All rounds at one concurrency, pair by pair; ``floor`` is empty where none was measured."""

    ours: list[Round] = attrs.field(factory=list)
    reference: list[Round] = attrs.field(factory=list)
    floor: list[Round] = attrs.field(factory=list)

    @property
    def different(self) -> int:
        """How many answers of ours, and of the floor's, were not the reference's."""
        return sum(
            (mine.text, mine.token_ids) != (other.text, other.token_ids)
            for rounds in filter(None, (self.ours, self.floor))
            for each, reference in zip(rounds, self.reference, strict=True)
            for mine, other in zip(each.answers, reference.answers, strict=True)
        )


class FrontEnd:
    """One of the programs: a job in, a round out."""

    def __init__(self, process: trio.Process, errors: Path) -> None:
        self._process, self._errors = process, errors
        self._said = bytearray()

    @property
    def pid(self) -> int:
        """Its process."""
        return self._process.pid

    async def ready(self, limit_s: float = _START_S) -> Any:
        """What it says when it can take a job. Raises OmniError with its own last words, ``trio.TooSlowError``."""
        return await self._heard(limit_s)

    async def end(self, limit_s: float) -> Any:
        """Close its stdin; what it says then. Raises like ``ready``."""
        assert self._process.stdin is not None
        await self._process.stdin.aclose()
        return await self._heard(limit_s)

    async def _heard(self, limit_s: float) -> Any:
        with trio.fail_after(limit_s):
            return msgspec.json.decode(await self._line())

    async def run(self, job: Job) -> Round:
        """Raises like ``ready``."""
        assert self._process.stdin is not None
        with trio.fail_after(_ROUND_S):
            with suppress(trio.BrokenResourceError):  # it has ended: its last words are what is heard of it
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

    async def stop(self, limit_s: float = _STOP_S) -> None:
        """Close its stdin and wait for its end; what does not end by itself is killed. Shielded for ``limit_s``."""
        assert self._process.stdin is not None
        with bounded_shield(trio.current_time() + limit_s):
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
    """Both sides, ready, and the floor if it is measured."""

    ours: Side
    reference: Side
    floor: Side | None = None

    async def run(self, job: Job, into: Measured, order: random.Random) -> None:
        """One round of each, in an order that is drawn."""
        turns = [(self.ours, into.ours), (self.reference, into.reference)]
        if self.floor is not None:
            turns.append((self.floor, into.floor))
        order.shuffle(turns)
        for front_end, rounds in turns:
            rounds.append(await front_end.run(job))


OURS = "omni_actors.cli.benches._ours"
REFERENCE = "omni_actors.cli.benches._reference"


@asynccontextmanager
async def open_pair(bench: str, *, ours: str = OURS, floor: str | None = None) -> AsyncIterator[Pair]:
    """Start the engines and the front-ends; ``ours`` and ``floor`` are modules that are run, ours starts the engines.

    Raises OmniError, ``trio.TooSlowError``; leaves nothing behind.
    """
    with tempfile.TemporaryDirectory(prefix="omni-bench-") as name:
        async with AsyncExitStack() as stack:
            sides = []
            for program in filter(None, (ours, REFERENCE, floor)):
                sides.append(await spawn(program, bench, Path(name)))
                stack.push_async_callback(sides[-1].stop)
            for side in sides:
                await side.ready()
            yield Pair(*sides)


# Both get the same environment: what vLLM reads of it on the host's side must not differ.
_ENVIRONMENT: Mapping[str, str] = {"VLLM_LOGGING_LEVEL": "ERROR", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}


async def spawn(program: str, bench: str, folder: Path, name: str = "", **more: str) -> FrontEnd:
    """A module, run as a program; ``stop`` it. ``more``: of its environment.

    It writes what it complains of to ``folder``, under ``name``, which is the module's if none is given.
    """
    errors = folder / f"{name or program.rpartition('.')[2]}.err"
    with errors.open("wb") as stderr:
        process = await trio.lowlevel.open_process(
            [sys.executable, "-m", program, bench, str(folder)],
            stdin=-1,
            stdout=-1,
            stderr=stderr,
            env={**os.environ, **_ENVIRONMENT, **more},
            process_group=0,
        )
    return FrontEnd(process, errors)


async def measure(
    pair: Pair, loads: Mapping[int, int], pairs: int, progress: Callable[[str], None]
) -> dict[int, Measured]:
    """``loads``: concurrency → requests per round. Raises OmniError if they did not all say the same."""
    order, found = random.Random(0), {concurrent: Measured() for concurrent in loads}
    for concurrent in loads:
        await pair.run(Job(concurrent, 2 * concurrent + 8), Measured(), order)
    for number in range(1, pairs + 1):
        for concurrent, requests in loads.items():
            job = Job(concurrent, requests, first=number)
            await pair.run(job, found[concurrent], order)
        progress(f"pair {number} of {pairs}: {_speeds(found)}")
    for concurrent, measured in found.items():
        if measured.different:
            raise OmniError(f"{measured.different} answers differ from the reference's at {concurrent} concurrent")
    return found


def _speeds(found: Mapping[int, Measured]) -> str:
    def last(rounds: list[Round]) -> str:
        return f"{len(rounds[-1].answers) / rounds[-1].wall_s:.0f}"

    return ", ".join(
        f"{'/'.join(map(last, filter(None, (m.ours, m.reference, m.floor))))} req/s at {concurrent}"
        for concurrent, m in found.items()
    )
