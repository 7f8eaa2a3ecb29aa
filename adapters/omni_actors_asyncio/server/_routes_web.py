"""The web page: ``GET /``, its files below ``/omni/``, and what it watches: ``GET /v1/omni/state``.

The page speaks to this server alone, which its Content-Security-Policy makes sure of. The files ship in ``web/`` and
are read once. Watching is under ``/v1``, where API keys guard it.
"""

from __future__ import annotations

import asyncio
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import attrs
from starlette.routing import Route

from omni_actors import RuntimeClosed

from ._http import SSE, Endpoint
from ._refusals import HttpError
from ._state import SAMPLE_S, View, changed, closed, document

if TYPE_CHECKING:
    from ._door import Door
    from ._http import Exchange

__all__ = ["web_routes"]

MAX_WATCHERS = 64
"""Of one server. Each costs a look per change, and a connection."""
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "media-src blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}
_KINDS = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
}


def web_routes(door: Door) -> list[Route]:
    """Starlette routes."""
    made = [Route("/v1/omni/state", Endpoint(State(door)), methods=["GET"], name="omni_state")]
    for name, asset in _assets().items():
        path = "/" if name == "index.html" else f"/omni/{name}"
        made.append(Route(path, Endpoint(asset), methods=["GET"], name=f"web_{name}", include_in_schema=False))
    return made


def _assets() -> dict[str, Asset]:
    found = [file for file in files(__package__).joinpath("web").iterdir() if file.is_file()]
    return {file.name: Asset(_KINDS[file.name.rpartition(".")[2]], file.read_bytes()) for file in found}


@attrs.frozen
class Asset:
    """A file of the page."""

    kind: str
    data: bytes

    async def __call__(self, exchange: Exchange) -> None:
        await exchange.begin(self.kind, headers={**_HEADERS, "content-length": str(len(self.data))})
        await exchange.write(self.data)
        await exchange.end()


class State:
    """Server-sent events: the pipeline as it is, sent when it changes, at most each ``SAMPLE_S``, at least each 10 s.

    Ends when the client leaves, and with a last event that says so when the runtime does. A slow reader misses what was
    in between, and gets what is.
    """

    def __init__(self, door: Door) -> None:
        self._door = door
        self._watchers = 0

    async def __call__(self, exchange: Exchange) -> None:
        if self._watchers >= MAX_WATCHERS:
            raise HttpError(429, f"{MAX_WATCHERS} clients watch this server already", retry_after_s=10)
        self._watchers += 1
        try:
            await exchange.unless_gone(self._show(exchange))
        finally:
            self._watchers -= 1

    async def _show(self, exchange: Exchange) -> None:
        view: View | None = None
        await exchange.begin(SSE, headers={"cache-control": "no-store", "x-accel-buffering": "no"})
        while (view := await self._next(view)) is not None:
            await exchange.event(self._document(view))
            await asyncio.sleep(SAMPLE_S)
        await exchange.event(self._document(closed()))
        await exchange.end()

    async def _next(self, last: View | None) -> View | None:
        """None when there is no runtime any more."""
        try:
            view: View = await self._door.omni._cross(changed, last)
        except RuntimeClosed:
            return None
        return view

    def _document(self, view: View) -> dict[str, Any]:
        return document(view, self._door.omni._bridge.omni.spec, tuple(self._door.models))
