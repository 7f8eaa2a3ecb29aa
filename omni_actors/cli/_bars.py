"""How far the pictures are: a bar for each prompt that is painted, on a terminal; elsewhere a line for each picture.

``Work`` is one prompt's progress, pure; ``Bars`` owns the live display for the length of its block.
"""

from __future__ import annotations

import math
from contextlib import contextmanager
from typing import TYPE_CHECKING, Self

import attrs
import trio

from omni_actors.lifecycle.events import StepChunk

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import TracebackType

    from rich.console import Console
    from rich.live import Live
    from rich.progress import Progress, TaskID

    from omni_actors.cli._answers import Picture
    from omni_actors.lifecycle.events import Output

__all__ = ["Bars", "Work"]

_MAX_BARS = 8
"""Prompts beyond these get theirs when another has ended."""
_REFRESH_S = 0.1
_PROMPT_CHARACTERS = 32


@attrs.define
class Work:
    """How far one prompt is: the sum over its samples and parts that have begun."""

    _steps: dict[tuple[str, int, int], StepChunk] = attrs.field(factory=dict)

    def take(self, output: Output) -> bool:
        """Whether it was news. A picture is the last step of its own sample."""
        key = (output.stage, output.index, output.part)
        if isinstance(output.payload, StepChunk):
            self._steps[key] = output.payload
            return True
        known = self._steps.get(key)
        if known is None or output.image is None:
            return False
        self._steps[key] = StepChunk(done=known.total, total=known.total, eta_s=0.0)
        return True

    @property
    def done(self) -> int:
        """Steps that are behind it."""
        return sum(step.done for step in self._steps.values())

    @property
    def total(self) -> int | None:
        """All steps; None while one of the samples does not know."""
        known = [step.total for step in self._steps.values()]
        return sum(known) if all(known) else None

    @property
    def eta(self) -> str:
        """``12 s left``; empty while nobody knows."""
        known = [step.eta_s for step in self._steps.values() if step.eta_s is not None]
        return f"{max(known):.0f} s left" if known else ""


class Bars:
    """``took`` is called with every output. Without ``shown``, and where there is no terminal, there are no bars."""

    def __init__(self, console: Console, prompts: Sequence[str], *, shown: bool) -> None:
        self._console, self._prompts = console, prompts
        self.shown = shown and console.is_terminal
        self._works: dict[int, Work] = {}
        self._bars: dict[int, TaskID] = {}
        self._progress = _progress(console) if self.shown else None
        self._live: Live | None = None
        self._fresh_at = -math.inf

    def __enter__(self) -> Self:
        self._begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._end()

    def _begin(self) -> None:
        if self._progress is not None:
            from rich.live import Live

            # A new one each time: one that is started again takes what was printed meanwhile for its own lines.
            self._live = Live(self._progress, console=self._console, auto_refresh=False, transient=True)
            self._live.start()

    def _end(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    @contextmanager
    def aside(self) -> Iterator[None]:
        """While something is printed, maybe by another console: the bars are off the screen."""
        live = self._live is not None
        self._end()
        try:
            yield
        finally:
            if live:
                self._begin()

    def took(self, number: int, output: Output) -> None:
        """Show what is new of the prompt with this number."""
        if self._progress is None or not self._works.setdefault(number, Work()).take(output):
            return
        if number not in self._bars and len(self._bars) < _MAX_BARS:
            self._bars[number] = self._progress.add_task(_short(self._prompts[number]), total=None, eta="")
        now = trio.current_time()
        if self._live is not None and now - self._fresh_at >= _REFRESH_S:
            self._fresh_at = now
            self._refresh(self._progress, self._live)

    def _refresh(self, progress: Progress, live: Live) -> None:
        for number, bar in self._bars.items():
            work = self._works[number]
            progress.update(bar, completed=work.done, total=work.total, eta=work.eta)
        live.refresh()

    def painted(self, name: str, picture: Picture) -> None:
        """A picture is there: a line, where there is no terminal."""
        if not self._console.is_terminal:
            height, width, _ = picture.image.shape
            line = f"{name}: a picture, {width} by {height}, after {picture.at_s:.1f} s"
            self._console.print(line, highlight=False, markup=False, soft_wrap=True)

    def ended(self, number: int) -> None:
        """The prompt's bar goes; another may have its place."""
        self._works.pop(number, None)
        bar = self._bars.pop(number, None)
        if self._progress is not None and bar is not None:
            self._progress.remove_task(bar)


def _progress(console: Console) -> Progress:
    """The bars as something to draw; it is never started, so it has no thread and no display of its own."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    words = TextColumn("{task.description}", markup=False)
    eta = TextColumn("{task.fields[eta]}", markup=False, style="dim")
    return Progress(words, BarColumn(bar_width=None), MofNCompleteColumn(), eta, console=console, auto_refresh=False)


def _short(prompt: str) -> str:
    line = " ".join(prompt.split())
    return line if len(line) <= _PROMPT_CHARACTERS else f"{line[: _PROMPT_CHARACTERS - 1]}…"
