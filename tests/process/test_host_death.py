"""The host is SIGKILLed: nothing of it is left (I24)."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

HERE = Path(__file__).parent
ROOT = HERE.parent.parent


@contextmanager
def host_of_a_family(folder: Path, mode: str, salt: str = "000000") -> Iterator[tuple[subprocess.Popen[str], dict]]:
    folder.mkdir(mode=0o700)
    (folder / "engine.sock").touch()
    command = [sys.executable, str(HERE / "host_program.py"), str(folder), f"test-{secrets.token_hex(5)}{salt}", mode]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env, process_group=0) as host:
        assert host.stdout is not None
        watchdog = threading.Timer(30, host.kill)  # a silent host fails the test, it does not hang it
        watchdog.start()
        who: dict = {}
        for line in host.stdout:
            if line.startswith("{"):
                who |= json.loads(line)
            if "members" in who:
                break
        try:
            yield host, who
        finally:
            watchdog.cancel()
            host.kill()


@pytest.mark.parametrize("mode", ["running", "stopped"])
def test_sigkill_of_the_host_leaves_nothing(tmp_path, watch, mode):
    folder = tmp_path / "omni-run"
    with host_of_a_family(folder, mode) as (host, who):
        members, tracker, reaper = watch(*who["members"]), watch(who["tracker"]), watch(who["reaper"])
        block = Path("/dev/shm", who["shm"])
        assert block.exists()
        assert len(members.alive_after(0)) == 5
        host.kill()
        host.wait(5)
        assert members.alive_after(1.0) == set()
        assert tracker.alive_after(4.0) == set()
        assert reaper.alive_after(1.0) == set()
        assert not block.exists()
        assert not folder.exists()


def test_what_its_engines_had_for_each_other_in_shared_memory_goes_too(tmp_path, watch):
    salt = secrets.token_hex(3)
    piece, stranger = Path("/dev/shm", f"1-{salt}_0_0"), Path("/dev/shm", f"test-{salt}")
    with host_of_a_family(tmp_path / "omni-run", "running", salt) as (host, who):
        reaper = watch(who["reaper"])
        piece.touch()
        stranger.touch()
        try:
            host.kill()
            assert reaper.alive_after(5.0) == set()
            assert (piece.exists(), stranger.exists()) == (False, True)
        finally:
            stranger.unlink()
            piece.unlink(missing_ok=True)


def test_a_signal_to_the_reaper_does_not_stop_it(tmp_path, watch):
    folder = tmp_path / "omni-run"
    with host_of_a_family(folder, "running") as (host, who):
        members, reaper = watch(*who["members"]), watch(who["reaper"])
        for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            os.kill(who["reaper"], signum)
        host.kill()
        host.wait(5)
        assert members.alive_after(1.0) == set()
        assert reaper.alive_after(4.0) == set()


def test_the_reaper_is_not_in_the_hosts_group(tmp_path):
    with host_of_a_family(tmp_path / "omni-run", "running") as (host, who):
        assert os.getpgid(who["reaper"]) == who["reaper"] != os.getpgid(host.pid)
        assert os.getpgid(who["members"][0]) == who["members"][0]
        assert os.getsid(who["members"][0]) == os.getsid(host.pid)
