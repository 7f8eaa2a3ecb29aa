"""The end of a program that forgot to close: its open bridges climb down before the interpreter does.

Python waits for every thread that is not a daemon before it runs ``atexit`` functions, so an ``atexit`` function could
never end a bridge's thread; and if that were a daemon, its ladder would have to be climbed by a thread that may no
longer start others (Python 3.12 and later refuse that in ``atexit``). What Python does first is to declare the main
thread over. So one daemon thread waits for exactly that, with the public ``threading.main_thread().join()``, asks the
bridges to close, and Python's own waiting for their threads does the rest. It sleeps until then, and costs nothing.

This module owns the set of open bridges. A forked child begins with an empty one: it has none of the threads.
"""

from __future__ import annotations

import os
import threading
from typing import Protocol

__all__ = ["DRAIN_S", "STOP_S", "forget", "remember"]

DRAIN_S, ABORT_S, STOP_S = 0.0, 0.5, 4.5
"""What a forgotten close is given, in seconds: five in total, then what is left is killed."""


class Closable(Protocol):
    """What is asked to close."""

    def main_thread_ended(self) -> None:
        """Nothing runs in the main thread any more; never waits, never raises."""

    def request_close(self, *, drain_s: float, abort_s: float, stop_s: float) -> None:
        """Begin to close; never waits, never raises."""


_lock = threading.Lock()
_open: set[Closable] = set()
_watching = False


def remember(bridge: Closable) -> None:
    """This one is open."""
    global _watching
    with _lock:
        _open.add(bridge)
        if not _watching:
            _watching = True
            threading.Thread(target=_watch, name="omni-actors exit", daemon=True).start()


def forget(bridge: Closable) -> None:
    """It is closed."""
    with _lock:
        _open.discard(bridge)


def _watch() -> None:
    threading.main_thread().join()
    with _lock:
        bridges = list(_open)
    for bridge in bridges:
        bridge.main_thread_ended()
        bridge.request_close(drain_s=DRAIN_S, abort_s=ABORT_S, stop_s=STOP_S)


def _forked() -> None:
    global _lock, _watching
    _lock, _watching = threading.Lock(), False
    _open.clear()


os.register_at_fork(after_in_child=_forked)
