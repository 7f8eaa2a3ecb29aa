"""Both kinds of event loop, a pipeline on them, and nothing left behind by either."""

from __future__ import annotations

import asyncio
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import uvloop

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # torch's own, when vLLM imports it
    from omni_actors_asyncio import AsyncOmni

from omni_actors.testing import MemoryWorld
from omni_actors.testing.rigs import core, pipeline

LOOPS = {"asyncio": asyncio.run, "uvloop": uvloop.run}


@pytest.fixture(params=LOOPS)
def run(request) -> Callable[..., Any]:
    """``run(main, …)``: on asyncio's own loop and on uvloop, bounded."""

    def run(main, *args, within_s: float = 60):
        async def bounded():
            async with asyncio.timeout(within_s):
                return await main(*args)

        return LOOPS[request.param](bounded())

    return run


@pytest.fixture(autouse=True)
def no_thread_stays() -> Iterator[None]:
    """Bridges end with their tests; loops' and trio's idle worker threads may stay a while."""
    yield
    assert [thread.name for thread in threading.enumerate() if thread.name == "omni-actors"] == []


def llm(**more: Any) -> AsyncOmni:
    """One LLM stage in memory."""
    stage = {"output": "text", **more}
    return AsyncOmni(pipeline(core("llm", **stage)), world=MemoryWorld())


def endless(**more: Any) -> AsyncOmni:
    """One that talks until it is told to stop."""
    return llm(**{"tokens": 8_000, "token_s": 0.002, "params": {"max_tokens": None}, **more})


async def idle_within(omni: AsyncOmni, limit_s: float, stage: str = "llm") -> bool:
    """Whether the engines of a stage hold nothing within so many seconds; each look is a round trip to them."""
    deadline = time.monotonic() + limit_s
    while any(await omni.call(stage, "has_work")):
        if time.monotonic() > deadline:
            return False
    return True
