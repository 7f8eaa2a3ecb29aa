"""The run folder: made private, held by a lock, removed at the end, swept after its owner's death and never before."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from omni_actors._errors import ConfigError, UsageError
from omni_actors.transport import RunFolder, _runfolder, sweep_stale


@pytest.fixture
def base(run_folder: RunFolder) -> Path:
    """A short private folder to make run folders in."""
    folder = run_folder.path / "b"
    folder.mkdir()
    return folder


def forge(base: Path, name: str = "omni-0123ab", mark: bytes = _runfolder._MARK) -> Path:
    """What a dead runtime leaves behind."""
    folder = base / name
    folder.mkdir(mode=0o700)
    (folder / "lock").write_bytes(mark)
    return folder


def test_it_is_private_and_short_and_gone_after_close(base: Path):
    folder = RunFolder(base)
    assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700
    assert len(folder.path.name) == len("omni-") + 6
    (folder.path / "sub").mkdir()
    (folder.path / "sub" / "file").touch()
    folder.close()
    folder.close()
    assert not list(base.iterdir())


def test_names_of_forty_characters_fit_and_longer_ones_are_refused_by_name(base: Path):
    with RunFolder(base) as folder:
        address = folder.ipc("n" * 40)
        with socket.socket(socket.AF_UNIX) as sock:
            sock.bind(address.removeprefix("ipc://"))
        with pytest.raises(ConfigError, match=r"nnn.*107"):
            folder.ipc("n" * 100)
        with pytest.raises(UsageError):
            folder.ipc("../escape")
    assert not list(base.iterdir())


def test_closing_removes_links_and_not_what_they_point_to(base: Path):
    (base / "treasure").mkdir()
    (base / "treasure" / "gold").touch()
    with RunFolder(base) as folder:
        (folder.path / "link").symlink_to(base / "treasure")
    assert (base / "treasure" / "gold").exists()


def test_it_leaves_no_descriptor(base: Path):
    before = os.listdir("/proc/self/fd")
    with RunFolder(base):
        forge(base)
        sweep_stale(base)
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_a_live_folder_is_not_swept_and_a_dead_one_is(base: Path):
    dead = forge(base)
    (dead / "socket").touch()
    with RunFolder(base) as live:
        assert sweep_stale(base) == [dead]
        assert live.path.exists()
    assert sweep_stale(base) == []


@pytest.mark.process
def test_the_folder_of_a_killed_process_is_swept(base: Path):
    program = "import sys, pathlib; from omni_actors.transport import RunFolder; "
    program += "print(RunFolder(pathlib.Path(sys.argv[1])).path, flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", program, str(base)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        path = Path(child.stdout.readline().strip())
        assert path.parent == base
        assert sweep_stale(base) == []
        child.send_signal(signal.SIGKILL)
        child.wait()
    assert path.exists()
    assert sweep_stale(base) == [path]
    assert not path.exists()


@pytest.mark.process
def test_sweeping_never_takes_a_folder_that_is_being_made(base: Path):
    program = """
import pathlib, sys
from omni_actors.transport import RunFolder
for _ in range(400):
    with RunFolder(pathlib.Path(sys.argv[1])) as folder:
        (folder.path / "probe").touch()
        assert (folder.path / "lock").exists()
    assert not folder.path.exists()
