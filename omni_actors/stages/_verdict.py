"""What is said over a dead generation: one place that turns exit codes, signals and last words into an error."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from omni_actors._errors import EngineDead, StartupFailed

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["dead", "how_it_ended", "startup_failed"]

SHOWN_LINES = 6


def how_it_ended(returncode: int | None) -> str:
    """``exited with code 3`` or ``was killed by SIGKILL``."""
    if returncode is None:
        return "is still there"
    if returncode < 0:
        return f"was killed by {_signal_name(returncode)}"
    return f"exited with code {returncode}"


def dead(
    stage: str,
    replica: int,
    generation: int,
    *,
    verdict: str,
    what: str,
    pid: int | None = None,
    returncode: int | None = None,
    tail: Sequence[str] = (),
    kind: type[EngineDead] = EngineDead,
) -> EngineDead:
    """The verdict as an error. ``what`` completes "stage thinker, replica 0, generation 1 (pid 42) …"."""
    who = f"stage {stage}, replica {replica}, generation {generation}"
    who = f"{who} (pid {pid})" if pid is not None else who
    words = "".join(f"\n    {line}" for line in tail[-SHOWN_LINES:])
    return kind(
        f"{who} {what}" + (f"; its last words:{words}" if words else ""),
        verdict=verdict,
        pid=pid,
        exit_code=returncode if returncode is not None and returncode >= 0 else None,
        signal=_signal_name(returncode) if returncode is not None and returncode < 0 else None,
        stderr_tail=tuple(tail),
        stage=stage,
        replica=replica,
        generation=generation,
    )


def startup_failed(error: EngineDead) -> StartupFailed:
    """The same verdict, said while the stage was still starting."""
    failed = StartupFailed(
        error.message,
        verdict=error.verdict,
        pid=error.pid,
        exit_code=error.exit_code,
        signal=error.signal,
        stderr_tail=error.stderr_tail,
        stage=error.stage,
        replica=error.replica,
        generation=error.generation,
    )
    failed.__cause__ = error.__cause__
    return failed


def _signal_name(returncode: int) -> str:
    try:
        return signal.Signals(-returncode).name
    except ValueError:
        return f"signal {-returncode}"
