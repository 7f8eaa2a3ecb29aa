"""The start-up of a pipeline on a terminal: one line per stage, with its state and seconds.

``Startup`` is the pure state, ``StartupDisplay`` shows it: live where stderr is a terminal, else one line per change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import trio

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live
    from rich.table import Table

    from omni_actors.config import PipelineSpec
    from omni_actors.stages import StageEvent

__all__ = ["Startup", "StartupDisplay", "StartupLine"]

_REFRESH_S = 0.25
_MARKS = {"waiting": "·", "starting": "…", "ready": "✓", "failed": "✗"}
_STYLES = {"waiting": "dim", "starting": "yellow", "ready": "green", "failed": "red"}


@attrs.frozen
class StartupLine:
    """One stage: how many of its replicas are ready, since when it has been starting, how long it took."""

    stage: str
    what: str
    replicas: int
    ready: int = 0
    began_at: float | None = None
    ended_at: float | None = None
    failed: bool = False

    @property
    def state(self) -> str:
        """waiting, starting, ready or failed."""
        if self.failed:
            return "failed"
        if self.ready == self.replicas:
            return "ready"
        return "waiting" if self.began_at is None else "starting"

    def seconds(self, now: float) -> float:
        """Since its first replica began, until now or its end."""
        return 0.0 if self.began_at is None else (self.ended_at or now) - self.began_at

    def heard(self, kind: str, at: float) -> StartupLine:
        """The line after one event of one of its replicas."""
        if kind == "starting" and self.began_at is None:
            return attrs.evolve(self, began_at=at)
        if kind == "ready":
            ready = min(self.replicas, self.ready + 1)
            return attrs.evolve(self, ready=ready, ended_at=at if ready == self.replicas else None)
        if kind in ("exited", "down") and self.state != "ready":
            return attrs.evolve(self, failed=True, ended_at=at)
        return self


class Startup:
    """The lines of all stages. ``heard`` returns the line that an event changed, if it changed one's state."""

    def __init__(self, spec: PipelineSpec) -> None:
        self.lines = {s.name: StartupLine(s.name, s.engine, s.replicas) for s in spec.stages}

    def heard(self, event: StageEvent) -> StartupLine | None:
        """Take in one event of the runtime's."""
        before = self.lines[event.stage]
        after = self.lines[event.stage] = before.heard(event.kind, event.at)
        return after if after.state != before.state else None

    @property
    def over(self) -> bool:
        """Whether every stage is ready, or one has failed."""
        states = [line.state for line in self.lines.values()]
        return "failed" in states or all(state == "ready" for state in states)


class StartupDisplay:
    """Owns the live display on ``console``. ``on_event`` is for ``open_omni``; ``close`` is idempotent."""

    def __init__(self, spec: PipelineSpec, console: Console) -> None:
        self._startup, self._console = Startup(spec), console
        self._live: Live | None = None

    async def run(self) -> None:
        """Let the seconds tick until the start is over. A display's clock: it waits for nothing but time."""
        if not self._console.is_terminal:
            return
        from rich.live import Live

        self._live = Live(self._table(), console=self._console, auto_refresh=False)
        self._live.start(refresh=True)
        while self._live is not None and not self._startup.over:
            self._live.update(self._table(), refresh=True)
            await trio.sleep(_REFRESH_S)

    def on_event(self, event: StageEvent) -> None:
        """Show what changed. After ``close``: nothing."""
        changed = self._startup.heard(event)
        if changed is None or (self._startup.over and changed.state == "starting"):
            return
        if self._live is not None:
            self._live.update(self._table(), refresh=True)
        elif not self._console.is_terminal:
            self._console.print(_plain(changed, event.at), highlight=False)

    def close(self) -> None:
        """Leave the last state on the screen and stop."""
        if self._live is not None:
            self._live.update(self._table(), refresh=True)
            self._live.stop()
            self._live = None

    def _table(self) -> Table:
        from rich.table import Table

        table, now = Table.grid(padding=(0, 2)), trio.current_time()
        table.add_column(width=1)
        table.add_column(min_width=8)
        table.add_column(style="dim")
        table.add_column(min_width=8)
        table.add_column(justify="right")
        for line in self._startup.lines.values():
            style = _STYLES[line.state]
            counted = f" {line.ready}/{line.replicas}" if line.replicas > 1 else ""
            seconds = f"{line.seconds(now):.1f} s"
            table.add_row(f"[{style}]{_MARKS[line.state]}[/]", line.stage, line.what, line.state + counted, seconds)
        return table


def _plain(line: StartupLine, now: float) -> str:
    took = f" after {line.seconds(now):.1f} s" if line.ended_at is not None else ""
    return f"{line.stage} ({line.what}): {line.state}{took}"
