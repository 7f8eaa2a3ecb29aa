"""StageCoreProc with arguments that make no engine: it says so in one line and goes."""

from __future__ import annotations

import secrets
import sys
from pathlib import Path

import msgspec
import pytest
import trio

from omni_actors.stages._interface import Launch
from omni_actors.stages._process import open_launcher

pytestmark = [pytest.mark.process, pytest.mark.engine]

ROOT = Path(__file__).parent.parent.parent
ENV = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}


CASES = [
    ({"model": "nowhere", "modle": "x"}, "modle"),
    ({"model": "./no/such/folder"}, "no/such/folder"),
]


async def test_arguments_that_make_no_engine():
    """Both at once: it takes an import of vLLM to know."""

    async def refused(launcher, number, engine_args, words):
        payload = msgspec.msgpack.encode({"env": {}, "engine_args": engine_args, "handshake": "ipc://unused"})
        argv = [sys.executable, "-m", "omni_actors.engines.core_proc"]
        launch = Launch(stage="thinker", replica=number, generation=1, argv=argv, env=ENV, payload=payload)
        process = await launcher.spawn(launch)
        assert await process.wait() == 2
        last = process.tail()[-1]
        assert last.startswith("no engine can be made of these arguments: ")
        assert words in last
        assert await process.destroy(2) == ()

    with trio.fail_after(120):
        async with open_launcher(cookie=f"test-{secrets.token_hex(8)}") as launcher, trio.open_nursery() as nursery:
            for number, case in enumerate(CASES):
                nursery.start_soon(refused, launcher, number, *case)
