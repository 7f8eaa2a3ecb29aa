"""The examples for vLLM-Omni's models, as a user runs them, on the tiny ones."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile
from PIL import Image

from omni_actors.vllm_omni.tiny import deploy_file

EXAMPLES = Path(__file__).parents[2] / "examples" / "vllm_omni"

pytestmark = [pytest.mark.engine, pytest.mark.process]


def run(name, model, *args, cwd):
    command = [sys.executable, str(EXAMPLES / name), *args, "--model", str(model)]
    if (deploy := deploy_file(model.name)).exists():
        command += ["--deploy-config", str(deploy)]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def spoken(file):
    samples, rate = soundfile.read(file)
    assert rate == 24_000
    assert samples.std() > 0
    return len(samples)


@pytest.mark.parametrize("query", ["text", "use_mixed_modalities"])
def test_qwen2_5_omni(tiny_qwen2_5_omni, tmp_path, query):
    said = run("qwen2_5_omni.py", tiny_qwen2_5_omni, "--query-type", query, cwd=tmp_path)
    assert "s of speech" in said
    assert spoken(tmp_path / "answer.wav") == 30_720


def test_qwen3_omni(tiny_qwen3_omni, tmp_path):
    said = run("qwen3_omni.py", tiny_qwen3_omni, "--async-chunk", "--enable-stats", cwd=tmp_path)
    assert "the first of it after" in said
    assert "text: {" in said
    assert "audio: {" in said
    assert spoken(tmp_path / "answer.wav") > 24_000


def test_qwen3_tts(tiny_qwen3_tts, tmp_path):
    run("qwen3_tts.py", tiny_qwen3_tts, "Hello there.", "And again.", cwd=tmp_path)
    assert min(spoken(tmp_path / f"spoken-{number}.wav") for number in range(2)) > 24_000


def test_pictures(tiny_bagel, tmp_path):
    args = ["--prompts", "A cute cat", "A dog", "--size", "64", "--steps", "4"]
    said = run("pictures.py", tiny_bagel, *args, cwd=tmp_path)
    assert "A cute cat: picture-0.png" in said
    pictures = [np.asarray(Image.open(tmp_path / f"picture-{number}.png")) for number in range(2)]
    assert [picture.shape for picture in pictures] == [(64, 64, 3)] * 2
    assert not np.array_equal(*pictures)
