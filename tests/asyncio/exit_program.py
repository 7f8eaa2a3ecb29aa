"""A program with fake engine processes that ends, or forks, without a thought for them. Prints its engines' pids."""

from __future__ import annotations

import asyncio
import os
import sys

from omni_actors.testing.rigs import core, pipeline

SPEC = pipeline(core("llm", output="text", tokens=8_000, params={"max_tokens": None}))


def script() -> None:
    from omni_actors_asyncio import Omni

    omni = Omni(SPEC)
    print(*omni._bridge.omni.pids().values(), flush=True)
    answers = omni.generate(["x", "y"], {"max_tokens": 3}, stream=True)
    print(next(answers).text(), flush=True)
    omni.generate("z", stream=True)


async def begin():
    from omni_actors_asyncio import AsyncOmni

    omni = await AsyncOmni.open(SPEC)
    print(*omni._bridge.omni.pids().values(), flush=True)
    stream = omni.generate_omni("x")
    await anext(stream)
    return omni, stream


def loop() -> None:
    global kept
    kept = asyncio.run(begin())


def error() -> None:
    asyncio.run(begin())
    raise SystemExit(7)


def fork() -> None:
    from omni_actors import RuntimeClosed

    async def main() -> None:
        omni, stream = await begin()
        child = os.fork()
        if child == 0:
            try:
                omni.generate_omni("y")
            except RuntimeClosed as refused:
                stream.__del__()
                print(refused, flush=True)
            finally:
                os._exit(0)  # the parent's loop is not the child's to end
        _, code = await asyncio.to_thread(os.waitpid, child, 0)
        print(code, (await anext(stream)).text != "", flush=True)
        await omni.close(drain_s=0)

    asyncio.run(main())


globals()[sys.argv[1]]()
