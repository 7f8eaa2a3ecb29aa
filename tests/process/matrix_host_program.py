"""A host to be ended by a signal: two fake stages, one with a worker, idle or at work for ever; says who lives."""

from __future__ import annotations

import json
import sys

import trio

from omni_actors import open_omni
from omni_actors.testing.rigs import SHORT, core, pipeline

LONG = {"max_tokens": 1_000_000}


def spec():
    thinker = core("thinker", output="text", tokens=1_000_000, token_s=0.005, params=LONG, deadlines=SHORT)
    return pipeline(thinker, core("painter", output="image", workers=1, tokens=1_000_000, params=LONG))


async def main(load: str) -> None:
    async with open_omni(spec()) as omni:
        async with trio.open_nursery() as nursery:
            if load == "loaded":
                await nursery.start(work, omni)
            print(json.dumps(dict(omni.pids())), flush=True)
            await trio.sleep_forever()


async def work(omni, task_status) -> None:
    async with omni.generate("hello") as stream:
        seen: set[str] = set()
        async for output in stream:
            seen.add(output.stage)
            if len(seen) == 2:
                task_status.started()
                break
        async for _ in stream:
            continue


if __name__ == "__main__":
    try:
        trio.run(main, sys.argv[1])
    except* KeyboardInterrupt:
        sys.exit(130)
