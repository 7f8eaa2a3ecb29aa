"""AsyncOmni in the place of vLLM-Omni's, on real models: outputs, aborts, errors, and its own server on it.

One engine of each model serves all tests of it, in process. That tokens and samples are theirs is test_same_outputs.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import signal
import subprocess
import sys
import time
import wave
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest

from omni_actors.vllm_omni.tiny import options

from .conftest import ENVIRONMENT
from .prompts import PROMPTS
from .served import served
from .test_same_outputs import segments

HERE = Path(__file__).parent
CHAT = [{"role": "user", "content": "hello world"}]
SAID, SAMPLES = 16, 30_720  # what the deploy file of the tiny model asks for
SPOKEN = 90_240

pytestmark = [
    pytest.mark.engine,
    pytest.mark.filterwarnings("ignore"),  # vLLM-Omni's server runs in this process: what it warns of is its own
]


@pytest.fixture(scope="module")
def environment():
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ENVIRONMENT.items():
            patch.setenv(name, value)
        yield


def opened(folder):
    from omni_actors_asyncio import AsyncOmni

    return AsyncOmni(model=str(folder), stage_init_timeout=300, **options(folder))


def closed(omni, before):
    """By ``shutdown``: no process and no segment is left."""
    pids = omni._bridge.omni.pids().values()
    omni.shutdown()
    assert [pid for pid in pids if Path(f"/proc/{pid}").exists()] == []
    assert segments() <= before


@pytest.fixture(scope="module")
def omni(environment, tiny_qwen2_5_omni):
    before = segments()
    omni = opened(tiny_qwen2_5_omni)
    yield omni
    closed(omni, before)


@pytest.fixture(scope="module")
def http(omni):
    with served(omni) as http:
        yield http


async def outputs(omni, **how):
    return [output async for output in omni.generate(PROMPTS["text"](omni.model), **how)]


def asked(omni, kind):
    """Each stage's params, with this kind of output."""
    from vllm.sampling_params import RequestOutputKind

    made = [params.clone() for params in omni.default_sampling_params_list]
    for params in made:
        params.output_kind = RequestOutputKind[kind]
    return made


def of_stage(found, number):
    return [output for output in found if output.stage_id == number]


# ---------------------------------------------------------------------- Python


def test_qwen2_5_outputs_are_theirs_in_type_and_shape(omni):
    from vllm_omni.outputs import OmniRequestOutput

    found = asyncio.run(outputs(omni, request_id="mine"))
    assert all(type(output) is OmniRequestOutput and output.request_id == "mine" for output in found)
    text, sound = of_stage(found, 0), of_stage(found, 2)
    assert len(text) + len(sound) == len(found)
    assert [len(output.outputs[0].token_ids) for output in text] == [1] * SAID
    assert [output.final_output_type for output in (text[0], sound[0])] == ["text", "audio"]
    assert (text[-1].finished, text[-1].outputs[0].finish_reason) == (True, "length")
    assert sum(len(output.multimodal_output["audio"]) for output in sound) == SAMPLES
    assert sound[-1].finished
    assert set(sound[-1].stage_durations) == {f"stage_{number}_gen_ms" for number in range(3)}
    assert min(sound[-1].stage_durations.values()) > 0
    stages = sound[-1].metrics["stage_metrics"]
    assert [stages[str(number)]["stage_name"] for number in range(3)] == ["thinker", "talker", "code2wav"]
    assert (stages["0"]["num_tokens_in"], stages["0"]["num_tokens_out"]) == (len(text[0].prompt_token_ids), SAID)
    assert (stages["2"]["audio_frames"], stages["2"]["audio_sample_rate"]) == (SAMPLES, 24_000)
    assert sound[-1].peak_memory_mb == 0.0  # no engine of these stages says it


