"""What a run of real processes leaves behind: looked for by name, because nothing may be found.

``Belongings`` notes, while a run lives, whatever its processes hold; ``left_behind`` asks the operating system
afterwards. Processes are told from strangers with the same number by their start time.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from omni_actors.engines.reaper import identify
from omni_actors.testing.os_state import OsState, Watch, descendants, shared_memory

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Belongings", "differences", "left_behind"]

_SHARED_MEMORY = Path("/dev/shm")


class Belongings:
    """Every process seen below this one, and every name in /dev/shm that one of them held.

    ``strangers`` are left out: children that the caller has for other reasons.
    """

    def __init__(self, strangers: frozenset[int] = frozenset()) -> None:
        self._strangers = strangers
        self.processes: dict[int, int] = {}
        self.names: set[str] = set()

    def look(self) -> None:
        """Take note of what there is now."""
        pids = self.descendants()
        for pid in pids:
            if (seen := identify(pid)) is not None:
                self.processes[pid] = seen.started
        self.names |= shared_memory(pids)

    def descendants(self) -> list[int]:
        """What is below this process now, without the strangers."""
        return [pid for pid in descendants(os.getpid()) if pid not in self._strangers]

    def living(self) -> list[int]:
        """Those that still run. An orphan's zombie has ended: it is for init to reap, when that gets round to it."""
        return [pid for pid, started in self.processes.items() if _runs(pid, started)]

    def kept_names(self) -> list[str]:
        """The names that still exist."""
        return sorted(name for name in self.names if (_SHARED_MEMORY / name).exists())


def _runs(pid: int, started: int) -> bool:
    now = identify(pid)
    if now is None or now.started != started:
        return False
    try:
        watch = Watch([pid])
    except ProcessLookupError:
        return False
    try:
        return bool(watch.alive_after(0))
    finally:
        watch.close()


def left_behind(seen: Belongings, baseline: OsState, base: Path) -> dict[str, list[str]]:
    """What is there that should not be, by kind; empty if all is well.

    ``baseline``: this process after the first complete cycle. ``base``: where it makes its run folders.
    """
    now = OsState.now()
    found = {
        "processes": [str(pid) for pid in {*seen.living(), *seen.descendants()}],
        "descriptors": differences(baseline.descriptors, now.descriptors),
        "sockets": differences(_sockets(baseline), _sockets(now)),
        "files": sorted(str(path.relative_to(base)) for path in base.rglob("*")),
        "shared memory": seen.kept_names(),
    }
    return {kind: what for kind, what in found.items() if what}


def _sockets(state: OsState) -> tuple[str, ...]:
    return tuple(target for target in state.descriptors if target.startswith("socket"))


def differences(before: Iterable[str], after: Iterable[str]) -> list[str]:
    """What came (``+``) and what went (``-``), each as often as it did."""
    gone = list(before)
    came = []
    for one in after:
        if one in gone:
            gone.remove(one)
        else:
            came.append(one)
    return [f"+{one}" for one in came] + [f"-{one}" for one in gone]
