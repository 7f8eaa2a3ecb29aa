"""Real engines that do not start: the error is the child's own words, in time, and the siblings are gone."""

from __future__ import annotations

import os

import attrs
import pytest
import trio

from omni_actors import ConfigError, StartupFailed
from omni_actors.testing.os_state import children
from omni_actors.testing.rigs import SHORT, core, open_in_time, pipeline, speech

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("run_base")]

NOISE_S = 1.0
INTERPRETER_S = 5.0
"""From the start of three Python processes until the last of them has said something, on a busy machine."""


async def start(spec) -> StartupFailed:
    with pytest.raises(StartupFailed) as caught:
        async with open_in_time(spec):
            pytest.fail("it started")
    return caught.value


async def test_c13_a_stage_that_exits_in_its_handshake():
    talker = {"handshake": "exit", "exit_code": 3, "stderr": "no such weights"}
    begun = trio.current_time()
    error = await start(speech(talker=talker, vocoder={"start_s": 15}))
    assert trio.current_time() - begun <= INTERPRETER_S
    assert (error.stage, error.exit_code, error.signal) == ("talker", 3, None)
    assert error.stderr_tail == ("no such weights",)
    assert all(words in str(error) for words in ("talker", f"pid {error.pid}", "exited with code 3", "no such weights"))


async def test_c13_a_stage_that_stays_silent():
    deadlines = attrs.evolve(SHORT, start_s=3)
    begun = trio.current_time()
    error = await start(speech(talker={"handshake": "silent", "stderr": "loading", "deadlines": deadlines}))
    assert 3 <= trio.current_time() - begun <= 3 + NOISE_S
    assert (error.stage, error.verdict) == ("talker", "hang")
    assert "did not become ready within 3 s" in str(error)
    assert "loading" in str(error)


async def test_the_same_on_the_omni_wire():
    error = await start(speech(vocoder={"exit_at_start": 7, "stderr": "no such voice"}))
    assert (error.stage, error.exit_code) == ("vocoder", 7)
    assert "no such voice" in str(error)


async def test_an_interpreter_that_does_not_exist():
    error = await start(speech(talker={"python": "no-such-python"}))
    assert error.stage == "talker"
    assert "no-such-python" in str(error)


async def test_an_interpreter_with_an_error_of_its_own():
    error = await start(speech(talker={"env": {"PYTHONHOME": "nowhere"}}))
    assert (error.stage, error.exit_code) == ("talker", 1)
    assert any("nowhere" in line or "encodings" in line for line in error.stderr_tail)


async def test_cancelled_while_it_starts():
    begun = trio.current_time()
    with trio.move_on_after(1) as scope:
        async with open_in_time(speech(talker={"start_s": 30})):
            pytest.fail("it started")
    assert scope.cancelled_caught
    assert trio.current_time() - begun <= 2 + NOISE_S


@pytest.mark.parametrize("variable", ["XDG_RUNTIME_DIR", "TMPDIR"])
async def test_a_place_too_deep_for_sockets(monkeypatch, tmp_path, variable):
    nowhere = tmp_path / ("too-long-for-sockets" * 6)
    nowhere.mkdir()
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    monkeypatch.setenv(variable, str(nowhere))
    monkeypatch.setattr("tempfile.tempdir", None)
    await refuse(variable)


async def test_a_place_where_nothing_can_be_made(monkeypatch):
    """Not a folder without permission to write: root, as in a container, may write there all the same."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/proc")
    await refuse("XDG_RUNTIME_DIR")


async def refuse(variable: str) -> None:
    before = children(os.getpid())
    with pytest.raises(ConfigError, match=variable):
        async with open_in_time(pipeline(core("llm", output="text"))):
            pytest.fail("it started")
    assert children(os.getpid()) == before
