"""What requests that did not finish have left in shared memory is removed, by their host, when all engines are done.

vLLM-Omni's shared-memory connector gives each piece a segment and a lock file, named after the request. The reader
removes both. A piece whose reader was aborted, or never made, stays; and the threads that write pieces may write one
more after the abort has been confirmed. So the names are looked for several times, in a thread of this module's own.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import time
from typing import TYPE_CHECKING

from omni_actors.engines.reaper import request_of

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Sweeper"]

_AFTER_S = (0.0, 0.2, 1.0, 5.0)
"""When a request's pieces are looked for, counted from its end."""
_SHARED_MEMORY = "/dev/shm"


class Sweeper:
    """``sweep`` returns at once. ``after_s``: ascending. The thread ends with the process."""

    def __init__(self, folder: str = _SHARED_MEMORY, after_s: tuple[float, ...] = _AFTER_S) -> None:
        self._folder, self._after_s = folder, after_s
        self._due: queue.PriorityQueue[tuple[float, str]] = queue.PriorityQueue()
        threading.Thread(target=self._run, name="omni-sweeper", daemon=True).start()

    def sweep(self, names: Iterable[str]) -> None:
        """These requests are over."""
        now = time.monotonic()
        for name in names:
            for delay_s in self._after_s:
                self._due.put((now + delay_s, name))

    def _run(self) -> None:
        # Waits without a deadline: there may never be an abort.
        while True:
            due, name = self._due.get()
            time.sleep(max(0.0, due - time.monotonic()))
            self._remove({name} | self._also_due())

    def _also_due(self) -> set[str]:
        """One look at the folder is enough for all whose time has come."""
        names: set[str] = set()
        now = time.monotonic()
        with contextlib.suppress(queue.Empty):
            while True:
                due, name = self._due.get_nowait()
                if due > now:
                    self._due.put((due, name))
                    break
                names.add(name)
        return names

    def _remove(self, names: set[str]) -> None:
        for entry in os.listdir(self._folder):
            if request_of(entry) in names:
                with contextlib.suppress(FileNotFoundError):  # its reader, or another engine, was faster
                    os.unlink(os.path.join(self._folder, entry))
