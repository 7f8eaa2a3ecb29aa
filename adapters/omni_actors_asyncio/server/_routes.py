"""The omni routes, and how they get in front of an app's own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from starlette.routing import Match, Route

from ._http import Endpoint
from ._routes_chat import MediaChat
from ._routes_images import Edits, Generations
from ._routes_omni import Abort, Ready
from ._routes_speech import Speech
from ._routes_web import web_routes

if TYPE_CHECKING:
    from ._door import Door
    from ._http import Message, Receive, Send

__all__ = ["put_in_front", "routes"]

CHAT = "/v1/chat/completions"


def routes(door: Door, chat_app: Any) -> list[Route]:
    """Starlette routes. ``chat_app`` (ASGI) gets the chats that want text alone, as they came; None: we answer all."""
    return [
        Route("/ready", Endpoint(Ready(door)), methods=["GET"], name="ready"),
        Route("/v1/omni/abort", Endpoint(Abort(door)), methods=["POST"], name="omni_abort"),
        Route("/v1/audio/speech", Endpoint(Speech(door)), methods=["POST"], name="speech"),
        Route("/v1/images/generations", Endpoint(Generations(door)), methods=["POST"], name="images"),
        Route("/v1/images/edits", Endpoint(Edits(door)), methods=["POST"], name="image_edits"),
        Route(CHAT, MediaChat(door, chat_app), methods=["POST"], name="chat"),
        *web_routes(door),
    ]


def put_in_front(app: Any, door: Door) -> None:
    """Put them before the app's own routes: inside all its middleware (API keys, CORS, metrics)."""
    own = next((route for route in app.router.routes if getattr(route, "path", None) == CHAT), None)
    app.router.routes[:0] = routes(door, None if own is None else _Own(own))


class _Own:
    """A route of the app, called as it would have been."""

    def __init__(self, route: Any) -> None:
        self._route = route

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        match, more = self._route.matches(scope)
        assert match is Match.FULL, "our route has the same path and method"
        scope.update(more)
        await self._route.handle(scope, receive, send)
