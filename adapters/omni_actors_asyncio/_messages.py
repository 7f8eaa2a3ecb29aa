"""What ``AsyncOmniEngine`` hands out: one request's news per message, in the shape that vLLM-Omni's callers know."""

from __future__ import annotations

from typing import Literal

import msgspec

from omni_actors import (
    EngineDead,
    Output,
    Refused,
    RequestTimeout,
    RuntimeClosed,
    StageFailed,
    StageUnavailable,
    Terminal,
    UsageError,
)

__all__ = ["ErrorMessage", "Message", "OutputMessage", "failed"]


class OutputMessage(msgspec.Struct, frozen=True, kw_only=True):
    """Something new of one request, from one stage; or, ``finished``, its end, with everything in ``terminal``.

    ``stage_id`` counts the pipeline's stages from 0. An aborted request ends like this too: ``terminal.kind`` tells;
    without a ``terminal`` it was aborted before the runtime had taken it.
    """

    request_id: str
    stage_id: int
    engine_outputs: tuple[Output, ...] = ()
    finished: bool = False
    terminal: Terminal | None = None
    type: Literal["output"] = "output"


class ErrorMessage(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a request that was refused or failed; others go on, unless ``fatal``: the runtime is gone.

    ``stage_id`` is None where no stage is to blame. ``terminal`` has what was made before; None for a refusal.
    """

    request_id: str
    error: str
    error_type: str
    status_code: int
    stage_id: int | None = None
    fatal: bool = False
    terminal: Terminal | None = None
    type: Literal["error"] = "error"


Message = OutputMessage | ErrorMessage


def failed(request_id: str, error: Exception, stage_id: int | None, terminal: Terminal | None = None) -> ErrorMessage:
    """The message for this error; ``status_code`` is what an HTTP server would answer."""
    return ErrorMessage(
        request_id=request_id,
        error=str(error) or type(error).__name__,
        error_type=type(error).__name__,
        status_code=_status(error),
        stage_id=stage_id,
        fatal=isinstance(error, RuntimeClosed),
        terminal=terminal,
    )


def _status(error: Exception) -> int:
    if isinstance(error, Refused | RuntimeClosed | StageUnavailable | StageFailed | EngineDead):
        return 503
    if isinstance(error, RequestTimeout):
        return 504
    return 400 if isinstance(error, UsageError) else 500
