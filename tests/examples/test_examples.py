"""The examples run as they are, from their folder, and are short."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
SLOW = {
    "test_ask": ("ask.py", "What is two plus three?"),
    "test_ask_asyncio": ("ask_asyncio.py",),
    "test_ask_script": ("ask_script.py",),
    "test_asyncio_library_in_trio": ("asyncio_library_in_trio.py",),
    "test_guest_mode": ("guest_mode.py",),
    "test_port_from_vllm_omni": ("port_from_vllm_omni.py",),
}
"""What the tests of real engines run."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """For the one that writes files."""
    return tmp_path_factory.mktemp("ask")


@pytest.fixture(scope="module")
def under_way(request, folder) -> Iterator[dict[str, Future[str]]]:
    """Those that were asked for, two at a time: alone, each leaves one core idle for a third of its time."""
    asked = [item.name for item in request.session.items if item.path == request.path and item.name in SLOW]
    with ThreadPoolExecutor(2) as pool:
        where = {"test_ask": folder}
        yield {name: pool.submit(run, *SLOW[name], cwd=where.get(name, EXAMPLES)) for name in asked}
        pool.shutdown(cancel_futures=True)


@pytest.fixture
def out(request, under_way) -> str:
    """What this test's example said."""
    return under_way[request.node.name].result()


def run(name: str, *args: str, cwd: Path = EXAMPLES) -> str:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *args], cwd=cwd, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_an_example_is_at_most_60_lines(path):
    assert len(path.read_text().splitlines()) <= 60


@pytest.mark.process
def test_own_pipeline():
    lines = run("own_pipeline.py").splitlines()
    heard = "".join(line.partition(": ")[2] for line in lines if line.startswith("shouter"))
    said = "".join(line.partition(": ")[2] for line in lines if line.startswith("poet"))
    assert said.split() == ["Trio", "is", "a", "word.", "So", "is", "this", "one.", "And", "that", "is", "all."]
    assert heard.split("! ")[:3] == ["TRIO IS A WORD", "SO IS THIS ONE", "AND THAT IS ALL"]
    first_heard = next(number for number, line in enumerate(lines) if line.startswith("shouter"))
    assert any(line.startswith("poet") for line in lines[first_heard:]), "nothing was heard before the end"


@pytest.mark.engine
def test_ask(out, folder):
    assert "Two plus three is five." in out
    assert (folder / "answer.wav").stat().st_size > 24_000
    assert (folder / "answer-1.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.engine
def test_ask_asyncio(out):
    assert "What is two plus three? Two plus three is five." in out
    assert "What is nine minus four? Nine minus four is five." in out
    assert out.count("s of speech)") == 2


@pytest.mark.engine
def test_ask_script(out):
    lines = out.splitlines()
    assert lines[0].startswith("What is two plus three? Two plus three is five. (")
    assert lines[1] == "'': the question is empty"
    assert lines[2].startswith("What is nine minus four? Nine minus four is five. (")
    assert "One plus one is two. Two plus two is four." in lines[3]
    assert lines[4].startswith("In three tokens: ")


@pytest.mark.engine
def test_guest_mode(out):
    assert out.splitlines() == [
        "started: painter, talker, thinker, vocoder",
        "What is two plus three? Two plus three is five.",
        "What is nine minus four? Nine minus four is five.",
    ]


@pytest.mark.engine
def test_asyncio_library_in_trio(out):
    assert sorted(out.splitlines()) == [
        "asyncio: What is nine minus four? Nine minus four is five.",
        "trio: What is two plus three? Two plus three is five.",
    ]


@pytest.mark.engine
def test_port_from_vllm_omni(out):
    lines = sorted(out.splitlines())
    assert lines[0].startswith("difference: Nine minus four is five. (")
    assert lines[1].startswith("empty: InvalidRequest (400): ")
    assert lines[2].startswith("sum: Two plus three is five. (")


def test_find_a_bug(tmp_path):
    out = run("find_a_bug.py", cwd=tmp_path)
    assert "the transform find_a_bug:caption of stage painter raised IndexError" in out
    assert "upstream = {'poet': StageResult(stage='poet', finish_reason='stop')}" in out
    assert '{"ops":[{"type":"submit",' in out
    assert out.endswith("With careful_caption: 50 scenarios, no violation.\n")


@pytest.mark.process
@pytest.mark.parametrize("name", ["text_to_image.py", "text_to_image_async.py"])
def test_text_to_image(name, tiny_diffusion, tmp_path):
    lines = run(name, "--model", str(tiny_diffusion), "--steps", "3", "a cat", "a dog", cwd=tmp_path).splitlines()
    assert "a cat: picture-0.png" in lines
    assert "a dog: picture-1.png" in lines
    assert any(line.endswith("of 3") for line in lines)
    pictures = [(tmp_path / f"picture-{number}.png").read_bytes() for number in range(2)]
    assert all(picture.startswith(b"\x89PNG") for picture in pictures)
    assert pictures[0] != pictures[1]
