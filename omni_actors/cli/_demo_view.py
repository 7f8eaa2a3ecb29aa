"""The demo's answer while it comes: text as it streams, sentences of sound as they arrive.

On a terminal one live picture; elsewhere one line per sentence. Owns the live display for the length of its block.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from omni_actors.cli._draw import envelope, sparkline

if TYPE_CHECKING:
    from types import TracebackType

    from rich.console import Console, RenderableType
    from rich.live import Live

    from omni_actors.cli._answers import Answer, Sentence

__all__ = ["AnswerView", "sound_line"]

_WAVE_CHARACTERS = 32


def sound_line(sentence: Sentence, number: int) -> str:
    """``0.31 s  ▁▃▇▅  1.8 s of speech (sentence 1)``."""
    wave = sparkline(envelope(sentence.samples(), _WAVE_CHARACTERS), low=0.0)
    return f"{sentence.last_s:6.2f} s  {wave}  {sentence.seconds:.1f} s of speech (sentence {number})"


class AnswerView:
    """``show`` is called after every output that ``answer`` took in."""

    def __init__(self, question: str, answer: Answer, console: Console) -> None:
        self._question, self._answer, self._console = question, answer, console
        self._sounds: list[str] = []
        self._live: Live | None = None
        self._text_told = False

    def __enter__(self) -> Self:
        self._console.print(f"\n[bold]Q[/]  {self._escaped(self._question)}", highlight=False, soft_wrap=True)
        if self._console.is_terminal:
            from rich.live import Live

            self._live = Live(self._picture(), console=self._console, auto_refresh=False)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.update(self._picture(), refresh=True)
            self._live.stop()
        elif kind is None:
            self._tell_text()

    def show(self, sentence: Sentence | None) -> None:
        """Bring the display up to date; ``sentence`` is one that has just been completed."""
        line = None if sentence is None else sound_line(sentence, sentence.part + 1)
        if line is not None:
            self._sounds.append(line)
        if self._live is not None:
            self._live.update(self._picture(), refresh=True)
            return
        if self._answer.finish_reason is not None:
            self._tell_text()
        if line is not None:
            self._console.print(line, highlight=False, soft_wrap=True)

    def _tell_text(self) -> None:
        answer = self._answer
        if not self._text_told and answer.last_text_s is not None:
            self._text_told = True
            when = f"{answer.first_text_s:.2f} s … {answer.last_text_s:.2f} s"
            self._console.print(f"A  {self._escaped(answer.text)}  ({when})", highlight=False, soft_wrap=True)

    def _picture(self) -> RenderableType:
        from rich.console import Group
        from rich.text import Text

        answer = self._answer
        begun = "" if answer.first_text_s is None else f"  ({answer.first_text_s:.2f} s … {answer.last_text_s:.2f} s)"
        text = Text.assemble(("A  ", "bold"), answer.text, (begun, "dim"))
        return Group(text, *(Text(line, style="cyan", no_wrap=True) for line in self._sounds))

    @staticmethod
    def _escaped(words: str) -> str:
        from rich.markup import escape

        return escape(words)
