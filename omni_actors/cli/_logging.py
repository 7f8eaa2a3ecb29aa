"""Logging of the command line: stdlib logging to stderr, each line with the stage, replica and request it is about."""

from __future__ import annotations

import logging
import os
import sys

from omni_actors._errors import UsageError

__all__ = ["LEVELS", "Formatter", "configure"]

LEVELS = ("debug", "info", "warning", "error")


class Formatter(logging.Formatter):
    """``WARNING omni_actors.stage [thinker/0 request-1] message``; the bracket only where there is something to say."""

    def format(self, record: logging.LogRecord) -> str:
        """One record as text."""
        stage, replica = getattr(record, "stage", None), getattr(record, "replica", None)
        request = getattr(record, "request_id", None) or getattr(record, "request", None)
        place = stage if stage is None or replica is None else f"{stage}/{replica}"
        where = " ".join(str(part) for part in (place, request) if part is not None)
        line = f"{record.levelname} {record.name}{f' [{where}]' if where else ''} {record.getMessage()}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class _Stderr(logging.StreamHandler):  # type: ignore[type-arg]  # generic in the stubs only
    """Writes to what ``sys.stderr`` is now: rich replaces it while a live display is up, so that lines go above it."""

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)


def configure(level: str) -> None:
    """Set up logging once per command. Raises UsageError for an unknown level.

    vLLM's own logger must never write to stdout (it is ours, for ``--json``), and says at level warning no more than
    errors: what engines print belongs to our log at level info.
    """
    if level.lower() not in LEVELS:
        raise UsageError(f"unknown log level {level!r}; known: {', '.join(LEVELS)}")
    number = logging.getLevelNamesMapping()[level.upper()]
    os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", level.upper() if number < logging.WARNING else "ERROR")
    handler = _Stderr()
    handler.setFormatter(Formatter())
    logging.basicConfig(level=number, handlers=[handler], force=True)
