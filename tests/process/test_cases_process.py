"""What users of such systems ran into (CASES), with real processes: C9, C10 and C11."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import trio

from omni_actors import Kind, StageFailed
from omni_actors.testing.chaos import workers
from omni_actors.testing.rigs import core, open_in_time, pipeline

pytestmark = pytest.mark.process

SERVER = Path(__file__).with_name("server_program.py")


def start() -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, str(SERVER)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def hear(server: subprocess.Popen[str], said: str, **more) -> dict:
    for line in server.stdout:
        heard = json.loads(line)
        if heard["said"] == said and more.items() <= heard.items():
            return heard
    raise AssertionError(f"it never said {said!r}: {server.stderr.read()}")


@pytest.mark.parametrize("signals", [1, 2], ids=["once", "twice"])
def test_c9_a_server_is_asked_to_stop(run_base, watch, signals):
    server = start()
    engines = watch(*hear(server, "pids")["pids"].values())
    hear(server, "it streams", request="long")
    asked = time.monotonic()
    server.send_signal(signal.SIGTERM)
    hear(server, "refused")
    if signals == 2:
        time_left = asked + 0.5 - time.monotonic()
        subprocess.run(["sleep", str(max(0.0, time_left))], check=True)
        second = time.monotonic()
        server.send_signal(signal.SIGTERM)
    out, errors = server.communicate(timeout=20)
    ended = time.monotonic()
    assert server.returncode == 0, errors
    assert errors == ""  # no traceback, no engine called dead
    assert engines.alive_after(0) == set()
    heard = [json.loads(line) for line in out.splitlines()]
    kinds = {line["request"]: line["kind"] for line in heard if line["said"] == "it has ended"}
    closed = next(line for line in heard if line["said"] == "closed")
    assert closed["unreaped"] == []
    assert kinds["long"] == "ABORTED"
    if signals == 1:
        assert closed["killed"] == ["talker/0"]  # the one that ignores SIGTERM
        assert kinds["short"] == "FINISHED"
        # The drain budget, the abort, the stubborn engine's stop_s and kill_s; and the interpreter's own end.
        assert ended - asked <= 3.0 + 1.0 + 0.5 + 1.0
    else:
        assert ended - second <= 1.0


def test_c10_the_parent_is_killed_and_the_next_start_finds_nothing(run_base, watch):
    server = start()
    pids = hear(server, "pids")["pids"].values()
    engines = watch(*pids)
    hear(server, "it streams", request="long")
    server.kill()
    server.wait()
    assert engines.alive_after(5) == set()
    server.stdout.close()
    server.stderr.close()
    again = start()
    hear(again, "it streams", request="long")
    again.send_signal(signal.SIGTERM)
    hear(again, "refused")
    again.send_signal(signal.SIGTERM)
    again.communicate(timeout=20)
    assert again.returncode == 0
    assert os.listdir(run_base) == []


async def test_c11_a_rank_dies_while_its_group_waits_for_it(run_base, watch):
    long = {"tokens": 100_000, "params": {"max_tokens": 100_000}}
    painter = core("painter", output="image", workers=4, token_s=0.05, **long)
    async with open_in_time(pipeline(core("thinker", output="text", **long), painter)) as omni:
        pid = omni.pids()["painter/0"]
        ranks = workers(pid)
        assert len(ranks) == 4
        group = watch(pid, *ranks)
        async with omni.generate("talk", {"thinker": {"max_tokens": 300}}, modalities=["text"]) as talk:
            with pytest.raises(StageFailed, match="painter"):
                async with omni.generate("paint", modalities=["image"]) as stream:
                    await anext(stream)
                    os.kill(ranks[0], signal.SIGTERM)
                    await stream.result()
            assert await trio.to_thread.run_sync(group.alive_after, 3.0) == set()
            assert (await talk.result()).kind is Kind.FINISHED