def test_qwen2_5_kinds_of_output(omni):
    """The same words and samples, said in the other ways."""
    delta = asyncio.run(outputs(omni, request_id="a"))
    whole = "".join(output.outputs[0].text for output in of_stage(delta, 0))
    for kind in ("CUMULATIVE", "FINAL_ONLY"):
        found = asyncio.run(outputs(omni, request_id="b", sampling_params_list=asked(omni, kind)))
        text, (sound,) = of_stage(found, 0), of_stage(found, 2)
        assert len(text) == (1 if kind == "FINAL_ONLY" else SAID)
        assert text[-1].outputs[0].text == whole
        assert len(text[-1].outputs[0].token_ids) == SAID
        assert np.array_equal(sound.multimodal_output["audio"], of_stage(delta, 2)[0].multimodal_output["audio"])


def test_qwen2_5_modalities(omni):
    """What it does not make is ignored, as theirs does; what is not asked for is not made."""
    text = asyncio.run(outputs(omni, output_modalities=["text", "smell"]))
    assert {output.stage_id for output in text} == {0}
    sound = asyncio.run(outputs(omni, output_modalities=["audio"]))
    assert {output.stage_id for output in sound} == {2}


def test_qwen2_5_abort_and_leaving(omni):
    async def aborted():
        found = []
        async for output in omni.generate(PROMPTS["text"](omni.model), request_id="mine"):
            found.append(output)
            if len(found) == 1:
                await omni.abort("mine", timeout=30)
        return found

    async def left():
        made = omni.generate(PROMPTS["text"](omni.model))
        await anext(made)
        await made.aclose()
        return await omni.statistics()

    found = asyncio.run(aborted())
    assert found[-1].finished
    assert found[-1].outputs[0].finish_reason == "abort"
    assert asyncio.run(left()).leases == 0
    assert omni.request_states == {}


def test_qwen2_5_errors(omni):
    from vllm_omni.errors import OmniClientError

    async def ask(prompt, **how):
        async for _ in omni.generate(prompt, **how):
            pass

    with pytest.raises(ValueError, match="Expected 3 sampling params, got 1"):
        asyncio.run(ask("hello", sampling_params_list=asked(omni, "DELTA")[:1]))
    with pytest.raises(OmniClientError, match="stage 'thinker'") as refused:
        asyncio.run(ask({"prompt": "hello " * 3000}))
    assert refused.value.error_stage_id == 0


def test_qwen2_5_script(omni):
    """vLLM-Omni's Omni, here over the same engines."""
    from omni_actors_asyncio.drop_in import ModelScript

    script = ModelScript.over(omni)
    prompt = PROMPTS["text"](omni.model)
    found = script.generate([prompt, prompt], use_tqdm=False)
    assert sorted(output.stage_id for output in found) == [0, 0, 2, 2]
    assert all(output.finished for output in found)
    assert {len(output.outputs[0].token_ids) for output in of_stage(found, 0)} == {SAID}
    assert len({output.request_id for output in found}) == 2
    early = script.generate({**prompt, "modalities": ["text"]}, py_generator=True, use_tqdm=False)
    assert next(early).stage_id == 0
    early.close()
    with pytest.raises(ValueError, match="Expected 3 sampling params"):
        script.generate(prompt, asked(omni, "DELTA")[:2], use_tqdm=False)
    assert script.num_stages == 3


# ---------------------------------------------------------------------- its server


def test_qwen2_5_chat_with_sound(http):
    asked = {"messages": CHAT, "return_stage_metrics": True}
    answer = http.post("/v1/chat/completions", json=asked).raise_for_status().json()
    (choice,) = answer["choices"]
    assert choice["message"]["content"]
    assert answer["usage"]["completion_tokens"] == SAID
    with wave.open(BytesIO(base64.b64decode(choice["message"]["audio"]["data"]))) as sound:
        assert (sound.getframerate(), sound.getnframes()) == (24_000, SAMPLES)
    assert set(answer["metrics"]["stage_metrics"]) == {"0", "1", "2"}


def test_qwen2_5_chat_of_text_alone(http):
    body = {"messages": CHAT, "modalities": ["text"]}
    answer = http.post("/v1/chat/completions", json=body).raise_for_status().json()
    assert answer["choices"][0]["message"].get("audio") is None
    batch = {"messages": [CHAT, CHAT], "modalities": ["text"]}
    many = http.post("/v1/chat/completions/batch", json=batch).raise_for_status().json()
    assert {choice["message"]["content"] for choice in many["choices"]} == {answer["choices"][0]["message"]["content"]}


