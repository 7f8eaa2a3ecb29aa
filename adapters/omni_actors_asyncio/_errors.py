"""Our errors as vLLM's, for apps that were written for AsyncLLM; ours is always the ``__cause__``.

vLLM's server maps them: a client error to 4xx, a ``GracefulHTTPError`` to its own status, the others to 500.
"""

from __future__ import annotations

from http import HTTPStatus

from vllm.exceptions import GracefulHTTPError, VLLMError, VLLMValidationError
from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

from omni_actors import OmniError, Refused, RuntimeClosed, StageFailed, StageUnavailable, UsageError

__all__ = ["as_vllm", "busy", "dead"]


class StageLost(EngineGenerateError, GracefulHTTPError):  # type: ignore[misc]  # vLLM has no types for mypy
    """Raised when a stage died under a request: an EngineGenerateError for AsyncLLM's users, a 503 for its server.

    Its words are fit for clients; how the stage died is said by the ``__cause__``.
    """

    def __init__(self, error: StageFailed) -> None:
        words = f"stage {error.stage} failed at this request; try again"
        GracefulHTTPError.__init__(self, words, HTTPStatus.SERVICE_UNAVAILABLE)


class BadInput(VLLMValidationError, EngineGenerateError):  # type: ignore[misc]
    """Raised when vLLM's own processing of an input broke off: an EngineGenerateError, as with AsyncLLM, and a 400."""


def as_vllm(error: BaseException) -> BaseException:
    """The exception that AsyncLLM's users expect in its place. What is not ours stays as it is."""
    if not isinstance(error, OmniError):
        return error
    made: BaseException
    if isinstance(error, RuntimeClosed):
        made = dead(error.message)
    elif isinstance(error, UsageError):
        broke_off = isinstance(error.__cause__, Exception) and not isinstance(error.__cause__, ValueError | VLLMError)
        made = BadInput(error.message) if broke_off else VLLMValidationError(error.message)
    elif isinstance(error, Refused | StageUnavailable):
        made = busy(error.message)
    elif isinstance(error, StageFailed):
        made = StageLost(error)
    else:
        made = EngineGenerateError(error.message)
    made.__cause__ = error
    return made


def busy(words: str) -> GracefulHTTPError:
    """Try again later, or elsewhere."""
    return GracefulHTTPError(words, HTTPStatus.SERVICE_UNAVAILABLE)


def dead(words: str) -> EngineDeadError:
    """The end; vLLM's words for it, and then ours."""
    return EngineDeadError(words)
