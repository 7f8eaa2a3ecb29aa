"""The host of a whole runtime is killed or interrupted: its engines end with it, and nothing of it is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from omni_actors.testing.os_state import children, descendants

pytestmark = pytest.mark.process

HERE = Path(__file__).parent
NOISE_S = 1.0
HANG_S = 2.0
"""As in the host's program."""

DEPLOYED = """\
name: interrupted
drain_s: {drain_s}
stages:
  - name: llm
    engine: fake-core
    engine_args: {{tokens: {tokens}, token_s: 0.01}}
    params: {{max_tokens: {tokens}}}
    output: text
    deadlines: {{stop_s: 1, kill_s: 1}}
"""


@contextmanager
def host(*command: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, process_group=0
    ) as process:
        watchdog = threading.Timer(60, process.kill)  # a silent host fails the test, it does not hang it
        watchdog.start()
        try:
            yield process
        finally:
            watchdog.cancel()
            process.kill()


def until_it_says(process: subprocess.Popen[str], words: str) -> dict:
    assert process.stdout is not None
    for line in process.stdout:
        if (said := json.loads(line))["said"] == words:
            return said
    raise AssertionError(f"it ended before it said {words!r}: {process.stderr and process.stderr.read()}")


@pytest.mark.parametrize("stopped", [None, "thinker/0", "vocoder/0"])
def test_sigkill_while_it_streams(run_base, watch, stopped):
    with host(str(HERE / "runtime_host_program.py"), "0") as process:
        pids = until_it_says(process, "it streams")["pids"]
        everybody = descendants(process.pid)
        reapers = set(children(process.pid)) - set(pids.values())
        assert len(reapers) == 1
        assert set(pids.values()) < set(everybody)
        engines, reaper = watch(*set(everybody) - reapers), watch(*reapers)
        if stopped is not None:
            os.kill(pids[stopped], signal.SIGSTOP)
        process.kill()
        assert engines.alive_after(1 + NOISE_S) == set()
        assert reaper.alive_after(4) == set()
        assert list(run_base.iterdir()) == []


def test_sigkill_while_it_starts(run_base, watch):
    with host(str(HERE / "runtime_host_program.py"), "60") as process:
        until_it_says(process, "the vocoder is ready")
        # The reaper and three engines; while an engine imports, Python's ctypes has children of its own for moments.
        assert len(children(process.pid)) == 4
        everybody = watch(*descendants(process.pid))
        process.kill()
        assert everybody.alive_after(5) == set()
        assert list(run_base.iterdir()) == []


def test_the_lifeline_alone_is_enough(run_base, watch):
    """The reaper died with the host: each engine still hears that its host is gone."""
    with host(str(HERE / "runtime_host_program.py"), "0") as process:
        pids = until_it_says(process, "it streams")["pids"]
        engines = watch(*pids.values())
        (reaper,) = set(children(process.pid)) - set(pids.values())
        os.kill(process.pid, signal.SIGSTOP)  # so that it cannot start another one
        os.kill(reaper, signal.SIGKILL)
        process.kill()
        assert engines.alive_after(1 + NOISE_S) == set()
    (folder,) = run_base.iterdir()
    assert [path.name for path in _swept(run_base)] == [folder.name]


def test_a_host_that_was_frozen_itself_blames_no_engine(run_base, watch):
    """Ctrl-Z and fg: it was the host that did not listen for longer than ``hang_s``, not the engine that was silent."""
    with host(str(HERE / "runtime_host_program.py"), "0") as process:
        until_it_says(process, "it streams")
        everybody = watch(*descendants(process.pid))
        for _ in range(2):
            process.send_signal(signal.SIGSTOP)
            time.sleep(1.5 * HANG_S)  # what is tested is that time passes
            process.send_signal(signal.SIGCONT)
            resumed_at = time.monotonic()
            while until_it_says(process, "it streams on")["at"] < resumed_at + HANG_S / 2:
                pass
        process.kill()
        assert everybody.alive_after(5) == set()


def _swept(base: Path) -> list[Path]:
    """What the next runtime does first."""
    from omni_actors.transport import sweep_stale

    return sweep_stale(base)


def interrupted(tmp_path: Path, *, tokens: int, drain_s: float):
    deploy = tmp_path / "deploy.yaml"
    deploy.write_text(DEPLOYED.format(tokens=tokens, drain_s=drain_s))
    program = "from omni_actors.cli import main; main()"
    return host("-c", program, "generate", str(deploy), "--prompt", "hello")


def test_sigint_once_drains(run_base, watch, tmp_path):
    with interrupted(tmp_path, tokens=150, drain_s=60) as process:
        assert process.stdout is not None
        begin = os.read(process.stdout.fileno(), 1).decode()  # not its buffer's: communicate passes that by
        engines = watch(*descendants(process.pid))
        process.send_signal(signal.SIGINT)
        rest, said = process.communicate(timeout=30)
        assert len((begin + rest).strip()) == 150, said
        assert process.returncode == 130
        assert engines.alive_after(0) == set()


def test_sigint_twice_ends_it_now(run_base, watch, tmp_path):
    with interrupted(tmp_path, tokens=100_000, drain_s=60) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        os.read(process.stdout.fileno(), 1)
        engines = watch(*descendants(process.pid))
        process.send_signal(signal.SIGINT)
        while "interrupted" not in (line := process.stderr.readline()):
            assert line, "it ended at the first one"
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=5)
        assert process.returncode == 130
        assert engines.alive_after(0) == set()
