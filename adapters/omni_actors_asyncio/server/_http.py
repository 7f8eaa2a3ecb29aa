"""One HTTP request and its one answer, on ASGI: what the omni routes need of a web framework, and no more.

An ``Exchange`` belongs to one task. The body is read first, within a limit; from then on ``unless_gone`` watches for
the client's leaving, and cancels the work: leaving is the abort, in every stage.
"""

from __future__ import annotations

import asyncio
import logging
import re
import uuid
from typing import TYPE_CHECKING, Any

import msgspec

from ._refusals import ClientGone, HttpError, document, refusal

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Mapping, MutableMapping

    Message = MutableMapping[str, Any]
    Receive = Callable[[], Awaitable[Message]]
    Send = Callable[[Message], Awaitable[None]]

__all__ = ["JSON", "SSE", "Endpoint", "Exchange", "replay"]

logger = logging.getLogger("omni_actors.serve")
JSON = "application/json"
SSE = "text/event-stream; charset=utf-8"
_REQUEST_ID = re.compile(r"[\w.:-]{1,128}")


class Exchange:
    """See the module. ``started`` once a status was sent; ``request_id`` is the client's X-Request-Id, or a new one."""

    def __init__(self, scope: Message, receive: Receive, send: Send) -> None:
        self.scope, self.started = scope, False
        self._receive, self._send = receive, send
        self._content_type = ""
        self.headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        given = self.headers.get("x-request-id", "")
        self.request_id = given if _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex

    @property
    def key(self) -> str:
        """Who asks: the API key, else the address."""
        client = self.scope.get("client") or ("",)
        return self.headers.get("authorization") or str(client[0])

    # ------------------------------------------------------------------ in

    async def body(self, limit: int) -> bytes:
        """All of it. Raises HttpError (413) before more than ``limit`` bytes are held, ClientGone."""
        declared = self.headers.get("content-length", "")
        if declared.isdecimal() and int(declared) > limit:
            raise HttpError(413, f"the body has {declared} bytes; {limit} are allowed")
        pieces, size, more = [], 0, True
        while more:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientGone
            pieces.append(message.get("body", b""))
            size, more = size + len(pieces[-1]), message.get("more_body", False)
            if size > limit:
                raise HttpError(413, f"the body has more than the {limit} bytes that are allowed")
        return b"".join(pieces)

    async def unless_gone(self, work: Coroutine[Any, Any, None]) -> None:
        """Do it; when the client leaves meanwhile, cancel it and wait until it has ended. Then raises ClientGone."""
        working, gone = asyncio.ensure_future(work), asyncio.ensure_future(self._left())
        try:
            await asyncio.wait((working, gone), return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                raise ClientGone
        finally:
            gone.cancel()
            working.cancel()
            await asyncio.wait((working, gone))  # as long as an abort takes: bounded by abort_s
            if not working.cancelled():
                working.exception()  # seen, also where ClientGone goes up instead
        working.result()

    async def _left(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass

    def receive(self) -> Awaitable[Message]:
        """For an app that answers in its place."""
        return self._receive()

    # ------------------------------------------------------------------ out

    def began(self, message: Message) -> None:
        """An app that answers in its place sends this status: ``fail`` goes on from there."""
        content_type = dict(message["headers"]).get(b"content-type", b"").decode("latin-1")
        self.started, self._content_type = True, SSE if content_type.startswith("text/event-stream") else ""

    def send(self, message: Message) -> Awaitable[None]:
        """For an app that answers in its place."""
        return self._send(message)

    async def begin(self, content_type: str, *, status: int = 200, headers: Mapping[str, str] | None = None) -> None:
        """Send the status. What follows is ``write`` and ``end``."""
        self.started, self._content_type = True, content_type
        lines = {"content-type": content_type, "x-request-id": self.request_id, **(headers or {})}
        raw = [(name.encode(), value.encode("latin-1")) for name, value in lines.items()]
        await self._send({"type": "http.response.start", "status": status, "headers": raw})

    async def write(self, data: bytes) -> None:
        """A piece of the body. Waits for a client that reads slowly."""
        if data:
            await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def event(self, data: Any) -> None:
        """A server-sent event; the body's ``begin`` was with ``SSE``."""
        encoded = data if isinstance(data, bytes) else msgspec.json.encode(data)
        await self.write(b"data: " + encoded + b"\n\n")

    async def comment(self, name: str, data: Any) -> None:
        """Among server-sent events, a line that their readers pass over, unless they look for it."""
        await self.write(b": " + name.encode() + b" " + msgspec.json.encode(data) + b"\n\n")

    async def end(self) -> None:
        """The body is complete."""
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def json(self, data: Any, *, status: int = 200, headers: Mapping[str, str] | None = None) -> None:
        """A whole answer."""
        body = msgspec.json.encode(data)
        await self.begin(JSON, status=status, headers={"content-length": str(len(body)), **(headers or {})})
        await self._send({"type": "http.response.body", "body": body, "more_body": False})

    async def fail(self, error: BaseException) -> None:
        """Answer with an error. In the middle of events it is one; other bodies stay incomplete, which clients see."""
        answer = refusal(error)
        if answer.status >= 500:
            known = answer.status != 500
            logger.warning("request %s: %s: %s", self.request_id, type(error).__name__, error, exc_info=not known)
        if not self.started:
            retry = {} if answer.retry_after_s is None else {"retry-after": str(answer.retry_after_s)}
            await self.json(document(answer), status=answer.status, headers=retry)
        elif self._content_type == SSE:
            await self.event(document(answer))
            await self.event(b"[DONE]")
            await self.end()


class Endpoint:
    """An ASGI app of one function, which answers, or raises what ``refusal`` makes an answer of."""

    def __init__(self, answer: Callable[[Exchange], Awaitable[None]]) -> None:
        self._answer = answer

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        exchange = Exchange(scope, receive, send)
        try:
            await self._answer(exchange)
        except ClientGone:
            logger.debug("request %s: the client left", exchange.request_id)
        except Exception as error:  # whatever it is belongs to this request alone
            await exchange.fail(error)


def replay(body: bytes, receive: Receive) -> Receive:
    """A ``receive`` that begins with a body which was read already."""
    unread = [body]

    async def again() -> Message:
        if unread:
            return {"type": "http.request", "body": unread.pop(), "more_body": False}
        return await receive()

    return again
