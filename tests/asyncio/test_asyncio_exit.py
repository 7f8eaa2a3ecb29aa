"""Programs that forget to close, and programs that fork: real processes, and nothing of them stays."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

PROGRAM = Path(__file__).with_name("exit_program.py")


@pytest.fixture
def base():
    folder = Path(tempfile.mkdtemp(prefix="oa-"))  # socket paths must be short
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def run_program(how: str, base: Path) -> tuple[list[str], str, int]:
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, str(PROGRAM), how],
        env={**os.environ, "XDG_RUNTIME_DIR": str(base)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert time.monotonic() - began < 30
    return done.stdout.splitlines(), done.stderr, done.returncode


@pytest.mark.parametrize(("how", "code"), [("script", 0), ("loop", 0), ("error", 7)])
def test_a_forgotten_close(how, code, base):
    lines, stderr, ended = run_program(how, base)
    assert (ended, "Traceback" in stderr) == (code, False), stderr
    assert [pid for pid in lines[0].split() if Path("/proc", pid).exists()] == []
    assert list(base.iterdir()) == []


def test_a_forked_child_is_told_and_the_parent_goes_on(base):
    lines, stderr, ended = run_program("fork", base)
    assert ended == 0, stderr
    assert "a forked child has to open its own" in lines[1]
    assert lines[2] == "0 True"
    assert list(base.iterdir()) == []
