"""The gate before every route: bodies that no parser should see, limits, and errors on their way out."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import struct
import wave

import pytest
import soundfile
from omni_actors_asyncio.server import HttpLimits
from omni_actors_asyncio.server._openapi import describe
from omni_actors_asyncio.server._own_app import PlainChats
from starlette.responses import JSONResponse, PlainTextResponse, StreamingResponse
from starlette.routing import Route

from .conftest import endless, speaking

CHAT = "/v1/chat/completions"
SPEECH = "/v1/audio/speech"
ABORT = "/v1/omni/abort"
THEIRS = "/v1/completions"
MIB = 1 << 20


def png(width: int, height: int) -> bytes:
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sII", 13, b"IHDR", width, height) + b"\x08\x02\x00\x00\x00"


def gif(width: int, height: int) -> bytes:
    return b"GIF89a" + struct.pack("<HH", width, height) + b"\x00" * 8


def jpeg(width: int, height: int) -> bytes:
    comment = b"\xff\xfe" + struct.pack(">H", 12) + b"x" * 10
    return b"\xff\xd8" + comment + b"\xff\xc2" + struct.pack(">HBHH", 17, 8, height, width) + b"\x00" * 10


def webp(width: int, height: int) -> bytes:
    size = (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    return b"RIFF" + struct.pack("<I", 100) + b"WEBPVP8X" + struct.pack("<II", 10, 0) + size


def wav(seconds: float, *, declared: int | None = None, rate: int = 16_000, per_s: int | None = None) -> bytes:
    samples = b"\x00\x00" * int(seconds * rate)
    form = struct.pack("<HHIIHH", 1, 1, rate, 2 * rate if per_s is None else per_s, 2, 16)
    size = len(samples) if declared is None else declared
    return b"RIFF\xff\xff\xff\xffWAVEfmt \x10\x00\x00\x00" + form + b"data" + struct.pack("<I", size) + samples


def flac(seconds: int) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, [0.0] * (8000 * seconds), 8000, format="FLAC")
    return file.getvalue()


def url(kind: str, data: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def asks(part: object) -> dict:
    return {"messages": [{"role": "user", "content": [part]}]}


def shows(data: bytes, kind: str = "image/png") -> dict:
    return asks({"type": "image_url", "image_url": {"url": url(kind, data)}})


def sings(data: bytes) -> dict:
    return asks({"type": "input_audio", "input_audio": {"data": base64.b64encode(data).decode(), "format": "wav"}})


NOT_JSON = {
    "nothing but a bracket": b"{",
    "ten thousand brackets": b"[" * 100_000,
    "deep and closed": b'{"messages": ' + b"[" * 500 + b"]" * 500 + b"}",
    "a hundred thousand objects deep": b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    "NaN": b'{"model": "fake", "temperature": NaN}',
    "Infinity": b'{"temperature": -Infinity}',
    "1e999": b'{"temperature": 1e999}',
    "a lone surrogate": b'{"model": "\\ud800"}',
    "latin-1": b'{"model": "\xe4"}',
    "utf-16": '{"model": "x"}'.encode("utf-16"),
    "a byte order mark": b"\xef\xbb\xbf{}",
    "a key twice": b'{"model": "fake", "n": 1, "n": 100}',
    "a key twice, inside": b'{"model": "fake", "audio": {"format": "wav", "format": "pcm"}}',
    "a huge number": b'{"seed": 123456789012345678901234567890}',
    "five thousand digits": b'{"seed": ' + b"1" * 5000 + b"}",
    "a million values": b'{"prompt": [' + b"1," * (1 << 20) + b"1]}",
    "control characters": b'{"model": "\x00"}',
    "an end too many": b"{}}",
}
TOO_MUCH = {
    "n": ({"n": 17}, "n"),
    "stop strings": ({"stop": ["x"] * 17}, "stop"),
    "messages": ({"messages": [{"role": "user", "content": "x"}] * 1025}, "messages"),
    "parts": ({"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}] * 1025}]}, "content"),
    "prompts": ({"prompt": ["x"] * 1025}, "prompt"),
    "n, further in": ({"sampling_params": {"n": 17}}, "n"),
    "base64 that is none": (asks({"type": "image_url", "image_url": {"url": "data:image/png;base64,***"}}), "url"),
    "a data URL without base64": (asks({"type": "image_url", "image_url": "data:image/png,xxx"}), "image_url"),
    "a longer data URL": (asks({"type": "image_url", "image_url": "data:;base64," + "A" * 16 * MIB}), "image_url"),
    "a png bomb": (shows(png(50_000, 50_000)), "url"),
    "a gif bomb": (shows(gif(65_535, 65_535), "image/gif"), "url"),
    "a jpeg bomb": (shows(jpeg(65_000, 65_000), "image/jpeg"), "url"),
    "a webp bomb": (shows(webp(16_000, 16_000), "image/webp"), "url"),
    "an image of nothing": (shows(png(0, 5)), "url"),
    "an image cut off": (shows(png(5, 5)[:18]), "url"),
    "an image that is a text": (shows(b"hello, world"), "url"),
    "an image that is a sound": (shows(wav(0.1)), "url"),
    "ten minutes and a second": (sings(wav(601, rate=4000)), "input_audio.data"),
    "a flac of an hour": (sings(flac(3600)), "input_audio.data"),
    "a wav that promises more": (sings(wav(0.1, declared=1 << 30)), "input_audio.data"),
    "a wav that lies of its rate": (sings(wav(700, rate=4000, per_s=1 << 30)), "input_audio.data"),
    "a wav of one sample per second": (sings(wav(100, rate=1)), "input_audio.data"),
    "a wav without samples": (sings(wav(0.1)[:40]), "input_audio.data"),
    "a sound of noise": (sings(b"\xff\xfb" + b"x" * 100), "input_audio.data"),
    "embeddings that are none": (asks({"type": "image_embeds", "image_embeds": "?"}), "image_embeds"),
}
FINE = {
    "a small png": shows(png(64, 64)),
    "a jpeg": shows(jpeg(640, 480), "image/jpeg"),
    "a webp": shows(webp(640, 480), "image/webp"),
    "a wav": sings(wav(1)),
    "a wav whose length was not known": sings(wav(1, declared=0xFFFFFFFF)),
    "a flac": sings(flac(2)),
    "an image somewhere else": asks({"type": "image_url", "image_url": {"url": "https://example.org/x.png"}}),
    "a text that looks like a URL": asks({"type": "text", "text": "data:image/png,xxx"}),
    "two thousand tokens": {"prompt": list(range(2000))},
    "the largest seed": {"seed": (1 << 63) - 1},
}


@pytest.mark.parametrize("path", [CHAT, SPEECH, ABORT])
def test_what_is_no_strict_json_is_400_everywhere(serving, path):
    async def story(served):
        answers = {name: await served.post(path, body) for name, body in NOT_JSON.items()}
        assert (await served.post(path, {"input": " "})).status_code < 500  # it is alive
        assert sum((await served.omni.statistics()).ended.values()) == 0
        return answers

    for name, answer in serving(speaking(), story).items():
        assert answer.status_code == 400, name
        assert answer.json()["error"]["message"], name


def test_more_than_is_allowed_is_400_and_names_the_field(serving):
    async def story(served):
        return {name: await served.post(CHAT, document) for name, (document, _) in TOO_MUCH.items()}

    for name, answer in serving(speaking(), story, within_s=60).items():
        assert answer.status_code == 400, name
        assert answer.json()["error"]["param"] == TOO_MUCH[name][1], (name, answer.text)


def test_what_is_within_the_limits_goes_on_byte_for_byte(serving):
    async def story(served):
        return {name: await served.post(CHAT, document) for name, document in FINE.items()}

    for name, answer in serving(speaking(), story).items():
        assert (answer.status_code, answer.headers.get("x-who")) == (200, "theirs"), (name, answer.text)
        assert answer.content == json.dumps(FINE[name]).encode()


def test_bodies_of_wrong_types_are_400_on_each_of_our_routes(serving):
    wrong = [None, True, 0, -1.5, "x", [], {}, [[]], {"x": {}}]
    base = {
        SPEECH: ("input", "model", "response_format", "speed", "instructions", "stream_format"),
        ABORT: ("request_id",),
        CHAT: ("modalities", "audio", "model", "messages", "stream_options"),
    }
    good = {SPEECH: {"input": "x"}, ABORT: {"request_id": "x"}, CHAT: {"modalities": ["audio"], "messages": []}}

    async def story(served):
        for path, names in base.items():
            for value in wrong:
                bare = await served.post(path, value)
                assert bare.status_code == 400 or (path == CHAT and bare.headers["x-who"] == "theirs"), (path, value)
                for name in names:
                    answer = await served.post(path, good[path] | {name: value})
                    assert answer.status_code < 500, (path, name, value, answer.text)

    serving(speaking(), story, within_s=60, render=PlainChats(lambda name: name or "fake"))


def test_a_body_that_does_not_arrive_in_time_is_408(serving):
    async def story(served):
        async def trickle():
            yield b'{"input": "'
            await asyncio.Event().wait()

        return await served.http.post(SPEECH, content=trickle())

    answer = serving(speaking(), story, limits=HttpLimits(body_s=0.2))
    assert answer.status_code == 408
    assert "0.2 s" in answer.json()["error"]["message"]


# ---------------------------------------------------------------------- somebody else's routes


async def slow(request):
    await request.body()
    while (await request.receive())["type"] != "http.disconnect":
        pass
    return JSONResponse(None)


async def slow_stream(request):
    async def events():
        yield "data: one\n\n"
        await asyncio.Event().wait()

    return StreamingResponse(events(), media_type="text/event-stream")


def answering(*answers):
    """Routes that answer like this."""

    async def answer(request):
        made = answers[int(request.path_params["number"])]
        if isinstance(made, Exception):
            raise made
        return made

    return Route("/say/{number}", answer, methods=["GET", "POST"])


def with_routes(served, *more):
    served.app.router.routes.extend(more)
    return served


def test_a_routes_time_is_over_and_its_client_is_told(serving):
    async def story(served):
        with_routes(served, Route("/slow", slow, methods=["POST"]), Route("/stream", slow_stream, methods=["POST"]))
        return await served.post("/slow", {}), await served.post("/stream", {})

    whole, stream = serving(speaking(), story, limits=HttpLimits(request_s=0.3))
    assert whole.status_code == 504
    assert "0.3 s" in whole.json()["error"]["message"]
    first, error, done = stream.text.strip().split("\n\n")
    assert (first, done) == ("data: one", "data: [DONE]")
    assert json.loads(error.removeprefix("data: "))["error"]["code"] == 504


def test_one_key_has_its_share_on_every_route_and_may_abort_always(serving):
    async def story(served):
        visit = served.visit(SPEECH, {"input": "hello", "response_format": "pcm"})
        await visit.messages.get()
        refused = await served.post(CHAT, {"messages": []})
        abort = await served.post(ABORT, {"request_id": "x"})
        await visit.leave()
        return refused, abort, await served.post(CHAT, {"messages": []})

    refused, abort, again = serving(endless(), story, limits=HttpLimits(requests_per_key=1))
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
    assert (abort.status_code, again.status_code) == (200, 200)


def test_errors_leave_in_one_shape_and_tell_nothing_of_the_machine(serving):
    secret = "/srv/models/secret/model.py"
    routes = answering(
        RuntimeError(f"broken at {secret}"),
        JSONResponse({"error": {"message": f"Traceback in {secret}", "type": "X", "code": 500}}, 500),
        JSONResponse({"error": {"message": "no such thing", "type": "NotImplementedError", "code": 501}}, 501),
        JSONResponse({"error": "Unauthorized"}, 401),
        JSONResponse({"detail": [{"loc": ["body"], "msg": f"see {secret}"}]}, 422),
        PlainTextResponse("Not Found", 404),
        PlainTextResponse("busy", 503),
        JSONResponse({"ready": False}, 503),
        PlainTextResponse("", 503),
    )

    async def story(served):
        with_routes(served, routes)
        return [await served.http.get(f"/say/{number}") for number in range(9)]

    answers = serving(speaking(), story)
    assert [answer.status_code for answer in answers] == [500, 500, 400, 401, 422, 404, 503, 503, 503]
    for answer in answers[:7]:
        error = answer.json()["error"]
        assert isinstance(error["message"], str)
        assert error["message"]
        assert error["code"] == answer.status_code
        assert "secret" not in answer.text
        assert "Traceback" not in answer.text
    assert [answer.headers.get("retry-after") for answer in answers[6:]] == ["1", "1", "1"]
    assert answers[7].json() == {"ready": False}
    assert answers[8].content == b""


def test_the_omni_routes_are_described(serving):
    async def story(served):
        served.app.openapi = lambda: {"openapi": "3.1.0", "info": {}, "paths": {"/theirs": {}}}
        describe(served.app)
        assert served.app.openapi() is served.app.openapi()
        return served.app.openapi()

    document = serving(speaking(), story)
    assert {"/theirs", "/ready", ABORT, SPEECH, CHAT} <= document["paths"].keys()
    speech = document["paths"][SPEECH]["post"]
    name = speech["requestBody"]["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
    assert document["components"]["schemas"][name]["properties"]["response_format"]["default"] == "mp3"
    assert {"200", "400", "413", "429", "503"} <= speech["responses"].keys()


def test_a_sound_made_by_the_standard_library_is_no_lie(serving):
    file = io.BytesIO()
    with wave.open(file, "wb") as sound:
        sound.setparams((2, 2, 44_100, 0, "NONE", ""))
        sound.writeframes(b"\x00\x00\x00\x00" * 4410)

    async def story(served):
        return await served.post(CHAT, sings(file.getvalue()))

    assert serving(speaking(), story).headers["x-who"] == "theirs"
