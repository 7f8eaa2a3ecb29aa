"""SIGTERM and SIGINT of a server: once means drain, twice means now.

Owns the count of signals. vLLM's server installs handlers of its own, which know one signal only: ``listen`` is called
again after it did, and the last one counts. Before the engines are up the first signal gives up the start.
"""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Signals"]

WHICH = (signal.SIGINT, signal.SIGTERM)


class Signals:
    """``on_hit`` is called in the loop with the number of signals so far."""

    def __init__(self, on_hit: Callable[[int], None]) -> None:
        self.count = 0
        self._on_hit = on_hit

    def listen(self) -> None:
        """In the running loop, in the main thread."""
        loop = asyncio.get_running_loop()
        for number in WHICH:
            loop.add_signal_handler(number, self._hit)

    def close(self) -> None:
        """As it was before."""
        loop = asyncio.get_running_loop()
        for number in WHICH:
            loop.remove_signal_handler(number)

    def _hit(self) -> None:
        self.count += 1
        self._on_hit(self.count)
