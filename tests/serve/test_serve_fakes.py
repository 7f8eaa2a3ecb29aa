"""A real server process on fake engines: who asks nonsense, who never finishes asking, and the openai SDK."""

from __future__ import annotations

import io
import os
import socket
from collections.abc import Iterator
from urllib.parse import urlsplit

import openai
import pytest
import soundfile

from .fake_pipeline import holds, idle, serve_fakes
from .fuzz import fuzz
from .server_process import ServerProcess
from .test_serve_gate import NOT_JSON, TOO_MUCH

pytestmark = [pytest.mark.process, pytest.mark.filterwarnings("ignore")]

CHAT = "/v1/chat/completions"
SPEECH = "/v1/audio/speech"
ABORT = "/v1/omni/abort"
BODY_S = 2.0
MIB = 1 << 20


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[ServerProcess]:
    server = serve_fakes(tmp_path_factory.mktemp("fake"), "--limit", f"body_s={BODY_S}")
    with server.until_stopped(), server.client() as http:
        yield server
        assert http.get("/ready").json()["ready"] is True
        holds(http, idle, 1)
    assert [line for line in server.lines if "Traceback" in line] == []


@pytest.fixture
def sdk(server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as sdk:
        yield sdk


def raw(server: ServerProcess, head: str, *pieces: bytes) -> bytes:
    """What it says to this, until it closes the connection."""
    where = urlsplit(server.url)
    with socket.create_connection((where.hostname, where.port), timeout=30) as connection:
        connection.sendall(head.replace("\n", "\r\n").encode() + b"\r\n\r\n")
        for piece in pieces:
            connection.sendall(piece)
        told = b""
        while data := connection.recv(1 << 16):
            told += data
        return told


def test_a_pipeline_without_a_vllm_stage_is_served_too(http, sdk):
    (model,) = sdk.models.list().data
    assert model.id == "fake"
    assert http.get("/health").status_code == 200
    assert http.get("/metrics").status_code == 200
    chat = {"model": "fake", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 5}
    answer = sdk.chat.completions.create(**chat)
    assert (answer.usage.completion_tokens, answer.choices[0].finish_reason) == (5, "length")
    chunks = list(sdk.chat.completions.create(**chat, stream=True, stream_options={"include_usage": True}))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == answer.choices[0].message.content
    assert chunks[-1].usage == answer.usage


def test_a_speech_is_an_mp3_unless_told_otherwise(sdk):
    with sdk.audio.speech.with_streaming_response.create(model="fake", input="hello", voice="any") as answer:
        sound = b"".join(answer.iter_bytes())
        assert answer.headers["content-type"] == "audio/mpeg"
    samples, rate = soundfile.read(io.BytesIO(sound))
    assert rate == 24_000
    assert len(samples) > 0


def test_another_model_is_404_for_the_sdk(sdk):
    with pytest.raises(openai.NotFoundError):
        sdk.audio.speech.create(model="gpt-9", input="hello", voice="any")
    with pytest.raises(openai.NotFoundError):
        sdk.chat.completions.create(model="gpt-9", messages=[{"role": "user", "content": "x"}])


@pytest.mark.parametrize("path", [CHAT, SPEECH, ABORT])
def test_nonsense_is_400_over_a_real_socket(http, path):
    for name, body in NOT_JSON.items():
        answer = http.post(path, content=body, headers={"content-type": "application/json"})
        assert answer.status_code == 400, name
        assert answer.json()["error"]["code"] == 400
    for name, (document, _) in TOO_MUCH.items():
        assert http.post(path, json=document).status_code == 400, name
    assert http.get("/health").status_code == 200


@pytest.mark.parametrize("path", [CHAT, SPEECH, ABORT])
def test_64_mib_are_413_whether_they_say_so_or_not(server, path):
    told = raw(server, f"POST {path} HTTP/1.1\nhost: x\nconnection: close\ncontent-length: {64 * MIB}")
    assert told.startswith(b"HTTP/1.1 413 ")

    def chunks() -> Iterator[bytes]:
        for _ in range(33):
            yield b" " * MIB

    with server.client() as http:
        assert http.post(path, content=chunks()).status_code in (408, 413)  # on a slow machine the time is over first


def test_who_does_not_finish_asking_is_told_so(server):
    head = f"POST {CHAT} HTTP/1.1\nhost: x\nconnection: close\n"
    for told in (
        raw(server, head + "content-length: 100", b'{"model": '),
        raw(server, head + "transfer-encoding: chunked", b'5\r\n{"a":\r\n', b"1\r\n1\r\n"),
    ):
        assert told.startswith(b"HTTP/1.1 408 ")
        assert b"did not arrive within 2 s" in told


@pytest.mark.parametrize(
    "head",
    [
        "nonsense",
        "POST /v1/chat/completions HTTP/1.1\nhost: x\nconnection: close\ncontent-length: -5",
        "POST /v1/chat/completions HTTP/1.1\nhost: x\nconnection: close\ncontent-length: 1\ntransfer-encoding: chunked",
    ],
)
def test_broken_http_is_400_or_the_end(server, http, head):
    try:
        told = raw(server, head, b"x")
    except (BrokenPipeError, ConnectionResetError):
        told = b""
    assert told == b"" or told.startswith(b"HTTP/1.1 400 "), told[:200]
    assert http.get("/health").status_code == 200


def test_bodies_from_the_openapi_get_no_5xx_but_503(http):
    examples = int(os.environ.get("OMNI_ACTORS_FUZZ_EXAMPLES", "30"))
    counts = fuzz(http, examples=examples, operations=("/ready", CHAT, SPEECH, ABORT, "/v1/models", "/health"))
    assert set(counts) == {"/ready", CHAT, SPEECH, ABORT, "/v1/models", "/health"}
