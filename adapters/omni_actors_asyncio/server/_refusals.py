"""Errors as clients see them: OpenAI's shape, the right status, and nothing of the machine.

What is the client's fault is said in the runtime's own words, without paths. What is not is said in fixed words that
name the stage; the whole story, with the engine's last words, goes to the log, with the request's id.
"""

from __future__ import annotations

import re
from http import HTTPStatus
from typing import Any

import attrs

from omni_actors import (
    EdgeTimeout,
    OmniError,
    Overloaded,
    RequestTimeout,
    RuntimeClosed,
    ShuttingDown,
    StageFailed,
    StageUnavailable,
    UsageError,
)

__all__ = ["RETRY_AFTER_S", "ClientGone", "HttpError", "document", "public", "refusal", "scrubbed"]

RETRY_AFTER_S = 1
MAX_WORDS = 500
MAX_SCRUBBED = 2000
_PATH = re.compile(r"(?<![\w<:/])/(?!v1/)(?:[\w.@+-]+/)+[\w.@+-]*")


@attrs.frozen
class HttpError(Exception):
    """Raised when a request is answered with an error. ``retry_after_s``: seconds, whole."""

    status: int
    words: str
    param: str | None = None
    retry_after_s: int | None = None
    kind: str | None = None

    def __str__(self) -> str:
        return self.words


class ClientGone(Exception):
    """Raised when the client has disconnected: there is nobody to answer."""


def public(words: str) -> str:
    """Words for a client: the first line, no paths, not endless."""
    line = next((line.strip() for line in words.splitlines() if line.strip()), "")
    return _PATH.sub("<path>", line)[:MAX_WORDS]


def scrubbed(words: str) -> str:
    """Somebody else's words for a client: no paths, no traceback, not endless."""
    return _PATH.sub("<path>", words.partition("Traceback (most recent")[0].rstrip())[:MAX_SCRUBBED]


def document(error: HttpError) -> dict[str, Any]:
    """The body that an OpenAI client reads."""
    kind = error.kind or HTTPStatus(error.status).phrase
    return {"error": {"message": public(error.words), "type": kind, "param": error.param, "code": error.status}}


def refusal(error: BaseException) -> HttpError:
    """Any error as an answer."""
    if isinstance(error, HttpError):
        return error
    if isinstance(error, StageFailed | EdgeTimeout | StageUnavailable):
        words = {StageFailed: "failed at this request", EdgeTimeout: "did not answer in time"}
        what = words.get(type(error), "cannot take this request now")
        return HttpError(503, f"stage {error.stage} {what}; try again", retry_after_s=RETRY_AFTER_S)
    if isinstance(error, RequestTimeout):
        return HttpError(504, "the request did not finish in the time that this server gives one")
    if isinstance(error, Overloaded | ShuttingDown):
        return HttpError(503, error.message, retry_after_s=RETRY_AFTER_S)
    if isinstance(error, RuntimeClosed):
        return HttpError(503, "the server is stopping", retry_after_s=RETRY_AFTER_S)
    if isinstance(error, UsageError):
        return HttpError(400, error.message)
    if isinstance(error, OmniError) and error.stage is not None:
        return HttpError(500, f"stage {error.stage} could not serve this request")
    return HttpError(500, "the server failed at this request")
