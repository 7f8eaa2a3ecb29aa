"""How often Python's cyclic garbage collector looks, while a runtime is open. Owns that one setting of the process.

A request in flight is forty objects, so in a full house a full collection takes 0.2 s, in which no stream moves. With
Python's own setting (after 700 new objects) ten thousand streams caused one every two seconds: each output waits for
its reader, and what is alive when the collector looks counts as having come to stay. Requests themselves make no
cycles. Looking after 10,000 new objects instead costs some megabytes of garbage that waits a little longer.
"""

from __future__ import annotations

import gc
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["NEW_OBJECTS", "rare_collections"]

NEW_OBJECTS = 10_000

_lock = threading.Lock()  # runtimes of several threads share the process
_open = 0
_before = (0, 0, 0)


@contextmanager
def rare_collections() -> Iterator[None]:
    """Look after ``NEW_OBJECTS`` until the last such block ends. A collector that looks less often is left alone."""
    _enter()
    try:
        yield
    finally:
        _leave()


def _enter() -> None:
    global _open, _before
    with _lock:
        _open += 1
        if _open == 1:
            _before = gc.get_threshold()
            if 0 < _before[0] < NEW_OBJECTS:
                gc.set_threshold(NEW_OBJECTS, *_before[1:])


def _leave() -> None:
    global _open
    with _lock:
        _open -= 1
        if _open == 0 and gc.get_threshold() == (NEW_OBJECTS, *_before[1:]):
            gc.set_threshold(*_before)