def test_qwen2_5_chat_streamed(http):
    body = {"messages": CHAT, "stream": True, "stream_options": {"include_usage": True}}
    text = http.post("/v1/chat/completions", json=body).raise_for_status().text
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line]
    assert lines.pop() == "[DONE]"
    chunks = [json.loads(line) for line in lines]
    assert {chunk.get("modality") for chunk in chunks} >= {"text", "audio"}
    assert chunks[-1]["usage"]["completion_tokens"] == SAID


@pytest.mark.parametrize("path", ["/health", "/v1/models", "/ready", "/v1/audio/voices", "/metrics", "/version"])
def test_qwen2_5_plain_routes(http, path):
    assert http.get(path).status_code == 200


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "hello world"}),
        ("/v1/responses", {"input": "hello world"}),
        ("/v1/messages", {"messages": CHAT, "max_tokens": 16}),
        ("/v1/messages/count_tokens", {"messages": CHAT}),
        ("/tokenize", {"prompt": "hello world"}),
        ("/detokenize", {"tokens": [1, 2]}),
    ],
)
def test_qwen2_5_text_routes(http, omni, path, body):
    answer = http.post(path, json={"model": omni.model, **body})
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", "/v1/chat/completions", {"messages": CHAT, "modalities": ["smell"]}, 400),
        # A prompt that is too long is an error of their server, not of the caller.
        ("POST", "/v1/chat/completions", {"messages": [{"role": "user", "content": "hello " * 3000}]}, 500),
        ("POST", "/v1/audio/speech", {"input": "hello"}, 400),  # theirs: for dedicated models only
        ("POST", "/v1/images/generations", {"prompt": "a cat"}, 503),  # there is no diffusion stage
        ("GET", "/v1/videos", None, 200),
        ("GET", "/v1/videos/none", None, 404),
    ],
)
def test_qwen2_5_refusals_are_theirs(http, method, path, body, status):
    answer = http.request(method, path, json=body)
    assert answer.status_code == status, answer.text


def test_qwen2_5_a_hand_off_that_fails_is_502(http, omni, monkeypatch):
    """The function between two stages runs in the host."""

    def broken(sources, prompt=None, requires_multimodal_data=False):
        raise KeyError("latent")

    monkeypatch.setattr(omni._bridge.omni.frontend("talker").metadata, "custom_process_input_func", broken)
    answer = http.post("/v1/chat/completions", json={"messages": CHAT})
    assert answer.status_code == 502, answer.text
    error = answer.json()["error"]
    assert error["error_stage_id"] == 1
    assert "stage talker" in error["message"]
    assert "KeyError: 'latent'" in error["message"]
    assert error["request_id"].startswith("chatcmpl-")


def test_qwen2_5_a_dead_stage_is_503(http, omni):
    """Last: the vocoder starts again meanwhile. What does not need it goes on."""
    os.kill(omni._bridge.omni.pids()["code2wav/0"], signal.SIGKILL)
    deadline = time.monotonic() + 30
    while http.get("/health").status_code == 200:
        assert time.monotonic() < deadline
    assert http.get("/health").status_code == 503
    assert http.post("/v1/chat/completions", json={"messages": CHAT, "modalities": ["text"]}).status_code == 200
    assert not omni.errored


# ---------------------------------------------------------------------- speech


