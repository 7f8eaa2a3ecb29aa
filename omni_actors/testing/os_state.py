"""What the operating system shows of a process: its descriptors, threads, children, and what it left in folders.

Read from outside, through /proc and the file system alone: the seam at which I24 (nothing survives) is checked.
"""

from __future__ import annotations

import gc
import os
import select
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["OsState", "Watch", "children", "descendants", "run_folders", "shared_memory"]

_PROC = Path("/proc")
_SHARED_MEMORY = "/dev/shm/"


@attrs.frozen
class OsState:
    """One process's belongings. ``descriptors``: what each is open on; ``threads``: how many, native ones too."""

    descriptors: tuple[str, ...]
    children: tuple[int, ...]
    run_folders: frozenset[str]
    threads: int = attrs.field(eq=False)

    @classmethod
    def now(cls) -> OsState:
        """This process's, after a garbage collection. ``threads`` is not compared: trio keeps idle ones for 10 s."""
        gc.collect()
        return cls(
            tuple(sorted(_descriptors())),
            tuple(children(os.getpid())),
            frozenset(run_folders()),
            len(os.listdir("/proc/self/task")),
        )


def _descriptors() -> list[str]:
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{name}"))
        except FileNotFoundError:
            continue  # the descriptor that listed them
    return [target.split(":[")[0] for target in found]


def children(pid: int) -> list[int]:
    """The direct children of a process, zombies too. Empty for a process that is gone."""
    found: list[int] = []
    for task in (_PROC / str(pid) / "task").glob("*/children"):
        try:
            found += map(int, task.read_text().split())
        except (FileNotFoundError, ProcessLookupError):
            continue  # a thread that has just ended
    return sorted(found)


def descendants(pid: int) -> list[int]:
    """Children, their children, and so on."""
    return [each for child in children(pid) for each in (child, *descendants(child))]


def run_folders() -> set[str]:
    """The names of runtimes' private folders, where this process would make its own."""
    base = os.environ.get("XDG_RUNTIME_DIR", "")
    return {path.name for path in Path(base or tempfile.gettempdir()).glob("omni-*")}


def shared_memory(pids: Iterable[int]) -> set[str]:
    """The names in /dev/shm that these processes have mapped or open. What others hold there is theirs."""
    held: set[str] = set()
    for pid in pids:
        process = _PROC / str(pid)
        try:
            lines = (process / "maps").read_text().splitlines()
            targets = [_target(fd) for fd in (process / "fd").iterdir()]
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended meanwhile
        paths = [line.partition(_SHARED_MEMORY)[2] for line in (*lines, *targets)]
        held.update(path for path in paths if path and not path.endswith("(deleted)"))
    return held


def _target(fd: Path) -> str:
    try:
        return os.readlink(fd)
    except (FileNotFoundError, ProcessLookupError):
        return ""  # just closed: that says nothing of the others


class Watch:
    """Some processes, held by pidfd: a pid that is used again is not taken for its predecessor. ``close`` it.

    Raises ProcessLookupError for one that is gone already.
    """

    def __init__(self, pids: Iterable[int]) -> None:
        self.fds: dict[int, int] = {}
        try:
            for pid in pids:
                self.fds[pid] = os.pidfd_open(pid)
        except BaseException:
            self.close()
            raise

    def alive_after(self, seconds: float) -> set[int]:
        """Who still runs when all have ended or the time is over. A zombie has ended. Blocks."""
        deadline = time.monotonic() + seconds
        return {pid for pid, fd in self.fds.items() if not _ended(fd, deadline)}

    def close(self) -> None:
        """Close the descriptors. Idempotent."""
        while self.fds:
            os.close(self.fds.popitem()[1])


def _ended(pidfd: int, deadline: float) -> bool:
    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    return bool(poller.poll(max(0.0, deadline - time.monotonic()) * 1000))
