"""What stands before every route, vLLM's own included: ``guard(app, limits)``.

Inside of the app's other middleware (API keys first, then this): the body is read within its limits of size and time,
checked, and handed on as it came; the request is counted under its key, and has a deadline. Its end looks to the route
like a client that leaves, which every route knows how to do: that is the abort. State: the counts of one server.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from starlette.middleware import Middleware

from ._answers import Answers
from ._checks import checked
from ._http import Exchange
from ._limits import Keys
from ._refusals import ClientGone, HttpError

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from ._http import Message, Receive, Send
    from ._limits import HttpLimits

__all__ = ["guard"]

_WITH_BODY = ("POST", "PUT", "PATCH", "DELETE")
_NEVER_COUNTED = "/v1/omni/abort"
"""Who has as many requests running as allowed must be able to end one."""
_UPLOADS = (
    "/v1/audio/transcriptions", "/v1/audio/translations", "/v1/audio/voices", "/v1/images/edits", "/v1/videos",
    "/v1/videos/sync",
)  # fmt: skip
"""Their bodies are forms with files. All others are JSON, whatever their Content-Type says."""
_IN_THE_LOOP_BYTES = 256 << 10
"""A larger body is checked in a thread: other requests' tokens do not wait for it."""
LAST_WORDS_S = 5.0
"""For a client that does not read, to take the news that its time is over."""


def guard(app: Any, limits: HttpLimits) -> None:
    """Put it around a Starlette app that has not served yet."""
    app.user_middleware.append(Middleware(Gate, limits=limits))
    app.user_middleware.insert(0, Middleware(Answers))
    app.middleware_stack = None  # vLLM's app has built it already; it is built again when it is next called


class Gate:
    """The ASGI middleware."""

    def __init__(self, app: Any, limits: HttpLimits) -> None:
        self._app, self._limits, self._keys = app, limits, Keys(limits.requests_per_key)

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] not in _WITH_BODY:
            await self._app(scope, receive, send)
            return
        exchange = Exchange(scope, receive, send)
        try:
            body = await self._checked(exchange)
            if scope["path"] == _NEVER_COUNTED:
                await self._pass_on(body, exchange)
            else:
                with self._keys.one(exchange.key):
                    await self._pass_on(body, exchange)
        except ClientGone:
            pass
        except HttpError as error:
            await exchange.fail(error)

    async def _checked(self, exchange: Exchange) -> bytes:
        try:
            async with asyncio.timeout(self._limits.body_s):
                body = await exchange.body(self._limits.body_bytes)
        except TimeoutError as error:
            raise HttpError(408, f"the body did not arrive within {self._limits.body_s:g} s") from error
        if not body or exchange.scope["path"] in _UPLOADS:
            pass
        elif len(body) <= _IN_THE_LOOP_BYTES:
            checked(body, self._limits)
        else:
            await asyncio.to_thread(checked, body, self._limits)
        return body

    async def _pass_on(self, body: bytes, exchange: Exchange) -> None:
        watch = _Watch(body, exchange, asyncio.get_running_loop().time() + self._limits.request_s)
        await self._app(exchange.scope, watch.receive, watch.send)
        if watch.expired and not watch.complete:
            words = f"the request did not finish within the {self._limits.request_s:g} s that this server gives one"
            async with asyncio.timeout(LAST_WORDS_S):
                await exchange.fail(HttpError(504, words))


class _Watch:
    """``receive`` and ``send`` of one request. From the deadline on, the client has left, and nothing is sent."""

    def __init__(self, body: bytes, exchange: Exchange, deadline: float) -> None:
        self.expired = self.complete = False
        self._unread: bytes | None = body
        self._exchange, self._deadline = exchange, deadline

    async def receive(self) -> Message:
        if self._unread is not None:
            body, self._unread = self._unread, None
            return {"type": "http.request", "body": body, "more_body": False}
        try:
            async with asyncio.timeout_at(self._deadline):
                return await self._exchange.receive()
        except TimeoutError:
            self.expired = True
            return {"type": "http.disconnect"}

    def send(self, message: Message) -> Awaitable[None]:
        """Each token comes by here: there is no coroutine of our own in its way."""
        if self.expired:
            return _dropped()
        if message["type"] == "http.response.start":
            self._exchange.began(message)
        else:
            self.complete = not message.get("more_body", False)
        return self._exchange.send(message)


async def _dropped() -> None:
    """There is nobody any more to send it to."""