def test_qwen3_tts_a_script_of_theirs_with_another_import(environment, tiny_qwen3_tts, tmp_path):
    theirs = (HERE / "theirs.py").read_text()
    ours = theirs.replace("from vllm_omni.entrypoints.async_omni import", "from omni_actors_asyncio import")
    assert ours != theirs
    script, out = tmp_path / "ours.py", tmp_path / "ours.npz"
    script.write_text(ours)
    before = segments()
    done = subprocess.run(
        [sys.executable, str(script), str(tiny_qwen3_tts), "{}", str(out), "read"],
        env={**os.environ, "PYTHONPATH": f"{HERE}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"},
        capture_output=True, text=True, timeout=400, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    with np.load(out) as found:
        assert found["read.audio"].shape == (SPOKEN,)
        assert found["read.audio"].std() > 0
    assert segments() <= before


@pytest.fixture(scope="module")
def speaker(environment, tiny_qwen3_tts):
    before = segments()
    omni = opened(tiny_qwen3_tts)
    with served(omni) as http:
        yield http
    closed(omni, before)


SPEECH = {"input": "hello world", "voice": "vivian"}


def test_qwen3_tts_speech(speaker):
    answer = speaker.post("/v1/audio/speech", json=SPEECH | {"response_format": "wav"}).raise_for_status()
    with wave.open(BytesIO(answer.content)) as sound:
        assert (sound.getframerate(), sound.getnframes()) == (24_000, SPOKEN)
    tokens = {name: answer.headers[f"x-vllm-omni-{name}-tokens"] for name in ("input", "output")}
    assert tokens["output"] == "48"
    assert int(tokens["input"]) > 0


def test_qwen3_tts_speech_streamed(speaker):
    """As sound, and as events."""
    body = SPEECH | {"response_format": "pcm", "stream": True}
    text = speaker.post("/v1/audio/speech", json=body).raise_for_status().text
    pieces = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    sound = b"".join(base64.b64decode(piece["audio"]) for piece in pieces if piece["type"] == "speech.audio.delta")
    assert len(sound) == 2 * SPOKEN
    assert pieces[-1]["type"] == "speech.audio.done"


def test_qwen3_tts_speech_in_batches(speaker):
    body = {"items": [SPEECH, SPEECH | {"input": "please read"}]}
    answer = speaker.post("/v1/audio/speech/batch", json=body).raise_for_status().json()
    assert [result["status"] for result in answer["results"]] == ["success", "success"]


def test_qwen3_tts_speech_over_a_websocket(speaker):
    async def spoken():
        from websockets.asyncio.client import connect

        url = str(speaker.base_url).replace("http", "ws", 1)
        async with connect(f"{url}/v1/audio/speech/stream") as socket, asyncio.timeout(60):
            for message in (
                {"type": "session.config", "voice": "vivian", "response_format": "pcm"},
                {"type": "input.text", "text": "hello world. "},
                {"type": "input.done"},
            ):
                await socket.send(json.dumps(message))
            size = 0
            while isinstance(message := await socket.recv(), bytes) or json.loads(message)["type"] != "session.done":
                size += len(message) if isinstance(message, bytes) else 0
            return size

    assert asyncio.run(spoken()) == 2 * SPOKEN


def test_qwen3_tts_voices(speaker):
    assert speaker.get("/v1/audio/voices").raise_for_status().json()["voices"] == ["default", "ryan", "vivian"]
    answer = speaker.post("/v1/audio/speech", json=SPEECH | {"voice": "nobody"})
    assert (answer.status_code, "ryan, vivian" in answer.text) == (400, True)
    assert speaker.delete("/v1/audio/voices/nobody").status_code == 404


def test_qwen3_tts_a_prompt_that_kills_its_stage_is_503_with_stage_and_cause(speaker):
    """A talker that gets a chat raises in its worker, here as on vLLM-Omni's own engine. Afterwards it speaks again."""
    answer = speaker.post("/v1/chat/completions", json={"messages": CHAT})
    assert answer.status_code == 503, answer.text
    error = answer.json()["error"]
    assert error["error_stage_id"] == 0
    assert error["message"] == "stage qwen3_tts died under this request (sentinel); try again"
    deadline = time.monotonic() + 240  # the engine starts again: tens of seconds
    while (answer := speaker.post("/v1/audio/speech", json=SPEECH)).status_code != 200:
        assert answer.status_code == 503, answer.text
        assert time.monotonic() < deadline
        time.sleep(0.5)
    assert len(answer.content) > 2 * SPOKEN
