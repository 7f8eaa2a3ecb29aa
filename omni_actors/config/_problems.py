"""The collector: everything that is wrong with one config, raised as one error.

The first problem (in the order of the file) is the error that is raised; the others are its ``__notes__``, one line
each, so that one run of ``check`` shows them all and no exception group reaches the user.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from omni_actors._errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from omni_actors.config._tree import Place

__all__ = ["MAX_NOTES", "Problems", "error_at", "problem_lines"]

MAX_NOTES = 50
"""More problems than this are counted, not listed."""


def error_at(place: Place, problem: str, *, hint: str | None = None, stage: str | None = None) -> ConfigError:
    """A ConfigError that names ``place``."""
    return ConfigError(problem, file=place.file, line=place.line, path=place.path, hint=hint, stage=stage)


def problem_lines(error: ConfigError) -> tuple[str, ...]:
    """Every problem that ``error`` carries, one line each."""
    return (str(error), *getattr(error, "__notes__", ()))


class Problems:
    """Owns the list of what is wrong so far."""

    def __init__(self) -> None:
        self._errors: list[ConfigError] = []
        self._settled: frozenset[tuple[str | None, int | None, str | None]] = frozenset()

    def __len__(self) -> int:
        return len(self._errors)

    def __iter__(self) -> Iterator[ConfigError]:
        return iter(self._errors)

    def add(self, place: Place, problem: str, *, hint: str | None = None, stage: str | None = None) -> None:
        """Note one problem."""
        self.append(error_at(place, problem, hint=hint, stage=stage))

    def append(self, error: ConfigError) -> None:
        """Note one problem that is an error already."""
        if (error.file, error.line, error.path) not in self._settled:
            self._errors.append(error)

    def settle(self) -> None:
        """End a phase: what it complained about is not complained about again by later ones."""
        self._settled = frozenset((error.file, error.line, error.path) for error in self._errors)

    @contextmanager
    def within(self, stage: str) -> Iterator[None]:
        """Problems noted in this block belong to ``stage``."""
        before = len(self._errors)
        yield
        for error in self._errors[before:]:
            error.stage = error.stage or stage

    @property
    def stages(self) -> frozenset[str]:
        """The stages that have a problem."""
        return frozenset(error.stage for error in self._errors if error.stage)

    def raise_any(self) -> None:
        """Raise the first problem, the others as its notes; return if there is none."""
        if not self._errors:
            return
        first, *rest = sorted(self._errors, key=lambda error: error.line or 0)
        for error in rest[:MAX_NOTES]:
            first.add_note(str(error))
        if len(rest) > MAX_NOTES:
            first.add_note(f"… and {len(rest) - MAX_NOTES} more")
        raise first
