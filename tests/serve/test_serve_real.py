"""A real ``omni-actors serve tiny-omni``, asked as users ask: over HTTP, and with the openai SDK."""

from __future__ import annotations

import base64
import io
import json
import os
import signal
import time
import wave
from collections.abc import Iterator

import httpx
import numpy
import openai
import psutil
import pytest

from .server_process import ServerProcess, ready_within

pytestmark = [pytest.mark.engine, pytest.mark.process, pytest.mark.filterwarnings("ignore")]

QUESTION = "What is two plus three?"
ANSWER = "Two plus three is five."
MESSAGES = [{"role": "user", "content": QUESTION}]
LONG = [{"role": "user", "content": "What is two plus three, nine minus four, one plus one, and six minus two?"}]
AUDIO = {"modalities": ["text", "audio"], "audio": {"voice": "any", "format": "wav"}}
KEY = "a-key"
CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    """Stopped by SIGTERM in the end: it finishes what it is saying, exits with 0, and leaves nothing."""
    server = ServerProcess("--", "--api-key", KEY)
    try:
        with server.client(authorization=f"Bearer {KEY}") as http:
            yield server
            with http.stream("POST", CHAT, json={"messages": LONG, "stream": True}) as answer:
                events = answer.iter_lines()
                next(events)
                server.signal(signal.SIGTERM)
                assert [line for line in events if line][-1] == "data: [DONE]"
        assert server.ended() == 0
    finally:
        server.close()


@pytest.fixture
def http(server) -> Iterator[httpx.Client]:
    with server.client(authorization=f"Bearer {KEY}") as http:
        yield http


@pytest.fixture
def sdk(server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0) as sdk:
        yield sdk


def loud(wav: bytes) -> bool:
    with wave.open(io.BytesIO(wav)) as sound:
        assert sound.getframerate() == 24_000
        samples = numpy.frombuffer(sound.readframes(1 << 24), "<i2")
    return len(samples) > 12_000 and int(abs(samples).max()) > 2000


def idle_within(http: httpx.Client, limit_s: float) -> bool:
    """Whether the thinker and the talker hold nothing: only then can their caches be reset."""
    deadline = time.monotonic() + limit_s
    while not http.post("/reset_prefix_cache").json()["success"]:
        if time.monotonic() > deadline:
            return False
    return True


def test_the_model_is_the_pipeline(http):
    (model,) = http.get("/v1/models").json()["data"]
    assert (model["id"], model["root"]) == ("tiny-omni", "tiny-omni")
    assert http.get("/health").status_code == 200
    assert http.get("/ready").json()["ready"] is True
    assert http.get("/metrics").status_code == 200


def test_a_key_guards_the_omni_routes_as_it_does_vllms(server):
    with server.client() as stranger:
        for path in (CHAT, "/v1/audio/speech", "/v1/omni/abort"):
            assert stranger.post(path, json={}).status_code == 401
        assert stranger.get("/ready").status_code == 200


def test_vllms_own_routes_answer(http):
    document = {"model": "tiny-omni", "prompt": QUESTION, "max_tokens": 5}
    assert http.post("/v1/completions", json=document).json()["usage"]["completion_tokens"] == 5
    answer = http.post(CHAT, json={"messages": MESSAGES}).json()
    assert answer["choices"][0]["message"]["content"] == ANSWER
    tokens = http.post("/tokenize", json={"model": "tiny-omni", "messages": MESSAGES}).json()
    assert tokens["count"] == answer["usage"]["prompt_tokens"]


