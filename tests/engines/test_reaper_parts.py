"""The reaper's parts, without a host that dies: what it believes, what it kills, what it removes."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omni_actors.engines import reaper
from omni_actors.engines.reaper import Folder, Group, GroupKill, adopt_folder, identify, remove_folder

SLEEPER = [sys.executable, "-S", "-c", "import signal; signal.pause()"]


@contextmanager
def sleeper(**options) -> Iterator[subprocess.Popen]:
    with subprocess.Popen(SLEEPER, process_group=0, **options) as process:
        try:
            yield process
        finally:
            process.kill()


def finish(kill: GroupKill) -> tuple[int, ...]:
    try:
        while not (step := kill.sweep(time.monotonic())).over:
            reaper._wait(step.pidfds, step.until)
        return step.alive
    finally:
        kill.close()


def test_a_group_is_killed():
    with sleeper() as process:
        assert finish(GroupKill([identify(process.pid)], None, time.monotonic(), kill_s=2)) == ()
        assert process.wait(1) == -signal.SIGKILL


def test_a_group_that_only_has_the_number_is_not_killed():
    """The pid was used again: the leader that has it now started at another time."""
    with sleeper() as process:
        before = identify(process.pid)._replace(started=1)
        assert finish(GroupKill([before], None, time.monotonic(), kill_s=2)) == ()
        assert process.poll() is None


def test_a_group_of_another_session_is_not_killed():
    with sleeper() as process:
        other = identify(process.pid)._replace(session=1)
        assert finish(GroupKill([other], None, time.monotonic(), kill_s=2)) == ()
        assert process.poll() is None


def test_the_kernels_and_inits_groups_are_never_killed():
    groups = [Group(0, 1, 0), Group(1, identify(1).started, identify(1).session)]
    assert finish(GroupKill(groups, None, time.monotonic(), kill_s=0.1)) == ()


def test_a_member_that_left_its_group_is_found_by_its_cookie():
    cookie = f"test-{secrets.token_hex(8)}"
    with (
        sleeper(env={**os.environ, reaper.COOKIE: f"{cookie}.1"}) as ours,
        sleeper(env={**os.environ, reaper.COOKIE: f"{cookie}.12"}) as sibling,
        sleeper(env={**os.environ, reaper.COOKIE: f"{cookie}x"}) as stranger,
    ):
        assert finish(GroupKill([], f"{cookie}.1", time.monotonic(), kill_s=2)) == ()
        assert ours.wait(1) == -signal.SIGKILL
        assert sibling.poll() is None
        assert finish(GroupKill([], cookie, time.monotonic(), kill_s=2)) == ()
        assert sibling.wait(1) == -signal.SIGKILL
        assert stranger.poll() is None


@pytest.mark.parametrize("cookie", ["", None, "short"])
def test_a_cookie_that_could_match_strangers_matches_nobody(cookie):
    with sleeper(env={**os.environ, reaper.COOKIE: cookie or ""}) as process:
        assert finish(GroupKill([], cookie, time.monotonic(), kill_s=0.1)) == ()
        assert process.poll() is None


def test_a_tracker_that_does_not_end_is_killed_after_its_grace():
    argv = [sys.executable, "-S", "-c", "import signal; signal.pause()", "multiprocessing.resource_tracker"]
    with subprocess.Popen(argv, process_group=0) as process:
        started = time.monotonic()
        kill = GroupKill([identify(process.pid)], None, started, kill_s=2, tracker_s=0.2)
        step = kill.sweep(started)
        assert step.alive == (process.pid,)
        assert step.until == started + 0.2
        assert finish(kill) == ()
        assert process.wait(1) == -signal.SIGKILL
        assert time.monotonic() - started >= 0.2


def test_what_cannot_be_killed_is_reported_in_time():
    with sleeper() as process:
        kill = GroupKill([identify(process.pid)], None, 0.0, kill_s=2, tracker_s=3)
        kill._signal = lambda member, signum: None  # as for a process that hangs in the kernel
        assert not kill.sweep(0.0).over
        assert not kill.sweep(2.0).over
        last = kill.sweep(2.0 + 3 + reaper.LAST_S)
        assert last.over
        assert last.alive == (process.pid,)
        kill.close()


def test_zombies_are_not_waited_for():
    with sleeper() as process:
        group = identify(process.pid)
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and is not reaped
        assert GroupKill([group], None, time.monotonic(), kill_s=2).sweep(time.monotonic()).over


def test_a_run_folder_goes_with_everything_in_it(tmp_path):
    folder = tmp_path / "omni-1"
    folder.mkdir(mode=0o700)
    (folder / "p1").mkdir()
    (folder / "p1" / "socket").touch()
    (folder / "link").symlink_to(tmp_path)
    assert remove_folder(adopt_folder(str(folder)))
    assert not folder.exists()
    assert tmp_path.exists()


def test_only_a_private_folder_of_ours_is_adopted(tmp_path):
    (tmp_path / "other").mkdir(mode=0o700)
    (tmp_path / "omni-open").mkdir(mode=0o755)
    (tmp_path / "omni-private").mkdir(mode=0o700)
    (tmp_path / "omni-link").symlink_to(tmp_path / "omni-private")
    (tmp_path / "omni-file").touch(mode=0o700)
    refused = ["other", "omni-open", "omni-link", "omni-file", "omni-missing", "omni-private/", "x/../omni-private"]
    assert [name for name in refused if adopt_folder(f"{tmp_path}/{name}")] == []
    assert adopt_folder("/") is adopt_folder("") is adopt_folder("omni-private") is None
    assert adopt_folder(str(tmp_path / "omni-private"))


def test_a_folder_that_took_the_place_of_ours_is_not_removed(tmp_path):
    path = tmp_path / "omni-1"
    path.mkdir(mode=0o700)
    folder = adopt_folder(str(path))
    path.rename(tmp_path / "omni-2")
    path.mkdir(mode=0o700)
    (path / "precious").touch()
    assert not remove_folder(folder)
    assert (path / "precious").exists()
    assert not remove_folder(Folder(str(tmp_path / "omni-2"), folder.device, folder.inode + 1))


def test_of_shared_memory_it_removes_what_is_named_after_its_own_requests(tmp_path):
    ours = ["1f-0a1b2c_0_0", "shm_1f-0a1b2c_0_0_lockfile.lock", "2-0a1b2c-1_0"]
    ours += ["omni_0_to_1_kv_cache_1f-0a1b2c", "shm_omni_0_to_1_kv_cache_1f-0a1b2c__cfg_text_lockfile.lock"]
    others = [
        "1f-0a1b2d_0_0",
        "psm_0a1b2c_",
        "x1f-0a1b2c_0",
        "1f-0a1b2cc_0",
        "0a1b2c_0",
        "omni_0_to_1_kv_cache_1f-0a1b2cc",
    ]
    for name in ours + others:
        (tmp_path / name).touch()
    for cookie in ("", "0a", "omni-.{6,9}", "OMNI-0A1B2C"):
        reaper.remove_shared(cookie, str(tmp_path))
    assert len(list(tmp_path.iterdir())) == 11
    reaper.remove_shared("omni-ffffffffff0a1b2c", str(tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(others)


def test_it_answers_what_must_be_known_before_it_goes_on(tmp_path):
    ward = reaper._Ward()
    folder = tmp_path / "omni-1"
    folder.mkdir(mode=0o700)
    assert ward.feed(b"cookie abcdefgh\ngro") == b""
    assert ward.feed(f"up {os.getpid()} 7 8\n".encode()) == f"ok {os.getpid()}\n".encode()
    assert ward.groups == {os.getpid(): Group(os.getpid(), 7, 8)}
    assert ward.feed(f"folder {folder}\n".encode()) == f"ok {folder}\n".encode()
    assert ward.feed(f"forget {os.getpid()}\nforget 99\nfolder\n".encode()) == b"no \n"
    assert (ward.groups, ward.folder, ward.cookie) == ({}, None, "abcdefgh")


@given(
    st.binary(max_size=200) | st.lists(st.sampled_from([b"group", b"forget", b" ", b"1", b"\n", b"x"])).map(b"".join)
)
def test_nonsense_neither_stops_it_nor_makes_it_kill(data):
    ward = reaper._Ward()
    answer = ward.feed(data + b"\n")
    assert all(line[:2] in (b"no", b"ok") for line in answer.splitlines() if line)
    assert not {pgid for pgid in ward.groups if pgid <= 1}
