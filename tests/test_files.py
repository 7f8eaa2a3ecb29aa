"""A file is complete or absent, whatever happens while it is written; an older one stays until the new one is whole."""

import os
import shutil
import signal
import stat
import subprocess
import sys

import pytest

from omni_actors import _files
from omni_actors._errors import UsageError
from omni_actors._files import complete_file, ready_folder, usage_errors


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("before", [None, b"old"])
def test_a_block_that_ends_well_leaves_its_bytes(tmp_path, before):
    file = tmp_path / "answer"
    if before is not None:
        file.write_bytes(before)
    with complete_file(file) as stream:
        stream.write(b"new")
        assert (file.read_bytes() if file.exists() else None) == before
    assert contents(tmp_path) == {"answer": b"new"}


def test_it_is_synced_before_it_gets_its_name_and_the_folder_after(tmp_path, monkeypatch):
    file, acts = tmp_path / "answer", []
    fsync, replace = os.fsync, os.replace

    def watched_fsync(descriptor):
        what = "folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file"
        acts.append((f"sync the {what}", os.fstat(descriptor).st_size if what == "file" else None))
        fsync(descriptor)

    def watched_replace(source, target):
        acts.append(("rename", None))
        replace(source, target)

    monkeypatch.setattr(_files.os, "fsync", watched_fsync)
    monkeypatch.setattr(_files.os, "replace", watched_replace)
    with complete_file(file) as stream:
        stream.write(b"new")
    assert acts == [("sync the file", 3), ("rename", None), ("sync the folder", None)]


@pytest.mark.parametrize("before", [{}, {"answer": b"old"}])
def test_when_the_disk_fills_nothing_new_is_left(tmp_path, before, room_for):
    for name, data in before.items():
        (tmp_path / name).write_bytes(data)
    with room_for(4096), pytest.raises(OSError, match="File too large"):
        with complete_file(tmp_path / "answer") as stream:
            for _ in range(100):
                stream.write(b"x" * 1000)
    assert contents(tmp_path) == before


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_block_that_raises_leaves_the_old_file(tmp_path, error):
    file = tmp_path / "answer"
    file.write_bytes(b"old")
    with pytest.raises(error), complete_file(file) as stream:
        stream.write(b"new")
        stream.flush()
        raise error
    assert contents(tmp_path) == {"answer": b"old"}


WRITER = """\
import sys
from pathlib import Path
from omni_actors._files import complete_file
with complete_file(Path(sys.argv[1])) as stream:
    stream.write(b"half of it")
    stream.flush()
    print("written", flush=True)
    sys.stdin.read()
"""


@pytest.mark.process
def test_a_writer_that_is_killed_leaves_the_old_file(tmp_path):
    file = tmp_path / "answer"
    file.write_bytes(b"old")
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(file)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as writer:
        assert writer.stdout.readline() == b"written\n"
        assert b"half of it" in contents(tmp_path).values()
        writer.kill()
        assert writer.wait(10) == -signal.SIGKILL
    assert file.read_bytes() == b"old"


def test_a_link_stays_a_link(tmp_path):
    (tmp_path / "real").write_bytes(b"old")
    (tmp_path / "link").symlink_to("real")
    with complete_file(tmp_path / "link") as stream:
        stream.write(b"new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_bytes() == b"new"


def test_a_pipe_is_written_and_not_replaced(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        with complete_file(pipe) as stream:
            stream.write(b"new")
        assert os.read(reader, 10) == b"new"
    finally:
        os.close(reader)
    assert pipe.is_fifo()


def test_the_longest_name_has_room_and_who_may_read_it_is_as_ever(tmp_path):
    file, usual = tmp_path / ("x" * 255), tmp_path / "usual"
    usual.touch()
    with complete_file(file) as stream:
        stream.write(b"new")
    assert stat.S_IMODE(file.stat().st_mode) == stat.S_IMODE(usual.stat().st_mode)


def test_what_the_disk_refuses_names_the_file_and_its_folder(tmp_path):
    with pytest.raises(UsageError, match=f"cannot write answer into the folder {tmp_path}/nowhere: No such file"):
        with usage_errors(tmp_path / "nowhere" / "answer"), complete_file(tmp_path / "nowhere" / "answer"):
            raise AssertionError("there is no stream")


def test_a_folder_is_made_and_tried(tmp_path):
    ready_folder(tmp_path / "a" / "b")
    assert list((tmp_path / "a" / "b").iterdir()) == []


def test_a_folder_that_cannot_be_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=str(tmp_path / "file" / "out")):
        ready_folder(tmp_path / "file" / "out")


def test_a_full_disk_is_known_beforehand(tmp_path):
    free = shutil.disk_usage(tmp_path).free
    with pytest.raises(UsageError, match=f"{tmp_path} is full"):
        ready_folder(tmp_path, needed_bytes=free * 2)
