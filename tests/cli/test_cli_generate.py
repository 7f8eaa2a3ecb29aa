"""``generate`` on fake engines that are real processes: what is printed, what is written, and how it ends."""

import json
import os
import select
import signal
import subprocess
import sys
import time
import wave

import pytest
from typer.testing import CliRunner

from omni_actors.cli._app import app

pytestmark = pytest.mark.process

DEPLOY = """\
stages:
  - name: thinker
    engine: fake-core
    output: text
    engine_args: {echo: true, reject: "bad"}
  - name: speaker
    engine: fake
    model: none
    inputs: [thinker]
    output: audio
    engine_args: {chunks: 3}
"""


@pytest.fixture
def deploy(tmp_path):
    file = tmp_path / "deploy.yaml"
    file.write_text(DEPLOY)
    return str(file)


def generate(*args):
    return CliRunner().invoke(app, ["generate", *map(str, args)])


def test_text_is_printed_and_sound_is_written(deploy, tmp_path):
    ended = generate(deploy, "--prompt", "hello [there]", "--out", tmp_path / "out", "--stats")
    assert ended.exit_code == 0, ended.stderr
    assert ended.stdout.startswith("hello [there]\n")
    assert "whole" in ended.stdout
    with wave.open(str(tmp_path / "out" / "prompt-1.wav")) as sound:
        assert (sound.getframerate(), sound.getnframes()) == (24_000, 12)
    assert "thinker (fake-core): ready after" in ended.stderr
    assert "shutdown: 2 engines stopped in" in ended.stderr


def test_one_failed_prompt_is_one_error_and_the_others_are_answered(deploy, tmp_path):
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("one\nbad one\n\nthree\n")
    ended = generate(deploy, "--prompts", prompts, "--json")
    assert ended.exit_code == 1
    made = json.loads(ended.stdout)
    assert [result["text"] for result in made["results"]] == ["one", None, "three"]
    assert [result["kind"] for result in made["results"]] == ["finished", "failed", "finished"]
    error = made["results"][1]["error"]
    assert (error["kind"], error["stage"], error["request_id"]) == ("EngineRejected", "thinker", "prompt-2")
    assert made["shutdown"]["stopped"] == ["thinker/0", "speaker/0"]


def test_only_what_is_wanted_is_made_with_the_params_that_were_given(deploy):
    ended = generate(
        deploy, "--prompt", "hello", "--modalities", "text", "--stage-params", "thinker.max_tokens=2", "--json"
    )
    (result,) = json.loads(ended.stdout)["results"]
    assert (result["text"], result["finish_reason"], result["audio"]) == ("he", "length", None)
    assert [row["stage"] for row in result["stats"]["stages"]] == ["thinker"]


def test_a_deadline_is_an_error_of_its_prompt(deploy):
    ended = generate(deploy, "--prompt", "hello", "--timeout-s", "0.3", "--set", "thinker.engine_args.token_s=0.2")
    assert ended.exit_code == 1
    assert "--timeout-s" in ended.stdout


def test_a_stage_that_dies_while_starting_is_quoted(deploy):
    over = ["--set", "thinker.engine_args.handshake=exit", "--set", "thinker.engine_args.stderr=out of paper"]
    ended = generate(deploy, "--prompt", "hello", *over)
    assert ended.exit_code == 1
    assert ended.stdout == ""
    assert "out of paper" in ended.stderr
    assert "where: stage thinker/0, pid" in ended.stderr


@pytest.fixture
def running(deploy):
    """A ``generate`` whose answer takes 100 tokens; it has said the first of them when the test gets it."""
    code = "from omni_actors.cli import main; main()"
    slow = ["--set", "thinker.engine_args.token_s=0.02", "--set", "thinker.engine_args.tokens=100"]
    asked = ["--prompt", "x" * 100, "--modalities", "text", "--stage-params", "thinker.max_tokens=100"]
    command = [sys.executable, "-u", "-c", code, "generate", deploy, *asked, *slow]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        ready, _, _ = select.select([process.stdout], [], [], 60)
        assert ready, "no answer came"
        assert os.read(process.stdout.fileno(), 1) == b"x"
        yield process
        process.kill()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_one_interrupt_finishes_the_answer(running, number):
    running.send_signal(number)
    out, err = running.communicate(timeout=60)
    assert running.returncode == 130
    assert out.decode().strip() == "x" * 99
    assert "finishing what is running" in err.decode()
    assert "shutdown: 2 engines stopped" in err.decode()


def test_two_interrupts_stop_now(running):
    running.send_signal(signal.SIGINT)
    wait_for(running.stderr, b"finishing what is running")
    begun = time.monotonic()
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=60)
    assert running.returncode == 130
    assert len(out.decode().strip()) < 99
    assert "stopping now" in err.decode()
    assert "Traceback" not in err.decode()
    assert time.monotonic() - begun < 10


def test_an_interrupt_while_starting_gives_the_start_up(deploy):
    code = "from omni_actors.cli import main; main()"
    silent = ["--set", "thinker.engine_args.handshake=silent"]
    command = [sys.executable, "-u", "-c", code, "generate", deploy, "--prompt", "x", *silent]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        wait_for(process.stderr, b"speaker (fake): ready")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, b"")
    assert b"the start is given up" in err
    assert b"Traceback" not in err


def wait_for(stream, words):
    """Read ``stream`` until it has said ``words``."""
    said, deadline = b"", time.monotonic() + 60
    while words not in said:
        ready, _, _ = select.select([stream], [], [], deadline - time.monotonic())
        assert ready, f"never said {words!r}: {said!r}"
        chunk = os.read(stream.fileno(), 4096)
        assert chunk, f"ended without saying {words!r}: {said!r}"
        said += chunk
