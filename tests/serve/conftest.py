"""The omni routes on fake engines, asked by an ASGI client that can also leave."""

from __future__ import annotations

import asyncio
import base64
import json
import struct
import warnings
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import attrs
import httpx
import pytest
import uvloop
from starlette.applications import Starlette

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # torch's own, when vLLM imports it
    from omni_actors_asyncio import AsyncOmni
    from omni_actors_asyncio.server import Door, routes
    from omni_actors_asyncio.server._door import Rendered
    from omni_actors_asyncio.server._gate import guard

from omni_actors.config import PipelineSpec
from omni_actors.testing import MemoryWorld
from omni_actors.testing.rigs import speech

from .server_process import Lent

RATE = 24_000
PIECES = ((0.5, -0.5, 0.25), (1.5, -1.5), (0.0, 0.125, -0.125, 0.75))
"""What the fake vocoder says; the second piece is too loud."""
PCM = b"".join(struct.pack("<h", int(max(-1, min(1, sample)) * 32767)) for piece in PIECES for sample in piece)


@pytest.fixture(scope="session")
def lent() -> Iterator[Lent]:
    """A real server of a model named answers."""
    lent = Lent("--", "--served-model-name", "answers")
    try:
        yield lent
    finally:
        lent.close()


@pytest.fixture
def http(server) -> Iterator[httpx.Client]:
    """A client of the module's server process."""
    with server.client() as http:
        yield http


def chunk(piece: tuple[float, ...]) -> dict[str, Any]:
    data = base64.b64encode(struct.pack(f"<{len(piece)}f", *piece)).decode()
    tensor = {"dtype": "float32", "shape": [len(piece)], "data": data}
    return {"tensors": {"audio": tensor}, "meta": {"sample_rate": RATE}}


def speaking(**more: Any) -> PipelineSpec:
    """Thinker, talker, and a vocoder that says PIECES."""
    vocoder = {"script": [[chunk(piece) for piece in PIECES]], **more.pop("vocoder", {})}
    return speech(vocoder=vocoder, **more)


def endless(**more: Any) -> PipelineSpec:
    """One whose vocoder does not come to an end."""
    return speech(vocoder={"chunks": 100_000, "chunk_s": 0.002}, **more)


async def echo_app(scope, receive, send) -> None:
    """In vLLM's place: answers with the body that it got."""
    body, more = b"", True
    while more:
        message = await receive()
        body, more = body + message["body"], message["more_body"]
    await send({"type": "http.response.start", "status": 200, "headers": [(b"x-who", b"theirs")]})
    await send({"type": "http.response.body", "body": body})


async def render(fields: Mapping[str, Any]) -> Rendered:
    """In vLLM's place: the messages as they are, and the params that a fake core knows."""
    sampling = {name: fields[name] for name in ("n", "seed", "max_tokens") if name in fields}
    usage = (fields.get("stream_options") or {}).get("include_usage", False)
    return Rendered(prompt=fields["messages"], sampling=sampling, usage=usage)


@attrs.frozen
class Served:
    """A server without a socket: ``http`` for whole answers, ``visit`` for who leaves in the middle."""

    omni: AsyncOmni
    app: Any
    http: httpx.AsyncClient

    async def post(self, path: str, document: Any, **headers: str) -> httpx.Response:
        body = document if isinstance(document, bytes) else json.dumps(document).encode()
        return await self.http.post(path, content=body, headers=headers)

    async def events(self, document: Any) -> list[Any]:
        """The events of a streamed chat, without the last, which is [DONE]."""
        answer = await self.post("/v1/chat/completions", document)
        assert answer.headers["content-type"].startswith("text/event-stream")
        *events, done = [line.removeprefix("data: ") for line in answer.text.split("\n\n") if line]
        assert done == "[DONE]"
        return [json.loads(event) for event in events]

    def visit(self, path: str, document: Any) -> Visit:
        return Visit(self.app, path, json.dumps(document).encode())

    async def idle_within(self, limit_s: float) -> bool:
        """Whether the runtime holds nothing within so many seconds; each look is a round trip to it."""
        async with asyncio.timeout(limit_s):
            while True:
                statistics = await self.omni.statistics()
                if not (statistics.requests or statistics.leases):
                    return True


class Visit:
    """One request whose client reads ``messages`` as they come, and may leave."""

    def __init__(self, app: Any, path: str, body: bytes) -> None:
        self.messages: asyncio.Queue[Any] = asyncio.Queue()
        self._inbox: asyncio.Queue[Any] = asyncio.Queue()
        self._inbox.put_nowait({"type": "http.request", "body": body, "more_body": False})
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "method": "POST",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": [],
            "client": ("127.0.0.1", 1),
        }
        self._task = asyncio.ensure_future(app(scope, self._inbox.get, self._put))

    async def _put(self, message: Any) -> None:
        self.messages.put_nowait(message)

    async def leave(self) -> None:
        """Returns when the server has noticed, and is done with it."""
        self._inbox.put_nowait({"type": "http.disconnect"})
        await self._task


@asynccontextmanager
async def opened(spec: PipelineSpec, *, real: bool = False, **how: Any) -> AsyncIterator[Served]:
    """``real``: engines are processes, as in life."""
    async with AsyncOmni(spec, **({} if real else {"world": MemoryWorld()})) as omni:
        door = Door(omni=omni, models=("fake", "alias"), **{"render": render, **how})
        app = Starlette(routes=routes(door, echo_app))
        guard(app, door.limits)
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://server") as http:
            yield Served(omni, app, http)


@pytest.fixture
def serving() -> Callable[..., Any]:
    """``serving(spec, story)``: run ``story(served)`` on uvloop, bounded."""

    def serving(spec: PipelineSpec, story: Callable[[Served], Any], *, within_s: float = 30, **how: Any) -> Any:
        async def main() -> Any:
            async with asyncio.timeout(within_s), opened(spec, **how) as served:
                return await story(served)

        return uvloop.run(main())

    return serving
