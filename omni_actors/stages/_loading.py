"""Threads that load an engine's libraries and may be abandoned in the middle of it.

Nothing can stop such a thread, and Python takes the interpreter down under threads that are daemons, as trio's are. One
that is in C++ code then, and comes back for Python's lock, is ended by an exception that C++ does not let through: the
process aborts ("FATAL: exception not rethrown"). So the end of the program waits; this module owns their number.
"""

from __future__ import annotations

import atexit
import os
import threading
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["loading"]

T = TypeVar("T")

WAIT_S = 300.0
"""Longer than any front-end takes on a slow machine; then the program ends under it after all."""

_changed = threading.Condition()
_count = 0


def loading(load: Callable[..., T], *args: object) -> T:
    """Call it, in a worker thread; the end of the program waits until it has returned."""
    global _count
    with _changed:
        _count += 1
    try:
        return load(*args)
    finally:
        with _changed:
            _count -= 1
            _changed.notify_all()


@atexit.register
def _wait() -> None:
    try:
        with _changed:
            _changed.wait_for(lambda: not _count, WAIT_S)
    except KeyboardInterrupt:  # who asks twice does not want to wait
        os._exit(130)
