"""``bench shutdown``: how fast three engines stop, and that nothing of them is left; also when their host is killed.

Four measurements. Pairs of a stop against the same engines bare, stopped together by a script. What a stop leaves:
processes, files, shared memory. Three openings in one process: descriptors and threads after the first against those
after the others. And the host killed with SIGKILL, with all engines running and with one of them stopped (SIGSTOP).
"""

from __future__ import annotations

import os
import signal
import statistics
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import trio

from omni_actors.cli._bench import BenchResult, Bound
from omni_actors.cli._demo import PIPELINE, require

from ._cycle import READY_S, Cycle, Host, open_host, pairs
from ._proc import Watched, descendants, is_tracker, own_shm, run_folders, shm_names, shm_strays
from ._ratio import few_pairs_note, pair_ratio

if TYPE_CHECKING:
    from collections.abc import Sequence

    from omni_actors.cli._bench import BenchOptions

__all__ = ["Death", "Leftovers", "death", "openings", "run", "summary"]

_OPENINGS = 3
_CLOSED_S = 60.0
_THREADS_S = 15.0  # trio keeps an idle worker thread for ten seconds
_GONE_S, _CLEAN_S = 10.0, 20.0
_LOOK_S = 0.02


@attrs.frozen(kw_only=True)
class Leftovers:
    """What was still there after the last of several openings in one process, by name.

    ``strays``: new names in /dev/shm that nobody uses; of ours, or of another program that ended meanwhile.
    """

    processes: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    shm: tuple[str, ...] = ()
    strays: tuple[str, ...] = ()
    fds: tuple[str, ...] = ()
    threads: int = 0


@attrs.frozen(kw_only=True)
class Death:
    """Seconds after the host's SIGKILL until engines and workers were gone, and until nothing was left at all."""

    gone_s: float
    clean_s: float
    stopped_engine: bool


async def run(options: BenchOptions) -> BenchResult:
    """Takes ``options.pairs`` pairs of starts and stops, and five starts more. Raises Missing."""
    require()
    options.progress(f"{_OPENINGS} openings in one process: what is left")
    left = await openings()
    deaths = []
    for stopped_engine in (False, True):
        options.progress(f"the host is killed{', with an engine stopped' * stopped_engine}")
        deaths.append(await death(stopped_engine=stopped_engine))
    return summary(await pairs(options), left, deaths)


# ---------------------------------------------------------------------- what a normal end leaves


async def openings(pipeline: str = PIPELINE, threads_s: float = _THREADS_S) -> Leftovers:
    """The first complete opening is the baseline: what Python and vLLM make once stays."""
    shm = shm_names()
    async with open_host("ours", pipeline) as host:
        await host.hear("ready", READY_S)
        baseline: dict[str, Any] = {}
        below: set[int] = set()
        own: set[str] = set()
        folders: set[str] = set()
        for number in range(_OPENINGS):
            if number:
                await host.tell("open")
                await host.hear("ready", READY_S)
            below |= descendants(host.pid)
            own |= own_shm(below)
            folders |= run_folders(host.pid)
            await host.tell("close")
            await host.hear("closed", _CLOSED_S)
            counted = await _settled(host, baseline.get("threads"), threads_s)
            baseline = baseline or counted
        left = descendants(host.pid)
        return Leftovers(
            processes=tuple(str(pid) for pid in left),
            files=tuple(sorted(filter(os.path.exists, folders))),
            shm=tuple(sorted(own & shm_names())),
            strays=tuple(sorted(shm_strays(shm, own))),
            fds=_more(baseline["fds"], counted["fds"]),
            threads=max(0, counted["threads"] - baseline["threads"]),
        )


async def _settled(host: Host, threads: int | None, limit_s: float) -> dict[str, Any]:
    """The host's count once its idle worker threads have had the time to end; at once if it has no more than before."""
    deadline = trio.current_time() + limit_s
    while True:
        await host.tell("count")
        counted = await host.hear("counted", _CLOSED_S)
        if trio.current_time() >= deadline or (threads is not None and counted["threads"] <= threads):
            return counted
        await trio.sleep(0.5)


def _more(before: dict[str, str], after: dict[str, str]) -> tuple[str, ...]:
    """The descriptors by which ``after`` outnumbers ``before``: what they lead to."""
    names = sorted(f"{number} -> {target}" for number, target in after.items() if number not in before)
    return tuple(names[: max(0, len(after) - len(before))])


