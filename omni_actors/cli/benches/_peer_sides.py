"""The sides of ``bench peer``, started on one workload: ours, and vLLM-Omni with each of its two orchestration loops.

Owns their processes and the folder in which the model and their sockets lie. A side that waits for its turn stays up:
its engines wait without CPU; vLLM-Omni's default loop takes up to 4 % of a core, which the others have to bear.
"""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import msgspec
import trio

from omni_actors._errors import OmniError
from omni_actors.cli.benches._pairs import spawn
from omni_actors.cli.benches._peer_work import START_S, Closed, Ready, environment, prepare
from omni_actors.cli.benches._proc import Watched, available_bytes, cpu_s, descendants, is_tracker
from omni_actors.cli.benches._work import Job

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from omni_actors.cli.benches._pairs import FrontEnd
    from omni_actors.cli.benches._work import Answer, Round

__all__ = [
    "LOOPS",
    "Closing",
    "Fault",
    "PeerSide",
    "Sides",
    "broken",
    "idle_cpu_s",
    "loops_at_once",
    "open_sides",
]

LOOPS = ("default", "event")

_OURS, _PEER = "omni_actors.cli.benches._peer_ours", "omni_actors_asyncio.benches.peer"
_EVENT = {"VLLM_OMNI_EVENT_DRIVEN_ORCH": "1"}
_CLOSE_S, _END_S = 60.0, 20.0
_RETRY_S = 0.5
_STAGE_BYTES = 13 << 27  # an engine, its worker, its share of the front-end: 1.6 GiB


@attrs.frozen(kw_only=True)
class Closing:
    """A shutdown: seconds from the command until all processes below the host had ended, and how many were killed."""

    seconds: float
    killed: int


@attrs.frozen(kw_only=True)
class Fault:
    """A stage was killed or stopped. ``answered_s``: from then until a request was answered rightly; None, if none was.

    ``first``: what the first request after it came to.
    """

    first: str
    answered_s: float | None


class PeerSide:
    """One host process with its engines. See ``Side``; ``stop`` it."""

    def __init__(self, front_end: FrontEnd) -> None:
        self._front_end = front_end
        self._ready = Ready(engines=[], host=[])

    async def ready(self) -> None:
        """Wait until its stages can serve. Raises like ``FrontEnd.ready``."""
        self._ready = msgspec.convert(await self._front_end.ready(START_S), Ready)

    @property
    def engines(self) -> Sequence[int]:
        """Each stage's engine process, as it was started at first."""
        return self._ready.engines

    def cpu_s(self) -> float:
        """CPU seconds of its host-side processes so far."""
        return cpu_s(self._ready.host)

    async def run(self, job: Job) -> Round:
        """Raises OmniError also where a request failed."""
        made = await self._front_end.run(job)
        if failed := [answer.text for answer in made.answers if not answer.token_ids]:
            raise OmniError(f"{len(failed)} of {job.requests} requests failed: {failed[0]}")
        return made

    async def ask(self) -> Answer:
        """One request; without tokens if it failed. Raises like ``FrontEnd.run``."""
        (answer,) = (await self._front_end.run(Job(concurrent=1, requests=1))).answers
        return answer

    async def close(self) -> Closing:
        """Tell it to shut down, and wait. Raises OmniError, ``trio.TooSlowError``."""
        below = Watched(pid for pid in descendants(self._front_end.pid) if not is_tracker(pid))
        began_at = trio.current_time()
        try:
            closed = msgspec.convert(await self._front_end.end(_CLOSE_S), Closed)
            await below.gone(_CLOSE_S)
        finally:
            below.close()
        return Closing(seconds=trio.current_time() - began_at, killed=closed.killed)

    async def stop(self) -> None:
        """Like ``FrontEnd.stop``; a stage that is still stopped by a signal would outlive a host that was killed."""
        await self._front_end.stop(_END_S)
        with suppress(ProcessLookupError):
            os.killpg(self._front_end.pid, signal.SIGKILL)


@attrs.frozen(kw_only=True)
class Sides:
    """Ours, and vLLM-Omni with the loops that were asked for."""

    ours: PeerSide
    peers: Mapping[str, PeerSide]

    @property
    def by_name(self) -> dict[str, PeerSide]:
        """All of them."""
        return {"ours": self.ours, **self.peers}


def loops_at_once(stages: int) -> tuple[tuple[str, ...], ...]:
    """Both loops in the same pairs where three sides find memory; else one after the other, each in its own pairs."""
    enough = available_bytes() > 3 * stages * _STAGE_BYTES
    return (LOOPS,) if enough else (("default",), ("event",))


@asynccontextmanager
async def open_sides(workload: str, loops: Sequence[str]) -> AsyncIterator[Sides]:
    """Start all sides at once. Raises OmniError with a side's last words, ``trio.TooSlowError``; leaves nothing."""
    with tempfile.TemporaryDirectory(prefix="omni-bench-") as name:
        folder = Path(name)
        await prepare(workload, folder)
        surroundings = environment(folder)
        async with AsyncExitStack() as stack:

            async def start(program: str, name: str, **more: str) -> PeerSide:
                side = PeerSide(await spawn(program, workload, folder, name, **surroundings, **more))
                stack.push_async_callback(side.stop)
                return side

            ours = await start(_OURS, "ours")
            peers = {loop: await start(_PEER, loop, **(_EVENT if loop == "event" else {})) for loop in loops}
            sides = Sides(ours=ours, peers=peers)
            for side in sides.by_name.values():
                await side.ready()
            yield sides


async def idle_cpu_s(sides: Sides, period_s: float) -> dict[str, float]:
    """CPU seconds of each side's host during a period without a request."""
    before = {name: side.cpu_s() for name, side in sides.by_name.items()}
    await trio.sleep(period_s)
    return {name: side.cpu_s() - before[name] for name, side in sides.by_name.items()}


async def broken(side: PeerSide, stage: int, how: signal.Signals, limit_s: float) -> Fault:
    """Send a signal to a stage's engine; then one request after the other until one is answered as before.

    A host that ends has not answered, and one that says nothing for ``limit_s`` cannot be asked any more.
    """
    expected = await side.ask()
    os.kill(side.engines[stage], how)
    began_at = trio.current_time()
    first = ""
    try:
        with trio.fail_at(began_at + limit_s):
            while True:
                elapsed_s = trio.current_time() - began_at
                answer = await side.ask()
                first = first or _outcome(answer)
                if answer.token_ids and answer.token_ids == expected.token_ids:
                    return Fault(first=first, answered_s=elapsed_s + answer.total_s)
                await trio.sleep(_RETRY_S)  # as a client does before it tries again
    except trio.TooSlowError:
        return Fault(first=first or f"hangs, {limit_s:.0f} s and on", answered_s=None)
    except OmniError as error:
        return Fault(first=first or str(error), answered_s=None)


def _outcome(answer: Answer) -> str:
    return f"{'answered' if answer.token_ids else answer.text} after {answer.total_s:.1f} s"
