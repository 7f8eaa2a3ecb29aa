"""What aborted requests left in shared memory goes, also what comes late; nothing else does."""

from __future__ import annotations

import os
import threading
import time
from types import SimpleNamespace

from omni_actors.vllm_omni import _sweeper


def fill(folder, *names):
    for name in names:
        (folder / name).write_bytes(b"x")


def holds(folder, names, limit_s=5.0):
    """Within the limit these files, and no others, are there."""
    deadline = time.monotonic() + limit_s
    while {path.name for path in folder.iterdir()} != set(names):
        assert time.monotonic() < deadline, sorted(path.name for path in folder.iterdir())
        threading.Event().wait(0.01)


KEYS = "omni_0_to_1_kv_cache_1-ab"
OURS = (
    "1-ab_0_0", "shm_1-ab_0_0_lockfile.lock", "1-ab_1_17", "shm_1-ab_1_17_lockfile.lock",
    KEYS, f"shm_{KEYS}_lockfile.lock", f"{KEYS}__cfg_text", f"shm_{KEYS}__cfg_text_lockfile.lock",
)  # fmt: skip
OTHERS = (
    "11-ab_0_0", "shm_11-ab_0_0_lockfile.lock", "1-abc_0_0", "psm_1-ab", "1-ab", "sem.mp-1-ab_0",
    f"{KEYS}c", "omni_0_to_1_kv_cache_11-ab__cfg_text",
)  # fmt: skip


def test_every_piece_of_an_aborted_request_goes_and_no_other(tmp_path):
    fill(tmp_path, *OURS, *OTHERS)
    _sweeper.Sweeper(str(tmp_path), (0.0,)).sweep(["1-ab"])
    holds(tmp_path, OTHERS)


def test_a_piece_that_is_written_after_the_abort_goes_too(tmp_path):
    fill(tmp_path, OURS[0])
    _sweeper.Sweeper(str(tmp_path), (0.0, 0.3)).sweep(["1-ab", "2-ab"])
    holds(tmp_path, ())
    fill(tmp_path, *OURS, "2-ab_0_3")
    holds(tmp_path, ())


def test_it_lives_on_where_somebody_else_was_faster(tmp_path, monkeypatch):
    def unlink(path):
        os.unlink(path)
        raise FileNotFoundError(path)

    monkeypatch.setattr(_sweeper, "os", SimpleNamespace(listdir=os.listdir, path=os.path, unlink=unlink))
    fill(tmp_path, *OURS)
    sweeper = _sweeper.Sweeper(str(tmp_path), (0.0,))
    sweeper.sweep(["1-ab"])
    holds(tmp_path, ())
    fill(tmp_path, "3-ab_0_0")
    sweeper.sweep(["3-ab"])
    holds(tmp_path, ())


def test_one_look_is_for_all_that_ended_meanwhile(tmp_path, monkeypatch):
    looks = []
    listdir = os.listdir
    monkeypatch.setattr(
        _sweeper,
        "os",
        SimpleNamespace(listdir=lambda path: looks.append(path) or listdir(path), path=os.path, unlink=os.unlink),
    )
    fill(tmp_path, *(f"{number:x}-ab_0_0" for number in range(200)))
    sweeper = _sweeper.Sweeper(str(tmp_path), (0.0, 0.1), pause_s=0.2)
    for number in range(200):
        sweeper.sweep([f"{number:x}-ab"])
    holds(tmp_path, ())
    assert len(looks) <= 4
