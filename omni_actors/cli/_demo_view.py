"""The demo's answer while it comes: text as it streams, sentences of sound and pictures as they arrive.

On a terminal one live display; elsewhere one line for each, and the pictures at the end. Owns the live display for the
length of its block.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from omni_actors.cli._answers import Picture
from omni_actors.cli._draw import envelope, sparkline
from omni_actors.cli._pictures import show

if TYPE_CHECKING:
    from types import TracebackType

    from rich.console import Console, RenderableType
    from rich.live import Live

    from omni_actors.cli._answers import Answer, Sentence

__all__ = ["AnswerView", "picture_line", "sound_line"]

_WAVE_CHARACTERS = 32
_PIXELS_PER_CHARACTER = 16
"""What tiny-omni's painter makes of each pixel that its model paints."""
_MAX_PICTURE_CHARACTERS = 40


def sound_line(sentence: Sentence, number: int) -> str:
    """``0.31 s  ▁▃▇▅  1.8 s of speech (sentence 1)``."""
    wave = sparkline(envelope(sentence.samples(), _WAVE_CHARACTERS), low=0.0)
    return f"{sentence.last_s:6.2f} s  {wave}  {sentence.seconds:.1f} s of speech (sentence {number})"


def picture_line(picture: Picture) -> str:
    """``0.42 s  a picture, 304 by 160 (sentence 1)``."""
    height, width, _ = picture.image.shape
    return f"{picture.at_s:6.2f} s  a picture, {width} by {height} (sentence {picture.part + 1})"


class AnswerView:
    """``show`` is called after every output that ``answer`` took in."""

    def __init__(self, question: str, answer: Answer, console: Console) -> None:
        self._question, self._answer, self._console = question, answer, console
        self._lines: list[str] = []
        self._blocks: list[RenderableType] = []
        self._live: Live | None = None
        self._text_told = False

    def __enter__(self) -> Self:
        self._console.print(f"\n[bold]Q[/]  {self._escaped(self._question)}", highlight=False, soft_wrap=True)
        if self._console.is_terminal:
            from rich.live import Live

            self._live = Live(self._display(), console=self._console, auto_refresh=False)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.update(self._display(), refresh=True)
            self._live.stop()
        elif kind is None:
            self._tell_text()
            if self._blocks:
                self._console.print(self._row())

    def show(self, new: Sentence | Picture | None) -> None:
        """Bring the display up to date; ``new`` is a sentence that has just been completed, or a picture."""
        line = self._take(new)
        if self._live is not None:
            self._live.update(self._display(), refresh=True)
            return
        if self._answer.finish_reason is not None:
            self._tell_text()
        if line is not None:
            self._console.print(line, highlight=False, soft_wrap=True)

    def _take(self, new: Sentence | Picture | None) -> str | None:
        """What is said of it."""
        if new is None:
            return None
        if isinstance(new, Picture):
            columns = min(_MAX_PICTURE_CHARACTERS, new.image.shape[1] // _PIXELS_PER_CHARACTER)
            self._blocks.append(show(new.image, max(1, columns)))
            line = picture_line(new)
        else:
            line = sound_line(new, new.part + 1)
        self._lines.append(line)
        return line

    def _tell_text(self) -> None:
        answer = self._answer
        if not self._text_told and answer.last_text_s is not None:
            self._text_told = True
            when = f"{answer.first_text_s:.2f} s … {answer.last_text_s:.2f} s"
            self._console.print(f"A  {self._escaped(answer.text)}  ({when})", highlight=False, soft_wrap=True)

    def _display(self) -> RenderableType:
        from rich.console import Group
        from rich.text import Text

        answer = self._answer
        begun = "" if answer.first_text_s is None else f"  ({answer.first_text_s:.2f} s … {answer.last_text_s:.2f} s)"
        text = Text.assemble(("A  ", "bold"), answer.text, (begun, "dim"))
        return Group(text, *(Text(line, style="cyan", no_wrap=True) for line in self._lines), self._row())

    def _row(self) -> RenderableType:
        """The pictures, side by side as far as the terminal is wide."""
        from rich.columns import Columns

        return Columns(self._blocks, padding=(1, 2))

    @staticmethod
    def _escaped(words: str) -> str:
        from rich.markup import escape

        return escape(words)
