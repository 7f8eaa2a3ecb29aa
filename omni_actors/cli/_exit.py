"""How a command ends: exit codes, and every OmniError as one clear block (what, where, what to do).

A command's body runs inside ``guarded``. With ``--json`` an error is the one document on stdout, otherwise a block on
stderr; ``--debug`` adds the traceback.
"""

from __future__ import annotations

import enum
import json
import sys
import traceback
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from omni_actors._errors import (
    ConfigError,
    EngineDead,
    EngineRejected,
    InvalidRequest,
    OmniError,
    Overloaded,
    RequestTimeout,
    ShuttingDown,
    StageFailed,
    StageUnavailable,
    StartupFailed,
    TransformFailed,
    UsageError,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Code", "Missing", "block", "code_of", "describe", "guarded", "print_json"]


class Code(enum.IntEnum):
    """Exit codes of every command."""

    OK = 0
    FAILED = 1
    USAGE = 2
    MISSING = 3
    INTERRUPTED = 130


class Missing(OmniError):
    """Raised when a command cannot run on this machine; the message says what is missing and how to get it."""


_WHAT_TO_DO: tuple[tuple[type[OmniError], str], ...] = (
    (Missing, "omni-actors doctor shows everything that is installed, and what is not"),
    (ConfigError, "omni-actors check TARGET shows every effective value and where it comes from"),
    (InvalidRequest, "omni-actors graph TARGET shows what the pipeline takes and makes"),
    (Overloaded, "try again later, or raise limits.max_requests (--set limits.max_requests=…)"),
    (ShuttingDown, "the pipeline was already stopping; run the command again"),
    (StartupFailed, "the engine's whole log: run again with --log-level info; what is installed: omni-actors doctor"),
    (StageFailed, "the stage is restarted by itself; its whole log: run again with --log-level info"),
    (StageUnavailable, "why it is down: run again with --log-level info"),
    (EngineRejected, "the engine lives on; check the prompt and the sampling params"),
    (TransformFailed, "the function belongs to the pipeline, not to the engines; --debug shows where it raised"),
    (RequestTimeout, "give it longer with --timeout-s"),
    (UsageError, "omni-actors COMMAND --help"),
)


def code_of(error: BaseException) -> Code:
    """The exit code that ``error`` means."""
    if isinstance(error, KeyboardInterrupt):
        return Code.INTERRUPTED
    if isinstance(error, Missing):
        return Code.MISSING
    return Code.USAGE if isinstance(error, UsageError) else Code.FAILED


def describe(error: BaseException) -> dict[str, Any]:
    """An error as data, without what is not known."""
    names = ("request_id", "stage", "replica", "generation", "file", "line", "path", "hint", "verdict", "pid",
             "exit_code", "signal", "function", "edge")  # fmt: skip
    known = {name: value for name in names if (value := getattr(error, name, None)) not in (None, "")}
    tail = getattr(error, "stderr_tail", ())
    notes = getattr(error, "__notes__", ())
    return {
        "kind": type(error).__name__,
        "message": str(error) or type(error).__name__,
        **known,
        **({"stderr_tail": list(tail)} if tail else {}),
        **({"more": list(notes)} if notes else {}),
    }


def block(error: OmniError) -> list[str]:
    """What, where, what to do, as lines. Config errors say where in their own message."""
    message, tail = str(error), tuple(getattr(error, "stderr_tail", ()))
    lines = [f"error: {message}", *(f"error: {note}" for note in getattr(error, "__notes__", ()))]
    if where := _where(error):
        lines.append(f"  where: {where}")
    if tail and not any(line in message for line in tail):
        lines += ["  its last words:", *(f"    {line}" for line in tail)]
    lines += [f"  what to do: {advice}" for kind, advice in _WHAT_TO_DO if isinstance(error, kind)][:1]
    return lines


def _where(error: OmniError) -> str:
    parts = []
    if error.stage is not None:
        replica = "" if error.replica is None else f"/{error.replica}"
        parts.append(f"stage {error.stage}{replica}")
    if isinstance(error, EngineDead | StageFailed) and error.pid is not None:
        parts.append(f"pid {error.pid}")
    if error.request_id is not None:
        parts.append(f"request {error.request_id}")
    return ", ".join(parts)


def print_json(document: Any) -> None:
    """The one document of a ``--json`` command, on stdout."""
    sys.stdout.write(json.dumps(document, ensure_ascii=False, indent=2, default=str) + "\n")
    sys.stdout.flush()


@contextmanager
def guarded(*, as_json: bool, debug: bool) -> Iterator[None]:
    """End the process with the right code for whatever OmniError or Ctrl-C leaves the block."""
    try:
        yield
    except KeyboardInterrupt as interrupt:
        if as_json:
            print_json({"error": {"kind": "Interrupted", "message": "interrupted"}})
        else:
            sys.stderr.write("interrupted\n")
        raise SystemExit(int(Code.INTERRUPTED)) from interrupt
    except OmniError as error:
        if debug:
            traceback.print_exception(error)
        if as_json:
            print_json({"error": describe(error)})
        else:
            sys.stderr.write("\n".join(block(error)) + "\n")
        raise SystemExit(int(code_of(error))) from error
