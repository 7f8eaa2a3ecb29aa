"""``examples/serve_in_trio.py`` as a process: signals under load on fake engines; vLLM's whole server on real ones."""

from __future__ import annotations

import base64
import json
import signal
import sys
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from .server_process import ServerProcess
from .trio_service import EXAMPLE

CHAT = "/v1/chat/completions"
STREAM = {"messages": [{"role": "user", "content": "hello"}], "modalities": ["text", "audio"], "stream": True}


class Service(ServerProcess):
    """The example on fake engines, whose vocoder says so many chunks, one each 20 ms."""

    said_at = "Running on"

    def __init__(self, chunks: int) -> None:
        super().__init__(command=(sys.executable, str(Path(__file__).with_name("trio_service.py")), str(chunks)))


def speaking_to(service: ServerProcess, clients: int) -> tuple[ThreadPoolExecutor, list[Future[list[str]]]]:
    """So many chats with sound under way: each has its first event."""
    begun = threading.Barrier(clients + 1)

    def chat() -> list[str]:
        with service.client() as http, http.stream("POST", CHAT, json=STREAM) as answer:
            lines = (line.removeprefix("data: ") for line in answer.iter_lines() if line)
            first = next(lines)
            begun.wait(30)
            return [first, *lines]

    pool = ThreadPoolExecutor(clients)
    chats = [pool.submit(chat) for _ in range(clients)]
    begun.wait(30)
    return pool, chats


@pytest.mark.process
def test_a_signal_under_load_drains_and_leaves_nothing():
    service = Service(chunks=100)
    try:
        with service.client() as http:
            pool, chats = speaking_to(service, 8)
            service.signal(signal.SIGTERM)
            while http.get("/ready").status_code == 200:
                pass
            refused = http.post("/v1/audio/speech", json={"input": "hello"})
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        with pool:
            said = [chat.result(30) for chat in chats]
        assert [events[-1] for events in said] == ["[DONE]"] * 8
        assert [json.loads(events[-2])["choices"][0]["finish_reason"] for events in said] == ["stop"] * 8
        assert service.ended() == 0
    finally:
        service.close()


@pytest.mark.process
def test_a_second_signal_ends_it_now():
    service = Service(chunks=100_000)
    try:
        pool, chats = speaking_to(service, 4)
        service.signal(signal.SIGTERM)
        with service.client() as http:
            while http.get("/ready").status_code == 200:
                pass
            again_at = time.monotonic()
            service.signal(signal.SIGTERM)
        with pool:
            said = [chat.result(30) for chat in chats]
        assert [json.loads(events[-2])["choices"][0]["finish_reason"] for events in said] == ["abort"] * 4
        assert service.ended() == 0
        assert time.monotonic() - again_at < 10
    finally:
        service.close()


@pytest.mark.engine
@pytest.mark.process
def test_vllms_whole_server_runs_inside_a_trio_service():
    service = ServerProcess(command=(sys.executable, str(EXAMPLE), "0"))
    service.said_at = "Running on"
    question = {"messages": [{"role": "user", "content": "What is two plus three?"}]}
    answer = "Two plus three is five."
    try:
        with service.client() as http:
            assert http.get("/ask", params={"question": "What is two plus three?"}).text == answer
            assert http.post(CHAT, json=question).json()["choices"][0]["message"]["content"] == answer
            assert http.post("/tokenize", json=question).json()["count"] > 5
            assert b"http_requests_total" in http.get("/metrics").content
            assert http.post(CHAT, json=question | {"model": "other"}).status_code == 404
            both = http.post(CHAT, json=question | {"modalities": ["text", "audio"], "audio": {"format": "wav"}}).json()
            assert len(base64.b64decode(both["choices"][0]["message"]["audio"]["data"])) > 10_000
            with http.stream("POST", CHAT, json=question | {"stream": True, "ignore_eos": True}) as left:
                identity = json.loads(next(left.iter_lines()).removeprefix("data: "))["id"]
            deadline = time.monotonic() + 5
            while http.post("/v1/omni/abort", json={"request_id": identity}).json()["known"]:
                assert time.monotonic() < deadline
            with http.stream("POST", CHAT, json=question | {"stream": True}) as last:
                lines = (line for line in last.iter_lines() if line)
                next(lines)
                service.signal(signal.SIGTERM)
                assert list(lines)[-1] == "data: [DONE]"
        assert service.ended() == 0
    finally:
        service.close()
