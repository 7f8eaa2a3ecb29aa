"""``omni-actors demo`` as a newcomer runs it: three real engines, text, a sound file, and nothing left."""

import json
import subprocess
import sys
import wave

import pytest

pytestmark = pytest.mark.engine

CODE = "from omni_actors.cli import main; main()"


def demo(folder, *args):
    command = [sys.executable, "-c", CODE, "demo", *args]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600, check=False)


def test_a_question_is_answered_in_text_and_in_speech(tmp_path):
    done = demo(tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Two plus three is five. Nine minus four is five. Seven plus eight is fifteen." in done.stdout
    assert "heard: two plus three is five; nine minus four is five; seven plus eight is fifteen" in done.stdout
    assert done.stdout.count("s of speech (sentence") == 3
    assert "shutdown: 3 engines stopped" in done.stdout
    assert "killed" not in done.stdout
    assert "Traceback" not in done.stderr
    with wave.open(str(tmp_path / "out" / "answer.wav")) as sound:
        assert (sound.getframerate(), sound.getnchannels(), sound.getsampwidth()) == (24_000, 1, 2)
        assert sound.getnframes() / 24_000 > 3
        assert any(sound.readframes(sound.getnframes()))
    assert [file.name for file in (tmp_path / "out").iterdir()] == ["answer.wav"]


def test_as_json_it_is_one_document(tmp_path):
    done = demo(tmp_path, "How", "much", "is", "one", "plus", "one?", "--json", "--out", "sounds")
    assert done.returncode == 0, done.stderr
    made = json.loads(done.stdout)
    assert (made["question"], made["text"]) == ("How much is one plus one?", "One plus one is two.")
    assert [sentence["heard"] for sentence in made["sentences"]] == ["one plus one is two"]
    assert made["file"] == "sounds/answer.wav"
    assert [row["stage"] for row in made["stats"]["stages"]] == ["thinker", "talker", "vocoder"]
    assert made["shutdown"]["killed"] == []
