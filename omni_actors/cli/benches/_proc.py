"""What the kernel says about processes: who lives, what CPU they used, what they would leave behind. Linux's /proc."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = [
    "Watched",
    "available_bytes",
    "cpu_s",
    "cpu_wait_s",
    "descendants",
    "is_tracker",
    "own_shm",
    "private_bytes",
    "resident_bytes",
    "run_folders",
    "shm_names",
    "shm_strays",
    "switches",
]

_SHM = Path("/dev/shm")


class Watched:
    """A set of processes by pidfd, so that a reused pid is not taken for one of them. ``close`` it."""

    def __init__(self, pids: Iterable[int]) -> None:
        self._fds: dict[int, int] = {}
        for pid in pids:
            with suppress(ProcessLookupError):
                self._fds[pid] = os.pidfd_open(pid)

    async def gone(self, limit_s: float) -> float:
        """Wait until all have ended, at most ``limit_s``; the seconds that it took (``limit_s``: not all have)."""
        began_at = trio.current_time()
        with trio.move_on_after(limit_s) as scope:
            for fd in self._fds.values():
                await trio.lowlevel.wait_readable(fd)
        return limit_s if scope.cancelled_caught else trio.current_time() - began_at

    def alive(self) -> list[int]:
        """Those that run. A zombie is not: it waits for a parent that is not ours."""
        return [pid for pid, fd in self._fds.items() if _runs(fd)]

    def close(self) -> None:
        """Close the descriptors."""
        while self._fds:
            os.close(self._fds.popitem()[1])


def _runs(fd: int) -> bool:
    import select

    poller = select.poll()
    poller.register(fd, select.POLLIN)
    return not poller.poll(0)


def descendants(pid: int) -> set[int]:
    """Every process below ``pid``."""
    parents = {int(name): _parent(name) for name in os.listdir("/proc") if name.isdigit()}
    found, grown = {pid}, {pid}
    while grown := {child for child, parent in parents.items() if parent in grown} - found:
        found |= grown
    return found - {pid}


def _parent(pid: str) -> int:
    raw = _read(Path("/proc", pid, "stat"))
    return int(raw[raw.rindex(b")") + 2 :].split()[1]) if raw else 0


def is_tracker(pid: int) -> bool:
    """Whether it is multiprocessing's resource tracker, which ends after those that it cleans up for."""
    return b"multiprocessing.resource_tracker" in _read(Path("/proc", str(pid), "cmdline"))


def _read(path: Path) -> bytes:
    with suppress(OSError):
        return path.read_bytes()
    return b""


def cpu_s(pids: Iterable[int]) -> float:
    """CPU seconds that these processes have used, all threads, to the nanosecond. Those that are gone count nothing."""
    total = 0.0
    for pid in pids:
        with suppress(OSError):
            total += time.clock_gettime((~pid << 3) | 2)  # Linux's number of another process's CPU clock
    return total


def cpu_wait_s() -> float:
    """Seconds that this process's main thread was ready to run while others had the CPUs. 0 if the kernel won't say."""
    numbers = _read(Path("/proc/self/schedstat")).split()
    return int(numbers[1]) / 1e9 if len(numbers) == 3 else 0.0


def switches(pids: Iterable[int]) -> int:
    """How often their threads went to sleep of their own accord: once per wake-up. Of living threads only."""
    total = 0
    for pid in pids:
        for status in Path("/proc", str(pid), "task").glob("*/status"):
            lines = _read(status).splitlines()
            total += sum(int(line.split()[1]) for line in lines if line.startswith(b"voluntary_ctxt_switches"))
    return total


def resident_bytes() -> int:
    """What of this process is in RAM, shared pages too."""
    return int(Path("/proc/self/statm").read_bytes().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def available_bytes() -> int:
    """The machine's memory that could be had without swapping."""
    lines = Path("/proc/meminfo").read_bytes().splitlines()
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith(b"MemAvailable:"))


def private_bytes() -> int:
    """What of this process is in RAM and nobody else's: what would be free if it ended."""
    lines = Path("/proc/self/smaps_rollup").read_bytes().splitlines()
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith((b"Private_Clean:", b"Private_Dirty:")))


def run_folders(pid: int) -> set[str]:
    """The run folders that this process owns: it holds the lock in each."""
    found = set()
    for fd in Path("/proc", str(pid), "fd").glob("*"):
        with suppress(OSError):
            lock = fd.readlink()
            if lock.name == "lock" and lock.parent.name.startswith("omni-"):
                found.add(str(lock.parent))
    return found


def shm_names() -> set[str]:
    """What is in /dev/shm now."""
    return set(os.listdir(_SHM)) if _SHM.is_dir() else set()


def own_shm(pids: Iterable[int]) -> set[str]:
    """The names in /dev/shm that these processes have mapped or open, and that still exist."""
    names: set[str] = set()
    for pid in pids:
        lines = _read(Path("/proc", str(pid), "maps")).decode(errors="replace").splitlines()
        names |= {line.partition("/dev/shm/")[2] for line in lines if "/dev/shm/" in line}
        for fd in Path("/proc", str(pid), "fd").glob("*"):
            with suppress(OSError):
                names.add(str(fd.readlink()).partition("/dev/shm/")[2])
    return names & shm_names()


def shm_strays(before: set[str], own: set[str]) -> set[str]:
    """New names there that no living process uses and that were not seen in use: somebody's leftovers, maybe ours."""
    fresh = shm_names() - before - own
    return fresh - own_shm(int(name) for name in os.listdir("/proc") if name.isdigit()) if fresh else set()
