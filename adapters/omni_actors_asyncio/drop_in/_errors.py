"""Our errors as vLLM-Omni's: what its users catch, and what its serving layer makes a status of.

Ours is always the ``__cause__``. ``error_stage_id`` is what its server puts beside the words.
"""

from __future__ import annotations

import re
from http import HTTPStatus
from typing import TYPE_CHECKING

from vllm.exceptions import GracefulHTTPError
from vllm.v1.engine.exceptions import EngineGenerateError
from vllm_omni.entrypoints.omni_base import OmniEngineDeadError
from vllm_omni.errors import OmniClientError

from omni_actors import (
    EdgeTimeout,
    OmniError,
    Refused,
    RequestTimeout,
    RuntimeClosed,
    StageFailed,
    StageUnavailable,
    TransformFailed,
    UsageError,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["RequestLost", "as_vllm_omni"]

_PID = re.compile(r" \(pid \d+\)")
_STATUS = {
    TransformFailed: 502,
    StageFailed: 503,
    StageUnavailable: 503,
    EdgeTimeout: 503,
    Refused: 503,
    RequestTimeout: 504,
}


class RequestLost(EngineGenerateError, GracefulHTTPError):  # type: ignore[misc]  # vLLM has no types for mypy
    """Raised when one request failed and the others go on. ``http_status``: 502 for what one stage could not hand to
    the next, 503 where a stage died or cannot take it now, 504 past its deadline, else 500.
    """

    def __init__(self, words: str, status: int, stage_id: int | None) -> None:
        GracefulHTTPError.__init__(self, words, HTTPStatus(status))
        self.error_stage_id = stage_id


def as_vllm_omni(error: BaseException, stage_ids: Mapping[str, int]) -> BaseException:
    """The exception that vLLM-Omni's users expect in its place. What is not ours stays as it is."""
    if not isinstance(error, OmniError):
        return error
    stage_id = stage_ids.get(error.stage or "")
    made: BaseException
    if isinstance(error, RuntimeClosed):
        made = OmniEngineDeadError(error.message)
    elif isinstance(error, UsageError):
        made = OmniClientError(error.message)
        made.error_stage_id = stage_id  # type: ignore[attr-defined]
    else:
        status = next((code for kind, code in _STATUS.items() if isinstance(error, kind)), 500)
        made = RequestLost(_words(error), status, stage_id)
    made.__cause__ = error
    return made


def _words(error: OmniError) -> str:
    """One line that names the stage and the cause, and nothing of the machine."""
    if isinstance(error, StageFailed):
        how = error.signal or (None if error.exit_code is None else f"exit code {error.exit_code}") or error.verdict
        return f"stage {error.stage} died under this request ({how}); try again"
    line = _PID.sub("", error.message.partition("\n")[0].removesuffix("; its last words:"))
    return line if error.stage is None or error.stage in line else f"stage {error.stage}: {line}"