def test_a_chat_streams(sdk):
    chunks = sdk.chat.completions.create(model="tiny-omni", messages=MESSAGES, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == ANSWER


def test_a_chat_with_sound(sdk):
    answer = sdk.chat.completions.create(model="tiny-omni", messages=MESSAGES, **AUDIO)
    message = answer.choices[0].message
    assert (message.content, message.audio.transcript, answer.choices[0].finish_reason) == (ANSWER, ANSWER, "stop")
    assert loud(base64.b64decode(message.audio.data))


def test_a_chat_streams_text_and_sound(sdk):
    asked = {"modalities": ["text", "audio"], "audio": {"voice": "any", "format": "pcm16"}}
    chunks = list(sdk.chat.completions.create(model="tiny-omni", messages=LONG, stream=True, **asked))
    deltas = [chunk.choices[0].delta for chunk in chunks]
    text = "".join(delta.content or "" for delta in deltas)
    pcm = base64.b64decode("".join(delta.audio.data or "" for delta in deltas if delta.audio), validate=True)
    assert text.startswith(ANSWER)
    assert int(abs(numpy.frombuffer(pcm, "<i2")).max()) > 2000
    assert [delta.audio.transcript for delta in deltas if delta.audio][-1] == text


def thinker_of(server: ServerProcess, sdk: openai.OpenAI) -> int:
    """The pid of the one of vLLM's two engines that works when only text is asked for."""

    def used() -> dict[int, float]:
        return {pid: psutil.Process(pid).cpu_times().user for pid in server.children("VLLM::EngineCore")}

    before = used()
    sdk.chat.completions.create(model="tiny-omni", messages=LONG)
    return max(before, key=lambda pid: used()[pid] - before[pid])


def test_sound_is_heard_while_text_streams(server, sdk):
    """The thinker is held once it has begun its second sentence: the first is heard, and then the text goes on."""
    thinker = thinker_of(server, sdk)
    asked = {"modalities": ["text", "audio"], "audio": {"voice": "any", "format": "pcm16"}}
    more = {"min_tokens": 150}  # far more than are on their way while it is being held
    chunks = sdk.chat.completions.create(model="tiny-omni", messages=LONG, stream=True, extra_body=more, **asked)
    deltas = (chunk.choices[0].delta for chunk in chunks if chunk.choices)
    text = ""
    try:
        while not text.startswith(f"{ANSWER} N"):
            text += next(deltas).content or ""
        os.kill(thinker, signal.SIGSTOP)
        while not (delta := next(deltas)).audio:
            text += delta.content or ""
    finally:
        os.kill(thinker, signal.SIGCONT)
    rest = "".join(delta.content or "" for delta in deltas)
    assert rest, f"all of the text had come before the sound: {text!r}"


def test_with_and_without_sound_the_same_is_said(http):
    for params in ({"max_tokens": 7}, {"stop": [" is"]}, {"temperature": 1.0, "seed": 3}):
        plain = http.post(CHAT, json={"messages": MESSAGES, **params}).json()
        loud_one = http.post(CHAT, json={"messages": MESSAGES, **params, **AUDIO}).json()
        for name in ("content", "role"):
            assert plain["choices"][0]["message"][name] == loud_one["choices"][0]["message"][name]
        assert plain["choices"][0]["finish_reason"] == loud_one["choices"][0]["finish_reason"]
        for name in ("prompt_tokens", "completion_tokens"):
            assert plain["usage"][name] == loud_one["usage"][name]


def test_speech(sdk):
    speech = {"model": "tiny-omni", "input": QUESTION, "voice": "any"}
    assert loud(sdk.audio.speech.create(**speech, response_format="wav").read())
    with sdk.audio.speech.with_streaming_response.create(**speech, response_format="pcm") as answer:
        pcm = b"".join(answer.iter_bytes())
        assert answer.headers["x-sample-rate"] == "24000"
    assert int(abs(numpy.frombuffer(pcm, "<i2")).max()) > 2000


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"model": "gpt-9"}, openai.NotFoundError),
        ({"temperature": -1}, openai.BadRequestError),
        ({"messages": []}, openai.BadRequestError),
        ({"messages": [{"role": "user", "content": "one " * 600}]}, openai.BadRequestError),
        ({"max_tokens": 0}, openai.BadRequestError),
        ({"n": 2}, openai.BadRequestError),
        ({"modalities": ["audio", "smell"]}, openai.BadRequestError),
    ],
)
def test_errors_are_the_sdks_own(sdk, changes, error):
    with pytest.raises(error) as caught:
        sdk.chat.completions.create(**({"model": "tiny-omni", "messages": MESSAGES, **AUDIO} | changes))
    assert caught.value.body["message"]
    assert "/" not in caught.value.body["message"].replace("prompt/", "")


@pytest.mark.parametrize("more", [{}, {"modalities": ["text", "audio"]}])
def test_who_leaves_frees_the_engines(http, more):
    endless = {"messages": LONG, "stream": True, "ignore_eos": True, **more}
    for _ in range(5):
        with http.stream("POST", CHAT, json=endless) as answer:
            lines = answer.iter_lines()
            identity = json.loads(next(lines).removeprefix("data: "))["id"]
        assert idle_within(http, 1)
        assert http.post("/v1/omni/abort", json={"request_id": identity}).json()["known"] is False


def test_an_abort_by_id_ends_vllms_requests_too(http):
    endless = {"messages": LONG, "stream": True, "ignore_eos": True}
    with http.stream("POST", CHAT, json=endless) as answer:
        lines = answer.iter_lines()
        identity = json.loads(next(lines).removeprefix("data: "))["id"]
        report = http.post("/v1/omni/abort", json={"request_id": identity}).json()
        events = [line.removeprefix("data: ") for line in lines if line]
    assert (report["known"], report["unconfirmed"], len(report["ended"])) == (True, [], 1)
    assert events[-1] == "[DONE]"
    assert json.loads(events[-2])["choices"][0]["finish_reason"] == "abort"
    assert idle_within(http, 0)


def test_a_stage_that_is_killed_is_said_and_comes_back(server, http):
    os.kill(server.child("engines.generation"), signal.SIGKILL)
    answer = ready_within(http, 503, 2)
    assert "stage vocoder is restarting" in answer.json()["reason"]
    assert http.get("/health").status_code == 200
    assert http.post(CHAT, json={"messages": MESSAGES}).json()["choices"][0]["message"]["content"] == ANSWER
    ready_within(http, 200, 30)
    assert loud(http.post("/v1/audio/speech", json={"input": QUESTION, "response_format": "wav"}).content)


def test_a_request_whose_stage_is_killed_is_told_so_at_once(server, http):
    vocoder = server.child("engines.generation")
    os.kill(vocoder, signal.SIGSTOP)
    with http.stream("POST", CHAT, json={"messages": LONG, "stream": True, "modalities": ["text", "audio"]}) as answer:
        lines = (line.removeprefix("data: ") for line in answer.iter_lines() if line)
        said = ""
        while said.count(".") < 4:  # by the fourth sentence the vocoder has been given the first
            said += json.loads(next(lines))["choices"][0]["delta"].get("content", "")
        killed_at = time.monotonic()
        os.kill(vocoder, signal.SIGKILL)
        error = json.loads(next(lines))["error"]
        assert time.monotonic() - killed_at < 1
    assert (error["code"], error["message"]) == (503, "stage vocoder failed at this request; try again")
    ready_within(http, 200, 30)
