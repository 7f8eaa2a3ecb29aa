"""What the operating system shows of a process: its descriptors, threads, children, and what it left in folders.

Read from outside, through /proc and the file system alone: the seam at which I24 (nothing survives) is checked.
"""

from __future__ import annotations

import gc
import os
import tempfile
from pathlib import Path

import attrs

__all__ = ["OsState", "children", "descendants", "run_folders", "shared_memory"]

_PROC = Path("/proc")
_SHARED_MEMORY = Path("/dev/shm")


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


def shared_memory(*, of_nobody: bool = False) -> set[str]:
    """The names in /dev/shm; ``of_nobody``: those that no living process has mapped or open."""
    names = {path.name for path in _SHARED_MEMORY.iterdir()}
    return names - _held() if of_nobody else names


def _held() -> set[str]:
    held = set()
    for process in _PROC.glob("[0-9]*"):
        try:
            paths = [line.partition(f"{_SHARED_MEMORY}/")[2] for line in (process / "maps").read_text().splitlines()]
            paths += [os.readlink(fd).partition(f"{_SHARED_MEMORY}/")[2] for fd in (process / "fd").iterdir()]
        except OSError:
            continue  # it has ended meanwhile, or is not ours to look into
        held |= {path.removesuffix(" (deleted)") for path in paths if path}
    return held
