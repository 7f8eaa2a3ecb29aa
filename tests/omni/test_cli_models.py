"""``omni-actors generate MODEL`` and ``serve MODEL``, as an operator runs them, on a tiny model."""

from __future__ import annotations

import base64
import io
import os
import re
import signal
import subprocess
import sys
import threading
import wave

import httpx
import pytest

from omni_actors.testing.os_state import Watch, descendants
from omni_actors.vllm_omni.tiny import deploy_file

from .test_same_outputs import START_S, segments

pytestmark = [pytest.mark.engine, pytest.mark.process]

PROGRAM = "from omni_actors.cli import main; main()"
SAMPLES = 30_720


def command(what, model, *args):
    deploy = deploy_file(model.name)
    options = ["--deploy-config", str(deploy), "--omni-option", "trust_remote_code=true"]
    return [sys.executable, "-c", PROGRAM, what, str(model), *options, *args]


def test_generate(tiny_qwen2_5_omni, tmp_path):
    before = segments()
    args = ("--prompt", "hello world", "--modalities", "text,audio", "--out", str(tmp_path / "out"))
    done = subprocess.run(
        command("generate", tiny_qwen2_5_omni, *args), capture_output=True, text=True, timeout=START_S, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    (file,) = (tmp_path / "out").glob("*.wav")
    with wave.open(str(file)) as sound:
        assert (sound.getframerate(), sound.getnframes()) == (24_000, SAMPLES)
    assert segments() <= before


def read(process, lines, found):
    """What it says, to its end. ``found``: the address, or the end."""
    for line in process.stderr:
        lines.append(line)
        if "is served at" in line:
            found.set()
    found.set()


def served_at(lines, found):
    assert found.wait(START_S)
    said = [match[1] for line in lines if (match := re.search(r"is served at (http://\S+)", line))]
    assert said, "".join(lines)[-3000:]
    return said[0].rstrip("/")


def test_serve(tiny_qwen2_5_omni):
    """vLLM-Omni's own server answers; at SIGTERM it ends with 0 and leaves nothing."""
    before, lines, found = segments(), [], threading.Event()
    asked = command("serve", tiny_qwen2_5_omni, "--port", "0")
    nothing = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL}
    with subprocess.Popen(asked, stderr=subprocess.PIPE, text=True, **nothing) as process:
        reader = threading.Thread(target=read, args=(process, lines, found))
        reader.start()
        try:
            answers(served_at(lines, found))
            ends(process)
        finally:
            process.kill()
            reader.join()
    assert segments() <= before


def answers(url):
    with httpx.Client(base_url=url, timeout=60, trust_env=False) as http:
        assert http.get("/ready").status_code == 200
        asked = {"messages": [{"role": "user", "content": "hello world"}], "modalities": ["text", "audio"]}
        answer = http.post("/v1/chat/completions", json=asked).raise_for_status().json()
    spoken = [choice["message"]["audio"] for choice in answer["choices"] if choice["message"].get("audio")]
    with wave.open(io.BytesIO(base64.b64decode(spoken[0]["data"]))) as sound:
        assert sound.getnframes() == SAMPLES


def ends(process):
    family = Watch(descendants(process.pid))
    os.kill(process.pid, signal.SIGTERM)
    assert process.wait(60) == 0
    assert family.alive_after(5) == set()
    family.close()
