"""The server's routes in a trio program: on trio-asyncio's loop, served by hypercorn over real sockets."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import anyio.to_thread
import attrs
import httpx
import openai
import pytest
import trio
from hypercorn.config import Config
from hypercorn.trio import serve
from omni_actors_asyncio.server import asyncio_loop, mounted, on_trio
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route
from trio.testing import wait_all_tasks_blocked

from omni_actors import OmniRuntime, UsageError
from omni_actors.testing import MemoryWorld
from omni_actors.testing.rigs import open_in_time, speech

from .conftest import PCM, RATE, endless, speaking

CHAT = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "hello"}]
STREAM = {"messages": MESSAGES, "modalities": ["text", "audio"], "stream": True}
SCOPE = {"type": "http", "method": "GET", "path": "/", "headers": []}


@attrs.frozen
class Embedded:
    """A service. ``stop`` makes hypercorn stop, within ``graceful_s``."""

    omni: OmniRuntime
    url: str
    http: httpx.AsyncClient
    stop: trio.Event

    async def idle_within(self, limit_s: float) -> bool:
        """Whether the runtime holds nothing, and no stage does."""
        with trio.fail_after(limit_s):
            while self.omni.statistics().requests:
                await trio.lowlevel.checkpoint()
        return not any([(await self.omni.call(stage, "has_work"))[0] for stage in ("thinker", "talker")])


def _as_it_is(omni: OmniRuntime, app: Any) -> Any:
    return app


@asynccontextmanager
async def embedded(
    spec: Any, *, service: Callable[[OmniRuntime, Any], Any] = _as_it_is, graceful_s: float = 3.0
) -> AsyncIterator[Embedded]:
    config = Config.from_mapping(bind=["127.0.0.1:0"], errorlog=None, graceful_timeout=graceful_s)
    async with (
        open_in_time(spec, within_s=30, world=MemoryWorld()) as omni,
        mounted(omni) as app,
        trio.open_nursery() as nursery,
    ):
        stop = trio.Event()
        (url,) = await nursery.start(partial(serve, service(omni, app), config, shutdown_trigger=stop.wait))
        async with httpx.AsyncClient(base_url=url, trust_env=False) as http:
            yield Embedded(omni, url, http, stop)
        stop.set()


# ---------------------------------------------------------------------- the service


def said_and_heard(url: str) -> tuple[str, bytes, Any]:
    """What the openai SDK gets: of a stream the text and the sound, and a whole answer's message."""
    asked = {"messages": MESSAGES, "modalities": ["text", "audio"], "audio": {"voice": "x", "format": "pcm16"}}
    text, sound = "", ""
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as sdk:
        with sdk.chat.completions.create(model="fake", stream=True, **asked) as stream:
            for chunk in stream:
                text += chunk.choices[0].delta.content or ""
                sound += (chunk.choices[0].delta.model_dump().get("audio") or {}).get("data") or ""
        whole = sdk.chat.completions.create(model="fake", **asked).choices[0].message
        with pytest.raises(openai.NotFoundError):
            sdk.chat.completions.create(model="other", **asked)
    return text, base64.b64decode(sound, validate=True), whole


async def test_the_openai_sdk_hears_text_and_sound():
    async with embedded(speaking()) as here:
        text, sound, whole = await trio.to_thread.run_sync(said_and_heard, here.url)
    assert sound == PCM == base64.b64decode(whole.audio.data)
    assert text == whole.content != ""


async def test_a_service_has_routes_of_its_own_beside_them():
    def service(omni: OmniRuntime, app: Any) -> Starlette:
        async def mine(request: Any) -> PlainTextResponse:
            with trio.fail_after(5):
                async with omni.generate("hello", modalities=["text"]) as stream:
                    return PlainTextResponse("".join([output.text async for output in stream]))

        return Starlette(routes=[Route("/mine", mine), Mount("/", app)])

    async with embedded(speaking(), service=service) as here:
        text = (await here.http.get("/mine")).text
        ready = await here.http.get("/ready")
        sound = await here.http.post("/v1/audio/speech", json={"input": "hello", "response_format": "pcm"})
        chat = await here.http.post(CHAT, json={"messages": MESSAGES})
    assert text == chat.json()["choices"][0]["message"]["content"] != ""
    assert (ready.status_code, ready.json()["ready"]) == (200, True)
    assert (sound.content, sound.headers["x-sample-rate"]) == (PCM, str(RATE))


@pytest.mark.parametrize("whole", [False, True])
async def test_who_leaves_frees_every_stage(whole):
    document = STREAM | ({"stream": False, "audio": {"voice": "x", "format": "wav"}} if whole else {})
    async with embedded(endless()) as here:
        with trio.CancelScope() as client:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(partial(here.http.post, CHAT, json=document))
                while not here.omni.statistics().leases:
                    await trio.lowlevel.checkpoint()
                client.cancel()
        assert await here.idle_within(2)
        (ended,) = [kind for kind, count in here.omni.statistics().ended.items() if count]
    assert ended.value == "aborted"


async def test_a_server_that_gives_up_frees_every_stage():
    async with embedded(endless(), graceful_s=0.1) as here:
        async with here.http.stream("POST", CHAT, json=STREAM) as answer:
            lines = answer.aiter_lines()
            assert json.loads((await anext(lines)).removeprefix("data: "))["object"] == "chat.completion.chunk"
            here.stop.set()
            with pytest.raises(httpx.RemoteProtocolError):
                async for _ in lines:
                    pass
        assert await here.idle_within(2)


