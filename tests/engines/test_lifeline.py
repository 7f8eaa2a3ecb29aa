"""A child's stdin: the payload, then the line that tells it whether its host lives."""

from __future__ import annotations

import os
import select
import signal
import struct
import subprocess
import sys
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
import pytest

pytestmark = pytest.mark.process

ROOT = Path(__file__).parent.parent.parent

PRINTS = """
import os, sys
from omni_actors.engines._lifeline import read_payload
payload = read_payload()
print(payload["word"], os.environ["OMNI_TEST_WORD"], sys.stdin.read() == "")
"""
STUBBORN = """
import os, signal, subprocess, sys
from omni_actors.engines._lifeline import read_payload
read_payload(grace_s=0.1)
signal.signal(signal.SIGTERM, lambda *_: print("term", flush=True))
child = subprocess.Popen([sys.executable, "-S", "-c", "import signal; signal.pause()"])
print(child.pid, flush=True)
while True: signal.pause()
"""


@contextmanager
def child(program: str):
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env=env, process_group=0,
    ) as process:  # fmt: skip
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def send(process, payload: bytes, *, size: int | None = None) -> None:
    process.stdin.write(struct.pack("<Q", len(payload) if size is None else size) + payload)
    process.stdin.flush()


def test_the_payload_is_a_map_its_environment_is_applied_and_stdin_is_empty():
    with child(PRINTS) as process:
        send(process, msgspec.msgpack.encode({"env": {"OMNI_TEST_WORD": "there"}, "word": "here"}))
        assert process.stdout.readline() == b"here there True\n"
        assert process.wait(10) == 0


@pytest.mark.parametrize("sent", [b"", b"\x05", struct.pack("<Q", 100) + b"half"])
def test_a_host_that_goes_before_the_payload_is_sent(sent):
    with child(PRINTS) as process:
        assert process.communicate(sent, timeout=10) == (b"", b"")
        assert process.returncode == 3


@pytest.mark.parametrize(
    ("payload", "size"),
    [
        (b"\xc1", None),
        (msgspec.msgpack.encode([1]), None),
        (msgspec.msgpack.encode({"env": {"A": 1}}), None),
        (b"", 1 << 60),
    ],
)
def test_bytes_that_are_no_payload(payload, size):
    with child(PRINTS) as process:
        send(process, payload, size=size)
        assert process.wait(10) == 2
        (line,) = process.stderr.readlines()
        assert line.startswith(b"the payload on stdin")


def test_without_its_host_it_gets_sigterm_then_its_group_is_killed():
    with child(STUBBORN) as process:
        send(process, msgspec.msgpack.encode({}))
        grandchild = os.pidfd_open(int(process.stdout.readline()))
        try:
            process.stdin.close()
            assert process.stdout.readline() == b"term\n"
            assert process.wait(10) == -signal.SIGKILL
            poller = select.poll()
            poller.register(grandchild, select.POLLIN)
            assert poller.poll(5000)
        finally:
            os.close(grandchild)
