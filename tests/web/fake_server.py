"""The omni routes on fake engines in memory, behind a real socket, in a thread of their own."""

from __future__ import annotations

import asyncio
import base64
import math
import signal
import struct
import threading
import warnings
from typing import Any

import attrs
import uvicorn
import uvloop
from starlette.applications import Starlette

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # torch's own, when vLLM imports it
    from omni_actors_asyncio import AsyncOmni
    from omni_actors_asyncio.server import Door, routes
    from omni_actors_asyncio.server._body import plain
    from omni_actors_asyncio.server._door import Rendered
    from omni_actors_asyncio.server._http import SSE, Exchange
    from vllm.entrypoints.serve.middleware.authenticate import AuthenticationMiddleware

from omni_actors.config import InputSpec, PipelineSpec
from omni_actors.testing import MemoryWorld
from omni_actors.testing.rigs import core, omni_stage, pipeline, speech

RATE = 24_000
PIECE_S = 0.2
PIECES = 5
TEXT = "Two plus three is five."


def tone() -> dict[str, Any]:
    """A fifth of a second of sound."""
    samples = [0.5 * math.sin(2 * math.pi * 440 * i / RATE) for i in range(int(RATE * PIECE_S))]
    data = base64.b64encode(struct.pack(f"<{len(samples)}f", *samples)).decode()
    tensor = {"dtype": "float32", "shape": [len(samples)], "data": data}
    return {"tensors": {"audio": tensor}, "meta": {"sample_rate": RATE}}


def speaking(*, pieces: int = PIECES, **thinker: Any) -> PipelineSpec:
    """Says TEXT, and a fifth of a second of sound per piece."""
    vocoder = {"script": [[tone()] * pieces], "chunk_s": 0.02}
    return speech(thinker={"script": [TEXT], **thinker}, vocoder=vocoder)


def endless() -> PipelineSpec:
    """One that begins to speak at once, and does not come to an end."""
    return speech(thinker={"script": [TEXT]}, vocoder={"script": [[tone()] * 4_000], "chunk_s": 0.02})


def slow_vocoder(spec: PipelineSpec, start_s: float) -> PipelineSpec:
    """One whose vocoder takes so long to start."""
    *others, vocoder = spec.stages
    args = {**vocoder.engine_args, "start_s": start_s}
    return attrs.evolve(spec, stages=(*others, attrs.evolve(vocoder, engine_args=args)))


def painting() -> PipelineSpec:
    """Says TEXT, and paints two pictures of one colour each."""
    data = [base64.b64encode(bytes(colour) * 64).decode() for colour in ((255, 0, 0), (0, 0, 255))]
    tensors = [{"image": {"dtype": "uint8", "shape": [8, 8, 3], "data": each}} for each in data]
    script = [[{"tensors": each, "meta": {"seed": 7}} for each in tensors]]
    how = {"inputs": [InputSpec(stage="thinker")], "transform": "omni_actors.testing.pipelines:voice"}
    painter = omni_stage("painter", output="image", script=script, **how)
    return pipeline(core("thinker", output="text", script=[TEXT]), painter)


def silent(text: str) -> PipelineSpec:
    """A pipeline without sound; it says this."""
    return pipeline(core("thinker", output="text", script=[text]))


class FakeServer:
    """``url`` once it serves. ``close`` is the orderly end, ``vanish`` a crash: connections break, nobody listens."""

    def __init__(self, spec: PipelineSpec, *, key: str | None = None, port: int = 0, **door: Any) -> None:
        self._spec, self._key, self._port, self._how = spec, key, port, door
        self._world = MemoryWorld()
        self._serving = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._live, name="fake server")
        self._thread.start()
        assert self._serving.wait(30)
        assert self._failure is None, self._failure

    def _live(self) -> None:
        try:
            uvloop.run(self._main())
        except BaseException as error:
            self._failure = error
        finally:
            self._serving.set()

    async def _main(self) -> None:
        self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        async with AsyncOmni(self._spec, world=self._world) as self._omni:
            config = uvicorn.Config(
                self._app(), port=self._port, log_config=None, interface="asgi3", lifespan="off", ws="none"
            )
            self._uvicorn = uvicorn.Server(config)
            serving = asyncio.ensure_future(self._uvicorn.serve())
            while not self._uvicorn.started:
                await asyncio.wait((serving,), timeout=0.01)
            self.port = self._uvicorn.servers[0].sockets[0].getsockname()[1]
            self._serving.set()
            await self._end.wait()
            await self._omni.close(drain_s=0)
            self._uvicorn.should_exit = True
            await serving

    def _app(self) -> Any:
        door = Door(omni=self._omni, models=("fake",), render=_render, **self._how)
        app: Any = Starlette(routes=routes(door, _Texts(self._omni)))
        return app if self._key is None else AuthenticationMiddleware(app, [self._key])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def signal(self, stage: str, number: signal.Signals) -> None:
        """To a stage's engine."""
        self._omni._bridge.post(lambda: self._world.launcher.find(stage).kill(number))

    def vanish(self) -> None:
        def cut() -> None:
            self._uvicorn.force_exit = True
            for server in self._uvicorn.servers:
                server.close()
            for connection in list(self._uvicorn.server_state.connections):
                connection.transport.abort()
            self._end.set()

        self._loop.call_soon_threadsafe(cut)
        self._joined()

    def close(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._end.set)
            self._joined()

    def _joined(self) -> None:
        self._thread.join(30)
        assert not self._thread.is_alive()
        assert self._failure is None, self._failure


async def _render(fields: Any) -> Rendered:
    usage = (fields.get("stream_options") or {}).get("include_usage", False)
    return Rendered(prompt=fields["messages"], sampling={}, usage=usage)


class _Texts:
    """In vLLM's place, for chats without sound: the text comes at once, so that markup in it would be whole."""

    def __init__(self, omni: AsyncOmni) -> None:
        self._omni = omni

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        exchange = Exchange(scope, receive, send)
        asked = plain(await exchange.body(1 << 20))
        identity = f"chatcmpl-{exchange.request_id}"
        await exchange.begin(SSE)
        async with self._omni.generate_omni(asked["messages"], request_id=identity) as stream:
            text = "".join([output.text async for output in stream])
        await exchange.event({"id": identity, "choices": [{"index": 0, "delta": {"content": text}}]})
        await exchange.event(b"[DONE]")
        await exchange.end()
