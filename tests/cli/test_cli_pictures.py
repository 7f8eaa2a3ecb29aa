"""A picture's file says how it was made, and no more than it was told; as characters it keeps its colours."""

import io
import struct
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from rich.console import Console

from omni_actors._errors import UsageError
from omni_actors.cli._pictures import read_info, show, write_png
from omni_actors.wire.omni import Tensor

INFO = {"seed": "7", "steps": "20", "model": "tiny"}


def picture(height, width):
    return np.arange(height * width * 3, dtype=np.uint8).reshape(height, width, 3)


def drawn(renderable, color_system):
    console = Console(file=io.StringIO(), force_terminal=True, color_system=color_system, width=200)
    console.print(renderable, end="")
    return console.file.getvalue()


@given(height=st.integers(1, 20), width=st.integers(1, 20), as_tensor=st.booleans())
def test_what_is_written_can_be_read_back(tmp_path_factory, height, width, as_tensor):
    file, image = tmp_path_factory.mktemp("out") / "a.png", picture(height, width)
    write_png(file, Tensor("uint8", image.shape, image.tobytes()) if as_tensor else image, {})
    with Image.open(file) as read:
        assert (read.format, read.mode) == ("PNG", "RGB")
        assert np.array_equal(np.asarray(read), image)


def test_an_image_in_another_memory_order_is_the_same_image(tmp_path):
    image = picture(4, 6)[:, ::-1]
    write_png(tmp_path / "a.png", image, {})
    with Image.open(tmp_path / "a.png") as read:
        assert np.array_equal(np.asarray(read), image)


def test_it_says_how_it_was_made_and_nothing_of_the_prompt(tmp_path):
    write_png(tmp_path / "a.png", picture(2, 2), INFO)
    with Image.open(tmp_path / "a.png") as read:
        software = read.text.pop("software")
        assert read.text == INFO
    assert software.startswith("omni-actors ")


def test_a_prompt_that_is_passed_is_there_in_any_script(tmp_path):
    said = INFO | {"prompt": "a cup, ein Täßchen, 一杯咖啡\n☕"}
    write_png(tmp_path / "a.png", picture(2, 2), said)
    found = read_info(tmp_path / "a.png")
    assert {key: found[key] for key in said} == said


def test_a_prompt_of_broken_bytes_does_not_lose_the_picture(tmp_path):
    write_png(tmp_path / "a.png", picture(2, 2), {"prompt": "caf\udce9"})
    assert read_info(tmp_path / "a.png")["prompt"] == "caf?"


def test_when_the_disk_fills_half_way_the_old_picture_stays(tmp_path, room_for):
    file, noise = tmp_path / "a.png", np.random.default_rng(0).integers(0, 256, (300, 300, 3), np.uint8)
    write_png(file, picture(2, 2), {"seed": "old"})
    with room_for(4096), pytest.raises(UsageError, match=f"cannot write a.png into the folder {tmp_path}: File too"):
        write_png(file, noise, {"seed": "new"})
    assert read_info(file)["seed"] == "old"
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize(
    "image", [picture(2, 2).astype(np.float32), picture(2, 2)[:, :, :1], picture(2, 2)[0], picture(0, 2)]
)
def test_what_is_no_picture_is_refused_and_leaves_no_file(tmp_path, image):
    with pytest.raises(UsageError, match="a picture is uint8 of shape"):
        write_png(tmp_path / "a.png", image, INFO)
    with pytest.raises(UsageError, match="a picture is uint8 of shape"):
        show(image, 10)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("data", [b"", b"GIF89a", b"\x89PNG\r\n\x1a\n", b"\x89PNG\r\n\x1a\n" + b"\0" * 40, None])
def test_a_file_that_is_no_picture_is_named(tmp_path, data):
    file = tmp_path / "a.png"
    if data is not None:
        file.write_bytes(data)
    with pytest.raises(UsageError, match=str(file)):
        read_info(file)


def test_a_picture_that_was_cut_short_is_named(tmp_path):
    file = tmp_path / "a.png"
    write_png(file, picture(50, 50), INFO)
    file.write_bytes(file.read_bytes()[:120])
    with pytest.raises(UsageError, match=str(file)):
        read_info(file)


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def header(height, width):
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))


PIXEL, END = chunk(b"IDAT", zlib.compress(bytes(4))), chunk(b"IEND", b"")


@pytest.mark.parametrize(
    "data",
    [
        header(100_000, 100_000) + PIXEL + END,
        header(1, 1) + chunk(b"zTXt", b"prompt\0\0" + zlib.compress(bytes(2 << 20))) + PIXEL + END,
        header(1, 1) + PIXEL + chunk(b"zTXt", b"a\0b\0") + END,
        header(1, 1) + PIXEL + chunk(b"iCCP", b"") + END,
    ],
    ids=["of 10 gigapixels", "with a bomb of a text", "of an unknown compression", "with an empty chunk"],
)
def test_a_hostile_file_is_named(tmp_path, data):
    file = tmp_path / "a.png"
    file.write_bytes(header(1, 1) + PIXEL + END)
    assert read_info(file) == {}
    file.write_bytes(data)
    with pytest.raises(UsageError, match=str(file)):
        read_info(file)


def test_two_pixels_are_one_character_above_each_other():
    red, blue, green = (255, 0, 0), (0, 0, 255), (0, 255, 0)
    image = np.array([[red, red], [blue, red], [green, red]], np.uint8)
    first, last = drawn(show(image, 10), "truecolor").splitlines()
    assert first == "\x1b[38;2;255;0;0;48;2;0;0;255m▀\x1b[0m\x1b[38;2;255;0;0;48;2;255;0;0m▀\x1b[0m"
    assert last == "\x1b[38;2;0;255;0m▀\x1b[0m\x1b[38;2;255;0;0m▀\x1b[0m"


@given(height=st.integers(1, 60), width=st.integers(1, 60), columns=st.integers(1, 30))
def test_it_is_never_wider_than_it_may_be_and_keeps_its_proportions(height, width, columns):
    lines = drawn(show(picture(height, width), columns), None).splitlines()
    wide = min(width, columns)
    assert {len(line) for line in lines} == {wide}
    assert len(lines) == (max(1, round(height * wide / width)) + 1) // 2


def test_without_colours_light_and_dark_are_shades():
    image = np.array([[[0] * 3, [128] * 3, [255] * 3]] * 2, np.uint8)
    assert drawn(show(image, 10), None) == " ▒█\n"
