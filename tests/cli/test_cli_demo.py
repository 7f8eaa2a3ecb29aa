"""``omni-actors demo`` as a newcomer runs it: four real engines, text, a sound file, pictures, and nothing left."""

import json
import subprocess
import sys
import wave

import pytest
from PIL import Image

from omni_actors.cli._pictures import read_info

pytestmark = pytest.mark.engine

CODE = "from omni_actors.cli import main; main()"


def demo(folder, *args):
    command = [sys.executable, "-c", CODE, "demo", *args]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600, check=False)


def test_a_question_is_answered_in_text_speech_and_pictures(tmp_path):
    done = demo(tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Two plus three is five. Nine minus four is five. Seven plus eight is fifteen." in done.stdout
    assert "heard: two plus three is five; nine minus four is five; seven plus eight is fifteen" in done.stdout
    assert done.stdout.count("s of speech (sentence") == 3
    assert done.stdout.count("a picture, ") == 3
    shaded = [line for line in done.stdout.splitlines() if "█" in line and set(line) <= set(" ░▒▓█")]
    assert [len(line) for line in shaded] == [10 + 2 + 10 + 2 + 19] * 5
    assert "shutdown: 4 engines stopped" in done.stdout
    assert "killed" not in done.stdout
    assert "Traceback" not in done.stderr
    with wave.open(str(tmp_path / "out" / "answer.wav")) as sound:
        assert (sound.getframerate(), sound.getnchannels(), sound.getsampwidth()) == (24_000, 1, 2)
        assert sound.getnframes() / 24_000 > 3
        assert any(sound.readframes(sound.getnframes()))
    with Image.open(tmp_path / "out" / "answer.png") as picture:
        assert (picture.size, picture.mode) == ((160 + 160 + 304, 160), "RGB")
    assert read_info(tmp_path / "out" / "answer.png").items() >= {"seed": "0", "steps": "10"}.items()
    assert {file.name for file in (tmp_path / "out").iterdir()} == {"answer.wav", "answer.png"}


def test_as_json_it_is_one_document(tmp_path):
    done = demo(tmp_path, "How", "much", "is", "one", "plus", "one?", "--json", "--out", "sounds")
    assert done.returncode == 0, done.stderr
    made = json.loads(done.stdout)
    assert (made["question"], made["text"]) == ("How much is one plus one?", "One plus one is two.")
    assert [sentence["heard"] for sentence in made["sentences"]] == ["one plus one is two"]
    assert (made["file"], made["picture_file"]) == ("sounds/answer.wav", "sounds/answer.png")
    assert [picture["part"] for picture in made["pictures"]] == [0]
    assert {row["stage"] for row in made["stats"]["stages"]} == {"thinker", "talker", "vocoder", "painter"}
    assert made["shutdown"]["killed"] == []
