"""Ctrl-C and SIGTERM: once means drain, twice means now; or now at once, where nothing half-made is of use.

Owns the count of signals and the scope of the command's main work. Before the engines are up there is nothing to
drain, so the first signal already ends the start.
"""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

import trio

if TYPE_CHECKING:
    from collections.abc import Callable

    from omni_actors.runtime import OmniRuntime

__all__ = ["Interrupts"]


class Interrupts:
    """``listen`` is a task beside the work; the work runs in ``scope`` and calls ``attach`` when it has a runtime."""

    def __init__(self, say: Callable[[str], None], *, drain: bool = True) -> None:
        self.count = 0
        self.scope = trio.CancelScope()
        self._say, self._drain = say, drain
        self._omni: OmniRuntime | None = None

    def attach(self, omni: OmniRuntime) -> None:
        """From now on there is ``omni`` to drain and to stop."""
        self._omni = omni

    def hit(self) -> None:
        """What one signal does. Synchronous."""
        self.count += 1
        omni = self._omni
        if omni is None:
            self._say("interrupted: the start is given up")
            self.scope.cancel()
        elif self.count == 1 and self._drain:
            self._say("interrupted: finishing what is running (again: stop now)")
            omni.request_shutdown()
        else:
            self._say(f"interrupted{' again' if self.count > 1 else ''}: stopping now")
            omni.request_shutdown(drain_s=0, abort_s=0, stop_s=0)
            self.scope.cancel()

    async def listen(self, task_status: trio.TaskStatus[Any] = trio.TASK_STATUS_IGNORED) -> None:
        """Act on signals until cancelled; the previous handlers are back then. Waits for the user: no deadline."""
        with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            task_status.started()
            async for _ in signals:
                self.hit()
