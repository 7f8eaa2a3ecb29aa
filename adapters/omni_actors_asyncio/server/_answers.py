"""Errors on their way out, whoever made them: OpenAI's shape, the right status, and nothing of the machine.

The outermost middleware. What a route says of a client's fault goes out in its words, without paths; what is not the
client's fault goes to the log, and the client gets fixed words. A 501 is a client's fault here: it asked for what this
pipeline does not do. Answers that are no errors pass untouched.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import msgspec

from ._http import JSON
from ._refusals import RETRY_AFTER_S, HttpError, document, refusal, scrubbed

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from ._http import Message, Receive, Send

__all__ = ["Answers"]

logger = logging.getLogger("omni_actors.serve")
_MAX_HELD_BYTES = 1 << 20
_RETRY = (429, 503)


class Answers:
    """The ASGI middleware."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        answer = _Answer(scope, send)
        try:
            await self._app(scope, receive, answer.send)
        except Exception as error:  # whatever it is belongs to this request alone
            logger.exception("%s %s", scope["method"], scope["path"])
            if answer.started:
                raise  # the server cuts the answer off, which the client sees
            await _send(send, refusal(error))


class _Answer:
    """One answer. An error is held until its body is complete, so that it can be looked at."""

    def __init__(self, scope: Message, send: Send) -> None:
        self.started = False
        self._scope, self._send = scope, send
        self._head: Message | None = None
        self._body = bytearray()

    def send(self, message: Message) -> Awaitable[None]:
        """Each token comes by here: there is no coroutine of our own in its way."""
        if message["type"] == "http.response.start" and message["status"] >= 400:
            self._head = message
        elif self._head is None:
            self.started = True
            return self._send(message)
        return self._hold(self._head, message)

    async def _hold(self, head: Message, message: Message) -> None:
        self._body += message.get("body", b"")
        if len(self._body) > _MAX_HELD_BYTES:
            raise OverflowError(f"an error of more than {_MAX_HELD_BYTES} bytes")
        if message["type"] == "http.response.body" and not message.get("more_body", False):
            await self._release(head)

    async def _release(self, head: Message) -> None:
        self.started = True
        status, body = head["status"], bytes(self._body)
        if status == 500:
            logger.error("%s %s: 500: %s", self._scope["method"], self._scope["path"], body.decode(errors="replace"))
        status, body = _rewritten(status, body)
        headers = [(name, value) for name, value in head["headers"] if name not in (b"content-length", b"content-type")]
        if status in _RETRY and not any(name == b"retry-after" for name, _ in headers):
            headers.append((b"retry-after", str(RETRY_AFTER_S).encode()))
        kind = JSON.encode() if body else b"text/plain"
        headers += [(b"content-length", str(len(body)).encode()), (b"content-type", kind)]
        await self._send({**head, "status": status, "headers": headers})
        await self._send({"type": "http.response.body", "body": b"" if self._scope["method"] == "HEAD" else body})


def _rewritten(status: int, body: bytes) -> tuple[int, bytes]:
    """An error in its shape. What has a shape of its own (``/ready``), or says nothing (``/health``), keeps it."""
    try:
        found = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        found = body.decode(errors="replace")
    inner = found.get("error") if isinstance(found, dict) else None
    if not body or (isinstance(found, dict) and inner is None and "detail" not in found):
        return status, body
    if status == 501:
        status = 400
    if not isinstance(inner, dict):
        found = document(HttpError(status, _words(found)))
        inner = found["error"]
    inner["message"] = scrubbed(str(inner.get("message")))
    if status == 500:
        inner["message"] = refusal(RuntimeError()).words
    if "code" in inner:
        inner["code"] = status
    return status, msgspec.json.encode(found)


def _words(found: Any) -> str:
    if isinstance(found, dict):
        found = found.get("error") or found.get("detail")
    return found if isinstance(found, str) else msgspec.json.encode(found).decode()


async def _send(send: Send, error: HttpError) -> None:
    body = msgspec.json.encode(document(error))
    headers = [(b"content-type", JSON.encode()), (b"content-length", str(len(body)).encode())]
    if error.retry_after_s is not None:
        headers.append((b"retry-after", str(error.retry_after_s).encode()))
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
