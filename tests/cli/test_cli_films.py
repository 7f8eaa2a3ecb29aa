"""``generate`` of a pipeline that makes films: an animated PNG for each, complete, and what it says of them."""

from __future__ import annotations

import json

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from omni_actors._errors import UsageError
from omni_actors.cli._app import app
from omni_actors.cli._out import _FPS, Out, _fps
from omni_actors.cli._pictures import read_info, write_film

CLASS = """
import numpy as np
from omni_actors.engines.generation import Chunk

class Film:
    def start(self, item):
        frames = np.zeros((5, 6, 8, 3), dtype=np.uint8)
        for number, frame in enumerate(frames):
            frame[:, number] = 255
        yield Chunk(tensors={"video": frames}, meta={"seed": 3, "steps": 2, "fps": 4}, finished=True)
"""
PIPELINE = "name: films\nstages:\n  camera: {engine: generation, model: 'film_of_a_test:Film', output: video}\n"


def frames_of(file):
    with Image.open(file) as read:
        assert read.format == "PNG"
        for number in range(read.n_frames):
            read.seek(number)
            yield np.asarray(read.convert("RGB")), read.info["duration"]


@pytest.fixture
def pipeline(tmp_path, monkeypatch):
    (tmp_path / "film_of_a_test.py").write_text(CLASS)
    (tmp_path / "films.yaml").write_text(PIPELINE)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path / "films.yaml"


@pytest.mark.process
@pytest.mark.parametrize("as_json", [False, True])
def test_a_film_is_kept(pipeline, tmp_path, as_json):
    file = tmp_path / "out.apng"
    more = ["--json"] if as_json else []
    ended = CliRunner().invoke(app, ["generate", str(pipeline), "--prompt", "a", "--out", str(file), *more])
    assert ended.exit_code == 0, ended.stderr
    if as_json:
        (result,) = json.loads(ended.stdout)["results"]
        assert result["film_files"] == [str(file)]
        assert result["films"] == [{"seed": 3, "steps": 2, "fps": 4}]
    else:
        assert ended.stdout == f"film of 5 frames: {file}\n"
    made = list(frames_of(file))
    assert [int(frame[0].argmax() // 3) for frame, _ in made] == list(range(5))
    assert {duration for _, duration in made} == {250.0}
    info = read_info(file)
    assert (info["seed"], info["steps"]) == ("3", "2")


@pytest.mark.parametrize("told", [0, -1, "8", None, float("nan"), float("inf")])
def test_a_class_that_tells_no_speed_gets_the_usual_one(told):
    assert _fps({"fps": told}) == _fps({}) == _FPS
    assert _fps({"fps": 24}) == 24


def test_a_film_of_one_frame_is_a_picture(tmp_path):
    write_film(tmp_path / "a.apng", np.full((1, 2, 3, 3), 7, dtype=np.uint8), 8, {})
    with Image.open(tmp_path / "a.apng") as read:
        assert np.array_equal(np.asarray(read.convert("RGB")), np.full((2, 3, 3), 7))


@pytest.mark.parametrize("shape", [(4, 4, 3), (2, 4, 4, 4), (0, 4, 4, 3)])
def test_what_is_no_film_is_refused_and_no_file_is_left(tmp_path, shape):
    with pytest.raises(UsageError, match="uint8 of shape"):
        write_film(tmp_path / "a.apng", np.zeros(shape, dtype=np.uint8), 8, {})
    assert list(tmp_path.iterdir()) == []


def test_a_file_of_a_film_is_for_who_makes_films(tmp_path):
    assert Out.ready(tmp_path / "a.apng", 1, ("video",)).place(0, 1, ".apng") == tmp_path / "a-2.apng"
    with pytest.raises(UsageError, match="not video"):
        Out.ready(tmp_path / "a.apng", 1, ("image",))
