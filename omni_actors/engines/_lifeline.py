"""A child's stdin: first its payload, then the line that tells it whether its host lives.

``read_payload`` is the first thing an engine process does. It reads one length-prefixed msgpack map (u64, little
endian), applies its ``env`` before anything heavy is imported, and leaves a daemon thread on the pipe: EOF means that
the host is gone, however it went. Then this process gets SIGTERM, ``grace_s`` later its whole group SIGKILL. (Not
PR_SET_PDEATHSIG: that fires when the *thread* that forked us ends.) The reaper does the same from outside, faster.

Keeps: nobody else reads our stdin (it becomes /dev/null), and SIGHUP is ignored here and, by inheritance, in all our
children: when the host dies while a member of our group is stopped, the kernel sends SIGHUP to the whole group, and
multiprocessing's resource trackers must survive that to unlink our shared memory.
"""

from __future__ import annotations

import os
import signal
import struct
import sys
import threading
import time
from typing import Any, NoReturn

import msgspec

from omni_actors.engines.reaper import GroupKill, identify

__all__ = ["GRACE_S", "MAX_PAYLOAD_BYTES", "NO_PAYLOAD", "kill_members", "read_payload"]

GRACE_S = 10.0
MAX_PAYLOAD_BYTES = 256 << 20
NO_PAYLOAD = 3
"""The exit code of a child whose host went away before it had sent the payload."""


def read_payload(*, grace_s: float = GRACE_S) -> dict[str, Any]:
    """The payload's map, its ``env`` applied to ``os.environ``. Call once, first, in the main thread.

    Exits with ``NO_PAYLOAD`` at an early EOF and with 2 (and a line on stderr) for bytes that are no payload.
    Waits without a deadline: an early EOF is the deadline.
    """
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    fd = _steal_stdin()
    raw = _receive(fd)
    try:
        payload = msgspec.msgpack.decode(raw, type=dict[str, Any])
        env = msgspec.convert(payload.get("env") or {}, dict[str, str])
    except msgspec.MsgspecError as error:
        _leave(2, f"the payload on stdin is not what it should be: {error}")
    os.environ.update(env)
    threading.Thread(target=_hold, args=(fd, grace_s), name="lifeline", daemon=True).start()
    return payload


def _steal_stdin() -> int:
    fd = os.dup(0)  # not inheritable
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    return fd


def _receive(fd: int) -> bytes:
    (size,) = struct.unpack("<Q", _read_exactly(fd, 8))
    if size > MAX_PAYLOAD_BYTES:
        _leave(2, f"the payload on stdin claims {size} bytes")
    return _read_exactly(fd, size)


def _read_exactly(fd: int, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        chunk = os.read(fd, min(size - len(data), 1 << 20))
        if not chunk:
            os._exit(NO_PAYLOAD)
        data += chunk
    return bytes(data)


def _hold(fd: int, grace_s: float) -> None:
    try:
        while os.read(fd, 4096):
            continue
    except OSError:
        os.close(fd)  # unreadable is as good as closed
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(grace_s)
    kill_members()
    os.kill(os.getpid(), signal.SIGKILL)


def kill_members() -> None:
    """SIGKILL the group we lead, except ourselves and resource trackers, which clean up when they see our end."""
    if os.getpgrp() == os.getpid() and (group := identify(os.getpid())) is not None:
        now = time.monotonic()
        kill = GroupKill([group], None, now, kill_s=1.0)
        kill.sweep(now)
        kill.close()


def _leave(code: int, words: str) -> NoReturn:
    print(words, file=sys.stderr, flush=True)
    os._exit(code)
