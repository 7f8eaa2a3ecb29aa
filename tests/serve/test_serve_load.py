"""A crowd at a server process on fake engines: everybody leaves when he likes, and a stage is killed among them."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import time
from collections.abc import Iterator

import pytest

from .fake_pipeline import holds, idle, serve_fakes
from .server_process import ServerProcess, ready_within
from .swarm import STREAM, ask, resident_mib, storm

pytestmark = [pytest.mark.process, pytest.mark.filterwarnings("ignore")]

CROWD = 500
WHOLE = {name: value for name, value in STREAM.items() if name != "stream"}
TEXT = {**WHOLE, "modalities": ["text"], "max_tokens": 20}


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[ServerProcess]:
    """One that speaks for ten seconds."""
    server = serve_fakes(tmp_path_factory.mktemp("fake"), chunks=1000, chunk_s=0.01)
    with server.until_stopped():
        yield server


def test_five_hundred_streams_that_leave_at_random_leave_nothing(server, http):
    draw = random.Random(1)

    def crowd() -> float:
        """Seconds until the engines hold nothing, after the last one has left."""
        leave_after = [draw.randrange(1, 40) for _ in range(CROWD)]
        told = asyncio.run(storm(server.url, [STREAM] * CROWD, leave_after))
        left_at = time.monotonic()
        assert {each.status for each in told} == {200}
        holds(http, idle, 10)
        return time.monotonic() - left_at

    for _ in range(3):
        crowd()
    warm = resident_mib(server.process.pid)
    took = [crowd() for _ in range(5)]
    assert max(took) <= 1, took
    grown = resident_mib(server.process.pid) - warm
    assert grown < 16, f"{grown:.1f} MiB after {5 * CROWD} more streams; {took}"


def test_a_stage_killed_under_load_fails_its_own_requests_at_once(server, http):
    async def story() -> None:
        loop = asyncio.get_running_loop()
        doomed = [asyncio.ensure_future(ask(server.url, WHOLE)) for _ in range(20)]
        doomed_streams = [asyncio.ensure_future(ask(server.url, STREAM)) for _ in range(20)]
        await asyncio.to_thread(holds, http, lambda now: now["stages"][2]["running"] >= 40, 10)
        texts = [asyncio.ensure_future(ask(server.url, {**TEXT, "max_tokens": 500})) for _ in range(20)]
        await asyncio.to_thread(holds, http, lambda now: now["stages"][0]["running"] >= 1, 10)
        killed_at = loop.time()
        os.kill(server.child("fake_omni"), signal.SIGKILL)
        looking = asyncio.ensure_future(asyncio.to_thread(ready_within, http, 503, 1))
        for told in await asyncio.gather(*doomed):
            assert (told.status, told.at - killed_at < 1) == (503, True), told
            assert b"retry-after: 1" in told.body
            assert b"stage vocoder failed at this request" in told.body
        for told in await asyncio.gather(*doomed_streams):
            assert told.at - killed_at < 1
            assert b"stage vocoder failed at this request" in told.body
        for told in await asyncio.gather(*texts):
            assert (told.status, told.complete or b'"finish_reason"' in told.body) == (200, True)
        assert "vocoder" in (await looking).json()["reason"]

    asyncio.run(story())
    assert http.get("/health").status_code == 200
    ready_within(http, 200, 20)
    again = http.post("/v1/chat/completions", content=json.dumps(TEXT))
    assert again.status_code == 200
