"""How far a script's batch is: prompts, tokens per second, seconds of sound per second. Nothing if nobody watches."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.progress import Task
    from rich.text import Text

__all__ = ["Meter", "progress"]


@attrs.define
class Meter:
    """What was made so far. Written to by the trio thread, read by whoever draws."""

    tokens: int = 0
    audio_s: float = 0.0
    began: float = attrs.field(factory=time.monotonic)

    def rates(self) -> str:
        """Tokens per second and the real-time factor: seconds that it takes to make one second of sound."""
        passed_s = max(time.monotonic() - self.began, 1e-9)
        words = [f"{self.tokens / passed_s:.0f} tokens/s"]
        if self.audio_s:
            words.append(f"RTF {passed_s / self.audio_s:.2f}")
        return ", ".join(words)


@contextmanager
def progress(total: int | None, meter: Meter, wanted: bool | None) -> Iterator[Callable[[], None]]:
    """A bar on stderr; call what it gives once per prompt. ``wanted`` None: if stderr is a terminal."""
    from rich.console import Console

    console = Console(stderr=True)
    if not (console.is_terminal if wanted is None else wanted):
        yield lambda: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TimeElapsedColumn
    from rich.text import Text

    class Rates(ProgressColumn):
        def render(self, task: Task) -> Text:
            return Text(meter.rates())

    with Progress(BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), Rates(), console=console) as bar:
        task = bar.add_task("prompts", total=total)
        yield lambda: bar.advance(task)