"""
    with subprocess.Popen([sys.executable, "-c", program, str(base)]) as child:
        swept = []
        while child.poll() is None:
            swept += sweep_stale(base)
    assert child.returncode == 0
    assert swept == []
    assert list(base.iterdir()) == []


def test_a_sweep_between_any_two_steps_of_making_one(base: Path, monkeypatch: pytest.MonkeyPatch):
    sweeps: list[list[Path]] = []

    def around(name: str, module) -> None:
        real = getattr(module, name)

        def wrapped(*args, **kwargs):
            if not busy:
                busy.append(name)
                sweeps.append(sweep_stale(base))
                busy.clear()
            return real(*args, **kwargs)

        monkeypatch.setattr(module, name, wrapped)

    busy: list[str] = []
    for name, module in (("mkdir", os), ("open", os), ("flock", fcntl), ("write", os)):
        around(name, module)
    with RunFolder(base) as folder:
        assert (folder.path / "lock").exists()
        assert len(sweeps) >= 4
        assert not any(sweeps)


def test_losing_the_lock_to_a_sweeper_means_another_folder(base: Path, monkeypatch: pytest.MonkeyPatch):
    real, lost = _runfolder._locked, []

    def locked(lock: int) -> bool:
        if not lost:
            lost.append(lock)
            return False
        return real(lock)

    monkeypatch.setattr(_runfolder, "_locked", locked)
    with RunFolder(base) as folder:
        assert list(base.iterdir()) == [folder.path]


def test_only_what_is_surely_ours_is_swept(base: Path):
    forge(base, "omni-toolong")
    forge(base, "other-0123ab")
    forge(base, "omni-000001", mark=b"somebody else's")
    forge(base, "omni-000002", mark=b"")
    (base / "omni-000003").mkdir(mode=0o700)
    (base / "omni-000004").touch()
    forge(base, "omni-000005").chmod(0o755)
    kept = sorted(base.iterdir())
    assert sweep_stale(base) == []
    assert sorted(base.iterdir()) == kept


def test_a_link_is_never_followed(base: Path):
    (base / "away").mkdir()
    target = forge(base / "away")
    (base / "omni-0000aa").symlink_to(target)
    folder = forge(base, "omni-0000bb")
    (folder / "lock").unlink()
    (folder / "lock").symlink_to(target / "lock")
    assert sweep_stale(base) == []
    assert (target / "lock").exists()
    assert folder.exists()


def test_a_sweep_stops_at_what_it_can_not_remove_and_says_so(base: Path, monkeypatch, caplog):
    first, second = forge(base, "omni-00000a"), forge(base, "omni-00000b")
    real = os.rmdir

    def rmdir(path, **options):
        if Path(path) == first:
            raise OSError(errno.EBUSY, "busy")
        real(path, **options)

    monkeypatch.setattr(os, "rmdir", rmdir)
    assert sweep_stale(base) == [second]
    assert "omni-00000a" in caplog.text


def test_a_fork_does_not_remove_it(base: Path, monkeypatch: pytest.MonkeyPatch):
    folder = RunFolder(base)
    real = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: real + 1)
    folder.close()
    monkeypatch.undo()
    assert folder.path.exists()
    assert sweep_stale(base) == [folder.path]


def test_the_session_folder_is_preferred_and_a_missing_one_is_not(base: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(base))
    with RunFolder() as folder:
        assert folder.path.parent == base
        assert sweep_stale() == []
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(base / "missing"))
    monkeypatch.setattr("tempfile.tempdir", str(base))
    with RunFolder() as folder:
        assert folder.path.parent == base


def test_a_base_that_leaves_no_room_for_sockets_is_refused(base: Path, monkeypatch: pytest.MonkeyPatch):
    deep = base / ("d" * 60)
    deep.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(deep))
    with pytest.raises(ConfigError, match=r"too long.*XDG_RUNTIME_DIR"):
        RunFolder()


@pytest.mark.parametrize("call", ["mkdir", "write"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EACCES, errno.EROFS])
def test_a_full_or_read_only_disk_names_the_folder_and_the_variable(base: Path, monkeypatch, call: str, code: int):
    def fails(*args, **kwargs):
        raise OSError(code, os.strerror(code))

    monkeypatch.setenv("XDG_RUNTIME_DIR", str(base))
    monkeypatch.setattr(os, call, fails)
    with pytest.raises(ConfigError, match=r"XDG_RUNTIME_DIR") as caught:
        RunFolder()
    monkeypatch.undo()
    assert str(base) in str(caught.value)
    assert os.strerror(code) in str(caught.value)
    assert not list(base.iterdir())


def test_no_temporary_folder_at_all(monkeypatch: pytest.MonkeyPatch):
    def nowhere() -> str:
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found")

    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setattr("tempfile.gettempdir", nowhere)
    with pytest.raises(ConfigError, match="TMPDIR"):
        RunFolder()
