"""The host of real engines is SIGKILLed: engines, vLLM's workers, run folder and shared memory are gone (I24)."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from omni_actors.testing.os_state import Watch, children, descendants, shared_memory

pytestmark = [pytest.mark.engine, pytest.mark.process]
pytest.importorskip("vllm")
pytest.importorskip("hibari")

PROGRAM = Path(__file__).with_name("real_host_program.py")
START_S = 300.0
NOISE_S = 1.0


@contextmanager
def host(base: Path) -> Iterator[tuple[subprocess.Popen[str], dict[str, int]]]:
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(base), "HF_HUB_OFFLINE": "1"}
    with subprocess.Popen(
        [sys.executable, str(PROGRAM)], stdout=subprocess.PIPE, text=True, env=environment, process_group=0
    ) as process:
        watchdog = threading.Timer(START_S, process.kill)  # a silent host fails the test, it does not hang it
        watchdog.start()
        try:
            assert process.stdout is not None
            # vLLM's log goes to stdout too.
            first = next((line for line in process.stdout if line.startswith("{")), None)
            assert first, "it ended before it had answered"
            yield process, json.loads(first)["pids"]
        finally:
            watchdog.cancel()
            process.kill()


def trackers_of(pids: list[int]) -> set[int]:
    return {pid for pid in pids if b"resource_tracker" in Path(f"/proc/{pid}/cmdline").read_bytes()}


def test_sigkill_of_the_host_with_a_frozen_engine_leaves_nothing():
    base = Path(tempfile.mkdtemp(prefix="oa-"))  # socket paths must be short
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, base, ignore_errors=True)
        process, pids = stack.enter_context(host(base))
        everybody = descendants(process.pid)
        trackers, names = trackers_of(everybody), shared_memory(everybody)
        reapers = set(children(process.pid)) - set(pids.values()) - trackers
        assert len(reapers) == 1
        assert len(everybody) >= 4 + 2 + 1  # four engines, a worker of each LLM, the reaper
        assert names
        engines, rest = Watch(set(everybody) - trackers - reapers), Watch(trackers | reapers)
        stack.callback(engines.close)
        stack.callback(rest.close)
        os.kill(pids["talker/0"], signal.SIGSTOP)
        process.kill()
        killed_at = time.monotonic()
        assert engines.alive_after(1 + NOISE_S) == set()
        assert rest.alive_after(killed_at + 5 + NOISE_S - time.monotonic()) == set()
        assert list(base.iterdir()) == []
        assert [name for name in names if Path("/dev/shm", name).exists()] == []
