"""What requests have left in shared memory is removed, by their host, when all engines are done.

vLLM-Omni's shared-memory connector gives each piece a segment and a lock file, named after the request. The reader
removes both. A piece whose reader was aborted, or never made, or had enough before it came, stays; and the threads that
write pieces may write one more after the request's end has been confirmed. So the names are looked for several times,
in a thread of this module's own; one look is for all whose time has come.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import time
from collections import deque
from typing import TYPE_CHECKING

from omni_actors.engines.reaper import request_of

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Sweeper"]

_AFTER_S = (0.0, 0.2, 1.0, 5.0)
"""When a request's pieces are looked for, counted from its end."""
_PAUSE_S = 0.1
"""Between two looks: requests end by the hundred, and each look reads the whole folder."""
_SHARED_MEMORY = "/dev/shm"


class Sweeper:
    """``sweep`` returns at once. ``after_s``: ascending. The thread ends with the process."""

    def __init__(
        self, folder: str = _SHARED_MEMORY, after_s: tuple[float, ...] = _AFTER_S, pause_s: float = _PAUSE_S
    ) -> None:
        self._folder, self._pause_s = folder, pause_s
        self._over: queue.SimpleQueue[tuple[float, str]] = queue.SimpleQueue()
        self._rounds = [(delay_s, deque[tuple[float, str]]()) for delay_s in after_s]
        threading.Thread(target=self._run, name="omni-sweeper", daemon=True).start()

    def sweep(self, names: Iterable[str]) -> None:
        """These requests are over."""
        now = time.monotonic()
        for name in names:
            self._over.put((now, name))

    def _run(self) -> None:
        while True:
            self._learn()
            self._remove(self._due())
            time.sleep(self._pause_s)

    def _learn(self) -> None:
        """Wait for a request that is over, until the next look is due; with none due, for as long as it takes."""
        due = min((names[0][0] + delay_s for delay_s, names in self._rounds if names), default=None)
        with contextlib.suppress(queue.Empty):
            self._rounds[0][1].append(self._over.get(timeout=None if due is None else max(0.0, due - time.monotonic())))
            while True:
                self._rounds[0][1].append(self._over.get_nowait())

    def _due(self) -> set[str]:
        """Whose time has come; each waits for its next look then."""
        now, found = time.monotonic(), set()
        for (delay_s, names), (_, later) in zip(self._rounds, [*self._rounds[1:], (0.0, deque())], strict=True):
            while names and names[0][0] + delay_s <= now:
                later.append(names.popleft())
                found.add(later[-1][1])
        return found

    def _remove(self, names: set[str]) -> None:
        for entry in os.listdir(self._folder) if names else ():
            if request_of(entry) in names:
                with contextlib.suppress(FileNotFoundError):  # its reader, or another engine, was faster
                    os.unlink(os.path.join(self._folder, entry))
