"""Stopping a real server: once it finishes what is running, twice it stops now."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest

from .server_process import ServerProcess

pytestmark = [pytest.mark.engine, pytest.mark.process, pytest.mark.filterwarnings("ignore")]

ANSWER = "One plus one is two."
CHAT = {
    "messages": [{"role": "user", "content": "What is one plus one?"}],
    "modalities": ["text", "audio"],
    "stream": True,
}


def test_a_first_signal_drains_a_second_one_stops_now(lent):
    server = lent.server()
    try:
        with server.client() as http, server.client() as other:
            os.kill(server.child("engines.generation"), signal.SIGSTOP)
            with http.stream("POST", "/v1/chat/completions", json=CHAT) as answer:
                events = (json.loads(line[6:]) for line in answer.iter_lines() if line.startswith("data: {"))
                said = ""
                while said != ANSWER:  # what is left of it is stuck in the vocoder
                    said += next(events)["choices"][0]["delta"].get("content", "")
                server.signal(signal.SIGTERM)
                deadline = time.monotonic() + 1
                while other.get("/ready").status_code == 200:
                    assert time.monotonic() < deadline
                refused = other.post("/v1/audio/speech", json={"input": "What is one plus one?"})
                assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
                assert other.get("/health").status_code == 200
                again_at = time.monotonic()
                server.signal(signal.SIGTERM)
                assert [event["choices"][0]["finish_reason"] for event in events][-1] == "abort"
        assert server.ended() == 0
        assert time.monotonic() - again_at < 10
        assert any("1 requests aborted" in line for line in server.lines)
    finally:
        server.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_it_imports(number):
    server = ServerProcess()
    try:
        wait_until_it_catches(server.process.pid, number)
        server.signal(number)
        assert server.ended() == 130
    finally:
        server.close()


def wait_until_it_catches(pid: int, number: signal.Signals) -> None:
    """The kernel's word for it; Python itself catches SIGINT from the first moment, and SIGTERM never."""
    deadline = time.monotonic() + 60
    while True:
        status = Path(f"/proc/{pid}/status").read_text()
        caught = int(next(line for line in status.splitlines() if line.startswith("SigCgt:")).split()[1], 16)
        if caught >> (signal.SIGTERM - 1) & 1 and caught >> (number - 1) & 1:
            return
        assert time.monotonic() < deadline


def test_a_signal_before_it_serves_gives_up_the_start():
    server = ServerProcess()
    try:
        server.wait_line("thinker (vllm): starting")
        server.signal(signal.SIGTERM)
        assert server.ended(within_s=300) == 130  # once what loads vLLM has come to its end
        assert any("the start is given up" in line for line in server.lines)
    finally:
        server.close()
