"""Our errors as vLLM's, for apps that were written for AsyncLLM; ours is always the ``__cause__``.

vLLM's server maps them: a client error to 4xx, a ``GracefulHTTPError`` to its own status, the others to 500.
"""

from __future__ import annotations

from http import HTTPStatus

from vllm.exceptions import GracefulHTTPError, VLLMValidationError
from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

from omni_actors import OmniError, Refused, RuntimeClosed, StageUnavailable, UsageError

__all__ = ["as_vllm", "busy", "dead"]


def as_vllm(error: BaseException) -> BaseException:
    """The exception that AsyncLLM's users expect in its place. What is not ours stays as it is."""
    if not isinstance(error, OmniError):
        return error
    made: BaseException
    if isinstance(error, RuntimeClosed):
        made = dead(error.message)
    elif isinstance(error, UsageError):
        made = VLLMValidationError(error.message)
    elif isinstance(error, Refused | StageUnavailable):
        made = busy(error.message)
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
