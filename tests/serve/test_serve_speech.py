"""Speech and chats with sound, on fake engines: what clients read, and what they are told."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import wave

import pytest
import soundfile
from omni_actors_asyncio.server import HttpLimits

from omni_actors.config import Limits
from omni_actors.testing.rigs import speech

from .conftest import PCM, RATE, endless, speaking

CHAT = "/v1/chat/completions"
SPEECH = "/v1/audio/speech"
MESSAGES = [{"role": "user", "content": "hello"}]
AUDIO = {"messages": MESSAGES, "modalities": ["text", "audio"], "audio": {"voice": "x", "format": "wav"}}
STREAM = {"messages": MESSAGES, "modalities": ["text", "audio"], "stream": True}


def frames(data: bytes) -> bytes:
    with wave.open(io.BytesIO(data)) as sound:
        assert (sound.getnchannels(), sound.getsampwidth(), sound.getframerate()) == (1, 2, RATE)
        return sound.readframes(1 << 20)


# ---------------------------------------------------------------------- speech


def test_a_speech_is_an_mp3_unless_told_otherwise(serving):
    async def story(served):
        return await served.post(SPEECH, {"input": "hello", "voice": "x", "model": "alias"})

    answer = serving(speaking(), story)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "audio/mpeg"
    assert soundfile.info(io.BytesIO(answer.content)).format == "MP3"


def test_a_speech_as_wav(serving):
    async def story(served):
        return await served.post(SPEECH, {"input": "hello", "response_format": "wav"})

    answer = serving(speaking(), story)
    assert answer.headers["content-type"] == "audio/wav"
    assert frames(answer.content) == PCM


@pytest.mark.parametrize("form", ["wav", "pcm", "mp3", "flac"])
def test_a_speech_as_events_is_the_same_sound_in_pieces(serving, form):
    asked = {"input": "hello", "response_format": form}

    async def story(served):
        return await served.post(SPEECH, asked), await served.post(SPEECH, asked | {"stream_format": "sse"})

    whole, told = serving(speaking(), story)
    events = [json.loads(line.removeprefix("data: ")) for line in told.text.split("\n\n") if line]
    assert told.headers["content-type"].startswith("text/event-stream")
    assert [event["type"] for event in events] == ["speech.audio.delta"] * (len(events) - 1) + ["speech.audio.done"]
    assert b"".join(base64.b64decode(event["audio"]) for event in events[:-1]) == whole.content
    assert len(events) > 2 or form in ("flac", "mp3")  # so short a sound is one frame
    assert events[-1]["usage"]["output_tokens"] > 0


def test_a_speech_as_events_that_fails_says_so(serving):
    async def story(served):
        return await served.post(SPEECH, {"input": "hello", "response_format": "pcm", "stream_format": "sse"})

    told = serving(speaking(vocoder={"die_at_chunk": 2}), story)
    *_, error, done = [line.removeprefix("data: ") for line in told.text.split("\n\n") if line]
    assert json.loads(error)["error"]["message"] == "stage vocoder failed at this request; try again"
    assert done == "[DONE]"


def test_an_mp3_leaves_while_it_is_made(serving):
    async def story(served):
        visit = served.visit(SPEECH, {"input": "hello"})
        start, first = [await visit.messages.get() for _ in range(2)]
        await visit.leave()
        assert await served.idle_within(1)
        return start, first

    start, first = serving(endless(), story)
    assert start["status"] == 200
    assert first["body"][0] == 0xFF


def test_a_speech_as_pcm_says_its_rate_in_a_header(serving):
    async def story(served):
        return await served.post(SPEECH, {"input": "hello", "response_format": "pcm"}, **{"x-request-id": "mine"})

    answer = serving(speaking(), story)
    assert answer.content == PCM
    assert (answer.headers["x-sample-rate"], answer.headers["x-request-id"]) == (str(RATE), "mine")


@pytest.mark.parametrize("form", ["flac", "mp3", "opus"])
def test_a_speech_in_a_container_can_be_opened(serving, form):
    async def story(served):
        return await served.post(SPEECH, {"input": "hello", "response_format": form})

    answer = serving(speaking(), story)
    samples, rate = soundfile.read(io.BytesIO(answer.content), dtype="int16")
    assert rate == RATE
    assert form != "flac" or samples.tobytes() == PCM


def test_the_first_sound_leaves_before_the_last_is_made(serving):
    async def story(served):
        visit = served.visit(SPEECH, {"input": "hello", "response_format": "pcm"})
        start, first, second = [await visit.messages.get() for _ in range(3)]
        assert start["status"] == 200
        assert first["body"]
        assert second["more_body"]
        await visit.leave()
        assert await served.idle_within(1)

    serving(endless(), story)


@pytest.mark.parametrize(
    ("document", "status", "words"),
    [
        ({"input": "x", "model": "gpt-9"}, 404, "gpt-9"),
        ({"input": "  "}, 400, "empty"),
        ({}, 400, "input"),
        ({"input": 5}, 400, "input"),
        ({"input": "x" * 4097}, 400, "4097 characters"),
        ({"input": "x", "response_format": "tape"}, 400, "tape"),
        ({"input": "x", "speed": 2}, 400, "speed"),
        ({"input": "x", "instructions": "sing"}, 400, "instructions"),
        (b"{", 400, "not JSON"),
        (b"", 400, "not JSON"),
        (b'{"input": NaN}', 400, "not JSON"),
        (b'{"input": "\\ud800"}', 400, "not JSON"),
        (b'{"input": "\xff"}', 400, "not JSON"),
        (b"[" * 100_000, 400, ""),
        (b'{"input": "' + b"x" * 2000 + b'"}', 413, "1000 are allowed"),
    ],
)
def test_what_is_wrong_with_a_speech_is_said(serving, document, status, words):
    async def story(served):
        answer = await served.post(SPEECH, document)
        assert sum((await served.omni.statistics()).ended.values()) == 0
        return answer

    limits = HttpLimits(body_bytes=1000) if status == 413 else HttpLimits()
    answer = serving(speaking(), story, limits=limits)
    assert answer.status_code == status
    error = answer.json()["error"]
    assert words in error["message"] + str(error["param"])
    assert error["code"] == status
    assert error["type"]


def test_a_body_without_a_length_is_cut_off_too(serving):
    async def story(served):
        async def endless_body():
            while True:
                yield b"x" * 100

        return await served.http.post(SPEECH, content=endless_body())

    assert serving(speaking(), story, limits=HttpLimits(body_bytes=1000)).status_code == 413


def test_a_full_house_is_503_and_says_when_to_come_back(serving):
    async def story(served):
        visit = served.visit(SPEECH, {"input": "hello", "response_format": "pcm"})
        await visit.messages.get()
        answer = await served.post(SPEECH, {"input": "hello"})
        await visit.leave()
        assert await served.idle_within(1)
        return answer

    answer = serving(endless(limits=Limits(max_requests=1)), story)
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "1"
    assert "house is full" in answer.json()["error"]["message"]


def test_a_key_may_be_given_its_share_only(serving):
    async def story(served):
        visit = served.visit(SPEECH, {"input": "hello", "response_format": "pcm"})  # from 127.0.0.1, as httpx says too
        await visit.messages.get()
        mine = await served.post(SPEECH, {"input": "hello"})
        others = await served.post(SPEECH, {"input": " "}, authorization="Bearer other")
        await visit.leave()
        again = served.visit(SPEECH, {"input": "hello", "response_format": "pcm"})
        assert (await again.messages.get())["status"] == 200
        await again.leave()
        return mine, others

    mine, others = serving(endless(), story, limits=HttpLimits(requests_per_key=1))
    assert (mine.status_code, mine.headers["retry-after"]) == (429, "1")
    assert others.status_code == 400


def test_a_stage_that_dies_is_503_and_its_last_words_stay_here(serving):
    async def story(served):
        return await served.post(SPEECH, {"input": "hello"})

    spec = speaking(vocoder={"die_at_chunk": 0, "stderr": "Traceback: /srv/secret/engine.py"})
    answer = serving(spec, story)
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "1"
    assert answer.json()["error"]["message"] == "stage vocoder failed at this request; try again"


def test_a_speech_that_breaks_off_is_not_a_complete_answer(serving):
    async def story(served):
        visit = served.visit(SPEECH, {"input": "hello", "response_format": "pcm"})
        await asyncio.wait_for(asyncio.shield(visit._task), 5)
        messages = [visit.messages.get_nowait() for _ in range(visit.messages.qsize())]
        assert messages[0]["status"] == 200
        assert all(message.get("more_body", True) for message in messages)

    serving(speaking(vocoder={"die_at_chunk": 2}), story)


# ---------------------------------------------------------------------- chats


def test_a_chat_without_sound_is_theirs_byte_for_byte(serving):
    async def story(served):
        plain = b'{ "messages": [],   "x": 1e3 }'
        text = b'{"modalities": ["text"], "messages": []}'
        return [await served.post(CHAT, body) for body in (plain, text)], [plain, text]

    answers, bodies = serving(speaking(), story)
    assert [answer.headers["x-who"] for answer in answers] == ["theirs", "theirs"]
    assert [answer.content for answer in answers] == bodies


def test_a_whole_chat_has_its_text_and_its_sound(serving):
    async def story(served):
        return (await served.post(CHAT, AUDIO)).json()

    answer = serving(speaking(), story)
    (choice,) = answer["choices"]
    message = choice["message"]
    assert (answer["object"], answer["model"], choice["finish_reason"]) == ("chat.completion", "fake", "stop")
    assert message["content"] == message["audio"]["transcript"] != ""
    assert frames(base64.b64decode(message["audio"]["data"])) == PCM
    assert answer["usage"] == {"prompt_tokens": 5, "completion_tokens": 10, "total_tokens": 15}


def test_sound_alone_comes_with_what_is_said(serving):
    async def story(served):
        both = (await served.post(CHAT, AUDIO)).json()
        return both, (await served.post(CHAT, AUDIO | {"modalities": ["audio"]})).json()

    both, alone = serving(speaking(), story)
    message = alone["choices"][0]["message"]
    assert message["content"] is None
    assert message["audio"]["transcript"] == both["choices"][0]["message"]["content"]


def test_a_streamed_chat_adds_up_to_the_whole_one(serving):
    async def story(served):
        whole = (await served.post(CHAT, AUDIO)).json()
        return whole, await served.events(STREAM | {"stream_options": {"include_usage": True}})

    whole, events = serving(speaking(), story)
    *chunks, usage = events
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    sounds = [delta["audio"] for delta in deltas if "audio" in delta]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert "".join(delta.get("content", "") for delta in deltas) == whole["choices"][0]["message"]["content"]
    assert base64.b64decode("".join(sound.get("data", "") for sound in sounds), validate=True) == PCM
    assert [sound["transcript"] for sound in sounds if "transcript" in sound] == [
        whole["choices"][0]["message"]["content"]
    ]
    assert [("id" in sound, "sample_rate" in sound) for sound in sounds] == [(True, True)] + [(False, False)] * (
        len(sounds) - 1
    )
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None] * (len(chunks) - 1) + ["stop"]
    assert (usage["choices"], usage["usage"]) == ([], whole["usage"])


@pytest.mark.parametrize(
    ("changes", "status", "param"),
    [
        ({"n": 2}, 400, "n"),
        ({"stop": ["x"] * 17}, 400, "stop"),
        ({"tools": [{}]}, 400, "tools"),
        ({"logprobs": True}, 400, "logprobs"),
        ({"audio": {"format": "tape"}}, 400, "audio"),
        ({"audio": "loud"}, 400, "audio"),
        ({"stream": True}, 400, "audio.format"),
        ({"modalities": ["audio", 5]}, 400, "modalities"),
        ({"modalities": ["audio", "smell"]}, 400, None),
        ({"messages": [{"role": "user", "content": ""}]}, 400, None),
    ],
)
def test_what_is_wrong_with_a_chat_is_said(serving, changes, status, param):
    async def story(served):
        answer = await served.post(CHAT, AUDIO | changes)
        assert (await served.omni.statistics()).requests == 0
        return answer

    answer = serving(speaking(), story)
    assert (answer.status_code, answer.json()["error"]["param"]) == (status, param)


@pytest.mark.parametrize("document", [STREAM, AUDIO])
def test_who_leaves_a_chat_frees_every_stage(serving, document):
    async def story(served):
        visit = served.visit(CHAT, document)
        while (await served.omni.statistics()).leases == 0:
            pass
        await visit.leave()
        assert await served.idle_within(1)
        for stage in ("thinker", "talker"):
            assert await served.omni.call(stage, "has_work") == [False]

    serving(endless(), story)


def test_a_stream_that_fails_says_so_in_its_last_event(serving):
    async def story(served):
        return await served.events(STREAM)

    # Half a second a chunk: the text has begun by then, or it would be an answer of its own, with a status.
    *_, last = serving(speaking(vocoder={"die_at_chunk": 1, "chunk_s": 0.5}), story)
    assert last["error"]["message"] == "stage vocoder failed at this request; try again"


# ---------------------------------------------------------------------- ready, abort


def test_an_abort_ends_a_stream_and_hands_back_its_text(serving):
    async def story(served):
        visit = served.visit(CHAT, STREAM)
        await visit.messages.get()
        identity = json.loads((await visit.messages.get())["body"].removeprefix(b"data: "))["id"]
        report = (await served.post("/v1/omni/abort", {"request_id": identity})).json()
        await asyncio.wait_for(visit._task, 5)
        events = [visit.messages.get_nowait()["body"] for _ in range(visit.messages.qsize())]
        again = (await served.post("/v1/omni/abort", {"request_id": identity})).json()
        return identity, report, events, again

    identity, report, events, again = serving(endless(), story)
    assert (report["known"], report["unconfirmed"]) == (True, [])
    (ended,) = report["ended"]
    assert (ended["request_id"], ended["kind"]) == (identity, "aborted")
    assert any(b'"finish_reason":"abort"' in event for event in events)
    assert (again["known"], again["ended"]) == (False, [])


@pytest.mark.parametrize("document", [{}, {"request_id": 5}, {"request_id": "x", "more": 1}, [], b"x"])
def test_an_abort_of_nothing_sensible_is_400(serving, document):
    async def story(served):
        return await served.post("/v1/omni/abort", document)

    assert serving(speaking(), story).status_code == 400


def test_ready_says_which_stage_is_not_and_why(serving):
    async def story(served):
        before = await served.http.get("/ready")
        await served.post(SPEECH, {"input": "hello"})
        while (after := await served.http.get("/ready")).status_code == 200:
            pass
        return before, after

    spec = speaking(vocoder={"die_at_chunk": 0})
    before, after = serving(spec, story)
    assert before.json()["ready"] is True
    assert [stage["stage"] for stage in before.json()["stages"]] == ["thinker", "talker", "vocoder"]
    assert after.status_code == 503
    assert after.headers["retry-after"] == "1"
    assert "stage vocoder is restarting" in after.json()["reason"]
    assert [stage["state"] for stage in after.json()["stages"]] == ["ready", "ready", "restarting"]


def test_a_server_that_stops_is_not_ready(serving):
    async def story(served):
        before = await served.http.get("/ready")
        served.omni.request_close()
        after = await served.http.get("/ready")
        await served.omni.close(drain_s=0)
        return before, after, await served.http.get("/ready"), await served.post(SPEECH, {"input": "x"})

    before, after, closed, refused = serving(speech(), story)
    assert [each.status_code for each in (before, after, closed, refused)] == [200, 503, 503, 503]
    assert after.json()["reason"].startswith("the runtime is ")
    assert closed.json()["reason"] == "the server is stopping"
