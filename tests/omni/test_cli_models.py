"""``omni-actors generate MODEL`` and ``serve MODEL``, as an operator runs them, on a tiny model."""

from __future__ import annotations

import base64
import io
import subprocess
import sys
import wave

import pytest

from omni_actors.vllm_omni.tiny import deploy_file

from ..serve.server_process import ServerProcess
from .test_same_outputs import START_S, segments

pytestmark = [pytest.mark.engine, pytest.mark.process]

PROGRAM = "from omni_actors.cli import main; main()"
SAMPLES = 30_720


def options(model):
    return ["--deploy-config", str(deploy_file(model.name)), "--omni-option", "trust_remote_code=true"]


def test_generate(tiny_qwen2_5_omni, tmp_path):
    before = segments()
    args = ("--prompt", "hello world", "--modalities", "text,audio", "--out", str(tmp_path / "out"))
    command = [sys.executable, "-c", PROGRAM, "generate", str(tiny_qwen2_5_omni), *options(tiny_qwen2_5_omni), *args]
    done = subprocess.run(command, capture_output=True, text=True, timeout=START_S, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    (file,) = (tmp_path / "out").glob("*.wav")
    with wave.open(str(file)) as sound:
        assert (sound.getframerate(), sound.getnframes()) == (24_000, SAMPLES)
    assert segments() <= before


def test_serve(tiny_qwen2_5_omni):
    """vLLM-Omni's own server answers; at SIGTERM it ends with 0 and leaves nothing."""
    before = segments()
    server = ServerProcess(*options(tiny_qwen2_5_omni), pipeline=str(tiny_qwen2_5_omni), overrides=())
    with server.until_stopped(), server.client() as http:
        assert http.get("/ready").status_code == 200
        asked = {"messages": [{"role": "user", "content": "hello world"}], "modalities": ["text", "audio"]}
        answer = http.post("/v1/chat/completions", json=asked).raise_for_status().json()
        spoken = [choice["message"]["audio"] for choice in answer["choices"] if choice["message"].get("audio")]
        with wave.open(io.BytesIO(base64.b64decode(spoken[0]["data"]))) as sound:
            assert sound.getnframes() == SAMPLES
    assert segments() <= before