async def test_leaving_the_mount_leaves_the_runtime_running():
    async with open_in_time(speech(), world=MemoryWorld()) as omni:
        async with mounted(omni):
            pass
        async with omni.generate("hello", modalities=["text"]) as stream:
            assert [output.text async for output in stream]


async def test_a_runtime_that_shuts_down_is_not_ready_and_takes_nothing_new():
    async with embedded(speaking()) as here:
        await here.omni.shutdown()
        ready = await here.http.get("/ready")
        refused = await here.http.post("/v1/audio/speech", json={"input": "hello"})
    assert (ready.status_code, refused.status_code, refused.headers["retry-after"]) == (503, 503, "1")


async def test_options_that_would_have_no_effect_are_refused():
    async with open_in_time(speech(), world=MemoryWorld()) as omni:
        with pytest.raises(UsageError, match="--max-model-len"):
            async with mounted(omni, extra=["--max-model-len", "5"]):
                pytest.fail("that is a stage's")


async def test_an_api_key_guards_what_is_mounted():
    async with open_in_time(speech(), world=MemoryWorld()) as omni, mounted(omni, extra=["--api-key", "K"]) as app:
        statuses: list[int] = []

        async def keep(message):
            statuses.append(message.get("status", 0))

        for headers in ([], [(b"authorization", b"Bearer K")]):
            scope = SCOPE | {"path": "/v1/models", "raw_path": b"/v1/models", "query_string": b"", "headers": headers}
            await app(scope | {"root_path": "", "client": ("127.0.0.1", 1)}, nothing, keep)
    assert [status for status in statuses if status] == [401, 200]


# ---------------------------------------------------------------------- the seam


async def nothing() -> Any:
    return {"type": "http.request", "body": b"", "more_body": False}


async def said_nothing(message: Any) -> None:
    """A client that takes what comes."""


async def test_an_app_is_in_asyncio_and_its_threads_are():
    seen: dict[str, Any] = {}

    async def app(scope, receive, send):
        seen["loop"] = asyncio.get_running_loop()
        seen["task"] = asyncio.current_task()
        seen["anyio"] = await anyio.to_thread.run_sync(lambda: 1)
        with ThreadPoolExecutor(1) as pool:
            seen["executor"] = await seen["loop"].run_in_executor(
                executor=pool, func=lambda: 2
            )  # by name, as vLLM does
        seen["thread"] = await asyncio.to_thread(lambda: 3)
        await send(await receive())

    async def keep(message):
        seen["sent"] = message

    async with asyncio_loop():
        await on_trio(app)(SCOPE, nothing, keep)
    assert seen["task"] is not None
    assert (seen["anyio"], seen["executor"], seen["thread"]) == (1, 2, 3)
    assert seen["sent"] == await nothing()


async def test_a_slow_client_holds_up_its_own_app():
    made: list[int] = []
    reading = trio.Event()

    async def app(scope, receive, send):
        for number in range(3):
            made.append(number)
            await send({"type": "http.response.body"})

    async def send(message):
        await reading.wait()

    async with asyncio_loop(), trio.open_nursery() as nursery:
        nursery.start_soon(on_trio(app), SCOPE, nothing, send)
        await wait_all_tasks_blocked()
        assert made == [0]
        reading.set()
    assert made == [0, 1, 2]


async def test_a_call_that_is_cancelled_ends_when_its_app_has_cleaned_up():
    story: list[str] = []

    async def app(scope, receive, send):
        try:
            await receive()
        except asyncio.CancelledError:
            story.append("cancelled")
            await asyncio.to_thread(lambda: None)
            story.append("clean")
            raise

    async with asyncio_loop(), trio.open_nursery() as nursery:
        nursery.start_soon(on_trio(app), SCOPE, trio.sleep_forever, nothing)
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert story == ["cancelled", "clean"]


async def test_what_an_app_raises_is_its_callers():
    async def app(scope, receive, send):
        raise KeyError(scope["path"])

    async with asyncio_loop():
        with pytest.raises(KeyError):
            await on_trio(app)(SCOPE, nothing, nothing)


async def test_a_servers_lifespan_is_answered_and_not_the_apps():
    async def app(scope, receive, send):
        pytest.fail("its lifespan is the block")

    said: list[str] = []

    async def send(message):
        said.append(message["type"])

    async with asyncio_loop():
        await on_trio(app)({"type": "lifespan"}, nothing, send)
    assert said == ["lifespan.startup.complete", "lifespan.shutdown.complete"]


async def test_what_nobody_handles_is_logged_and_ends_nothing(caplog):
    async def app(scope, receive, send):
        loop = asyncio.get_running_loop()
        loop.call_soon(lambda: 1 / 0)
        await asyncio.sleep(0)
        late = asyncio.Event()
        loop.call_later(-1, late.set)  # a delay that is over
        await asyncio.wait_for(late.wait(), 5)
        await send(await receive())

    async with asyncio_loop():
        await on_trio(app)(SCOPE, nothing, said_nothing)
    assert "ZeroDivisionError" in caplog.text


async def test_the_bodys_exception_leaves_the_loop_as_itself():
    with pytest.raises(KeyError) as caught:
        async with asyncio_loop():
            raise KeyError("mine")
    assert caught.value.__cause__ is None
    with trio.CancelScope() as scope:
        async with asyncio_loop():
            scope.cancel()
            await trio.sleep_forever()
    assert scope.cancelled_caught
