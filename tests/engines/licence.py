"""What tests of a fake's licence share: one set of scenarios, played on the fake's process and on the real engine."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import trio

from omni_actors.config import PipelineSpec
from omni_actors.testing.chaos import ProcessWorld
from omni_actors.testing.sim._driver import Driver
from omni_actors.testing.sim._history import History, TerminalSeen

__all__ = ["Watched", "ends", "played"]


class Watched(Driver):
    """A driver that tells when something was seen."""

    changed = trio.Event()

    def record(self, event) -> None:
        super().record(event)
        self.changed.set()
        self.changed = trio.Event()

    async def seen(self, what: type, /, **how: Any) -> None:
        """Wait for it. No deadline: the run has one."""
        while not any(all(getattr(e, k) == v for k, v in how.items()) for e in self.history.of(what)):
            await self.changed.wait()


def played(spec: PipelineSpec, scenarios: Callable[[Watched], Awaitable[None]], within_s: float) -> History:
    """The history of the scenarios on these engines, as processes."""
    history = History(spec, slack_s=5.0)

    async def main() -> None:
        world = ProcessWorld()
        driver = world.driver = Watched(spec, world, world, history)
        with trio.fail_after(within_s):
            await driver.hold(lambda: scenarios(driver))

    trio.run(main)
    return history


def ends(history: History) -> dict[str, tuple[str, str | None]]:
    """How each request ended, for its user."""
    return {event.request: (event.kind, event.error) for event in history.of(TerminalSeen)}
