"""``generate text-to-image`` on a real tiny pipeline: files, what is in them, what is refused."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys

import pytest
import trio
from PIL import Image
from rich.console import Console
from typer.testing import CliRunner

from omni_actors._errors import ConfigError, UsageError
from omni_actors.cli._app import app
from omni_actors.cli._bars import Bars, Work
from omni_actors.cli._generate import Job, wants_bars
from omni_actors.cli._out import Out, shown_model
from omni_actors.cli._params import Painting, painting_params
from omni_actors.cli._pictures import read_info
from omni_actors.config import resolve
from omni_actors.lifecycle.events import Output, StepChunk, TensorChunk
from omni_actors.wire.omni import Tensor


def command(*args):
    return CliRunner().invoke(app, list(map(str, args)))


def generate(model, *args):
    return command("generate", "text-to-image", "--model", model, *args)


@pytest.mark.process
def test_a_cup_of_coffee(tiny_diffusion, tmp_path):
    file = tmp_path / "coffee.png"
    prompt = ("--prompt", "a cup of coffee on the table")
    ended = generate(tiny_diffusion, *prompt, "--out", file, "--steps", 3, "--seed", 7, "--n", 2, "--size", "48x32")
    assert ended.exit_code == 0, ended.stderr
    assert ended.stdout == f"2 pictures, seed 7, 8: {file}, {tmp_path / 'coffee-2.png'}\n"
    with Image.open(file) as one, Image.open(tmp_path / "coffee-2.png") as other:
        assert one.size == other.size == (48, 32)
        assert one.tobytes() != other.tobytes()
    info = read_info(file)
    assert (info["seed"], info["steps"], info["model"]) == ("7", "3", "tiny-diffusion")
    assert "prompt" not in info
    assert ended.stderr.count("prompt-1: a picture, 48 by 32, after") == 2


@pytest.mark.process
def test_a_prompt_that_cannot_be_read_whole_is_one_error_and_the_other_is_painted(tiny_diffusion, tmp_path):
    long = "cat " * 60
    args = ("--prompt", "a", "--prompt", long, "--steps", 2, "--out", tmp_path, "--write-prompt")
    ended = generate(tiny_diffusion, *args, "--json")
    assert ended.exit_code == 1
    first, second = json.loads(ended.stdout)["results"]
    assert first["picture_files"] == [str(tmp_path / "prompt-1.png")]
    assert first["pictures"][0]["steps"] == 2
    assert read_info(tmp_path / "prompt-1.png")["prompt"] == "a"
    assert second["error"]["kind"] == "InvalidRequest"
    assert "182 tokens; this model reads 77" in second["error"]["message"]
    assert [file.name for file in tmp_path.iterdir()] == ["prompt-1.png"]


@pytest.mark.process
def test_the_first_ctrl_c_ends_it_and_leaves_no_file(tiny_diffusion, tmp_path):
    program = [sys.executable, "-c", "from omni_actors.cli import main; main()"]
    args = ["--model", tiny_diffusion, "--prompt", "a", "--steps", "1000", "--out", tmp_path / "a.png"]
    process = subprocess.Popen(
        [*program, "generate", "text-to-image", *map(str, args)], stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    for line in process.stderr:
        if "ready after" in line:
            break
    os.kill(process.pid, signal.SIGINT)
    words = process.stderr.read()
    process.stderr.close()
    assert process.wait(30) == 130
    assert "interrupted: stopping now" in words
    assert "Traceback" not in words
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--prompt", "a"], "it has no model; give a folder or an id of the hub: --model PATH"),
        (["--model", "/no/such", "--prompt", "a"], "there is no model at '/no/such'"),
        (["--model", "MODEL", "--prompt", "a", "--out", "no/folder/a.png"], "there is no folder no/folder"),
        (["--model", "MODEL", "--prompt", "a", "--prompt", "b", "--out", "a.png"], "2 prompts do not go into one file"),
        (["--model", "MODEL", "--prompt", "a", "--out", "a.wav"], "what is asked for is image, not audio"),
        (["--model", "MODEL", "--prompt", "a", "--out", "a.jpg"], "pictures are written as .png"),
        (["--model", "MODEL", "--prompt", "a", "--size", "big"], "--size big: expected WIDTHxHEIGHT"),
    ],
)
def test_what_cannot_be_is_said_before_anything_starts(args, words, tiny_diffusion):
    ended = command("generate", "text-to-image", *[str(tiny_diffusion) if arg == "MODEL" else arg for arg in args])
    assert ended.exit_code == 2
    assert words in ended.stderr.replace("\n", " ")
    assert "ready" not in ended.stderr


def test_a_model_is_for_the_stage_without_one(tiny_diffusion):
    checked = command("check", "text-to-image", "--model", tiny_diffusion)
    assert checked.exit_code == 0
    assert f"{tiny_diffusion}  (--model)" in checked.stdout.replace("\n", " ")
    with pytest.raises(ConfigError, match="the stages have theirs: thinker, talker, vocoder, painter"):
        resolve("tiny-omni", model="x")
    assert command("graph", "text-to-image").exit_code == 0


def test_options_of_painters_go_to_painters_only():
    tiny = resolve("tiny-omni").spec
    asked = painting_params(Painting(steps=5, size="64x32", negative_prompt="dull", guidance=3.0), tiny)
    assert asked == {
        "painter": {
            "num_inference_steps": 5, "width": 64, "height": 32, "negative_prompt": "dull", "guidance_scale": 3.0,
        }
    }  # fmt: skip
    assert painting_params(Painting(), tiny) == {"painter": {}}
    mute = resolve("text-to-image", ["painter.engine=generation", "painter.model=a:B"]).spec
    with pytest.raises(UsageError, match="--steps, --negative-prompt: text-to-image has no stage that paints"):
        painting_params(Painting(steps=5, negative_prompt="x"), mute)


def test_files_have_names(tmp_path):
    file = Out.ready(tmp_path / "a.png", 1, ("image",))
    assert [file.place(0, nth, ".png").name for nth in range(2)] == ["a.png", "a-2.png"]
    assert file.place(0, 0, ".wav") is None
    folder = Out.ready(tmp_path / "new", 3, ("image", "audio"))
    assert [folder.place(2, nth, ".wav").name for nth in range(2)] == ["prompt-3.wav", "prompt-3-2.wav"]


def test_a_folder_of_the_machine_is_told_by_its_last_name(tmp_path):
    assert shown_model(str(tmp_path)) == tmp_path.name
    assert shown_model("org/model") == "org/model"


def test_a_prompt_is_as_far_as_all_its_samples():
    work = Work()
    assert work.total == 0
    for index, done in ((0, 3), (1, 1), (0, 4)):
        chunk = StepChunk(done=done, total=10, eta_s=2.0 + index)
        assert work.take(Output("r", "painter", "image", chunk, index))
    assert (work.done, work.total, work.eta) == (5, 20, "3 s left")
    picture = TensorChunk(tensors={"image": Tensor("uint8", (1, 1, 3), b"abc")})
    assert work.take(Output("r", "painter", "image", picture, 0))
    assert work.done == 11


def step(done, total=10):
    return Output("r", "painter", "image", StepChunk(done=done, total=total, eta_s=3.0))


def screen(*, terminal):
    shown = io.StringIO()
    return Console(file=shown, force_terminal=terminal, color_system=None, width=100, legacy_windows=False), shown


async def test_a_bar_tells_steps_and_seconds_and_gives_way_to_what_is_printed(autojump_clock):
    console, shown = screen(terminal=True)
    with Bars(console, ["a cup\nof [bold]coffee", "b"], shown=True) as bars:
        bars.took(0, step(4))
        assert "a cup of [bold]coffee" in shown.getvalue()
        assert "4/10 3 s left" in shown.getvalue()
        with bars.aside():
            written = shown.tell()
            await trio.sleep(1)
            bars.took(0, step(5))
            assert shown.tell() == written
        bars.ended(0)
        await trio.sleep(1)
        bars.took(1, step(9, 20))
        assert "a cup" not in shown.getvalue()[written:]
        assert "9/20" in shown.getvalue()[written:]


async def test_so_many_prompts_have_so_many_bars(autojump_clock):
    console, shown = screen(terminal=True)
    with Bars(console, [f"prompt {number}" for number in range(20)], shown=True) as bars:
        for number in range(20):
            bars.took(number, step(1))
        await trio.sleep(1)
        shown.truncate(0)
        bars.took(0, step(2))
        assert shown.getvalue().count("prompt ") == 8
        bars.ended(3)
        bars.took(15, step(2))
        await trio.sleep(1)
        shown.truncate(0)
        bars.took(0, step(3))
        assert "prompt 15" in shown.getvalue()


async def test_without_a_terminal_there_is_no_bar():
    console, shown = screen(terminal=False)
    with Bars(console, ["a"], shown=True) as bars:
        bars.took(0, step(4))
    assert not bars.shown
    assert shown.getvalue() == ""


@pytest.mark.parametrize(
    ("prompts", "made", "more", "wanted"),
    [
        (("a",), ("image",), {}, True),
        (("a",), ("text", "audio"), {}, False),
        (("a",), ("text", "image"), {}, False),
        (("a", "b"), ("text", "image"), {}, True),
        (("a",), ("image",), {"as_json": True}, False),
    ],
)
def test_there_are_bars_where_nothing_is_written_over_them(prompts, made, more, wanted):
    assert wants_bars(Job(target="x", prompts=prompts, **more), made) is wanted
