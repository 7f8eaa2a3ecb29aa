"""I24: after a runtime is closed, however it went, the process is as it was after the first complete cycle."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

PROGRAM = Path(__file__).with_name("cycles_program.py")


def test_nothing_is_left_after_any_cycle(run_base):
    done = subprocess.run([sys.executable, str(PROGRAM)], capture_output=True, text=True, timeout=150, check=False)
    assert done.returncode == 0, done.stderr
    first, *cycles = [json.loads(line) for line in done.stdout.splitlines()]
    assert [cycle["name"] for cycle in cycles] == [
        "whole",
        "failed_start",
        "cancelled_start",
        "killed_and_restarted",
        "killed_while_it_stops",
        "interrupted",
        "whole",
        "idle",
    ]
    assert first["state"]["children"] == first["state"]["run_folders"] == []
    for cycle in cycles:
        assert {**cycle["state"], "threads": 0} == {**first["state"], "threads": 0}, cycle["name"]
    # The first state may still have trio's idle threads in it: the last one has nothing but the interpreter's own.
    assert cycles[-1]["state"]["threads"] == 1