# ---------------------------------------------------------------------- what the host's death leaves


async def death(pipeline: str = PIPELINE, *, stopped_engine: bool) -> Death:
    """Seconds from the SIGKILL of a host with all engines ready."""
    async with open_host("ours", pipeline) as host:
        ready = await host.hear("ready", READY_S)
        below = descendants(host.pid)
        own, folders = own_shm(below), run_folders(host.pid)
        engines = Watched(pid for pid in below if not is_tracker(pid) and not _is_reaper(pid))
        everything = Watched(below)
        try:
            if stopped_engine:
                os.kill(next(iter(ready["pids"].values())), signal.SIGSTOP)
            killed_at = trio.current_time()
            await host.kill()
            await engines.gone(_GONE_S)
            gone_s = trio.current_time() - killed_at
            await everything.gone(_CLEAN_S)
            await _clean(own, folders, killed_at + _CLEAN_S)
            return Death(gone_s=gone_s, clean_s=trio.current_time() - killed_at, stopped_engine=stopped_engine)
        finally:
            engines.close()
            everything.close()


def _is_reaper(pid: int) -> bool:
    return b"reaper.py" in Path("/proc", str(pid), "cmdline").read_bytes()


async def _clean(own: set[str], folders: set[str], deadline: float) -> None:
    """Until neither its run folders nor its shared memory exist. The kernel announces neither: look often."""
    while trio.current_time() < deadline and (  # noqa: ASYNC110
        any(map(os.path.exists, folders)) or own & shm_names()
    ):
        await trio.sleep(_LOOK_S)


# ---------------------------------------------------------------------- the result


def summary(taken: Sequence[tuple[Cycle, Cycle]], left: Leftovers, deaths: Sequence[Death]) -> BenchResult:
    """The metrics of pairs (ours, reference), of what was left, and of the host's deaths."""
    samples: dict[str, list[float]] = {
        "shutdown_s": [mine.stop_s for mine, _ in taken],
        "reference_s": [other.stop_s for _, other in taken],
        "shutdown_ratio": [mine.stop_s / other.stop_s for mine, other in taken],
        "killed": [float(len(mine.closed["killed"])) for mine, _ in taken],
        "host_sigkill_gone_s": [death.gone_s for death in deaths],
        "host_sigkill_clean_s": [death.clean_s for death in deaths],
    }
    metrics = {
        **pair_ratio(samples["shutdown_s"], samples["reference_s"]).metrics("shutdown_ratio"),
        "shutdown_s": statistics.median(samples["shutdown_s"]),
        "reference_s": statistics.median(samples["reference_s"]),
        "killed": sum(samples["killed"]),
        **{f"left_{name}": float(count) for name, count in _counts(left).items()},
        "host_sigkill_gone_s": max(samples["host_sigkill_gone_s"]),
        "host_sigkill_clean_s": max(samples["host_sigkill_clean_s"]),
    }
    nothing = ("killed", *(f"left_{name}" for name in _counts(left)))
    bounds = {"shutdown_ratio": Bound(high=1.1), **{name: Bound(high=0) for name in nothing}}
    bounds |= {"host_sigkill_gone_s": Bound(high=1), "host_sigkill_clean_s": Bound(high=5)}
    return BenchResult(metrics=metrics, samples=samples, notes=_notes(taken, left), bounds=bounds)


def _counts(left: Leftovers) -> dict[str, int]:
    names = ("processes", "files", "shm", "fds")
    return {name: len(getattr(left, name)) for name in names} | {"threads": left.threads}


def _notes(taken: Sequence[tuple[Cycle, Cycle]], left: Leftovers) -> tuple[str, ...]:
    found = [f"left: {name}" for kind in ("processes", "files", "shm", "fds") for name in getattr(left, kind)]
    found += [f"in /dev/shm, of an unknown owner: {name}" for name in left.strays]
    return (
        "from the command until the host said closed and every process below it had ended; the reference is vLLM's own "
        "CoreEngineProcManager.shutdown with its default grace, for both engines at once, and SIGTERM for the vocoder",
        f"left_*: after {_OPENINGS} openings in one process; descriptors and threads against those after the first",
        "host_sigkill_*: the longer of two deaths of the host, one of them with an engine stopped by SIGSTOP",
        *found,
        *few_pairs_note(len(taken)),
    )
