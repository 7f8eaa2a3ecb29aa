"""A host of one real engine, to be ended by a signal: idle, or always at work. Says who lives when it is so."""

from __future__ import annotations

import json
import sys

import attrs
import trio

from omni_actors import open_omni
from omni_actors.config import PipelineSpec, resolve
from omni_actors.testing.chaos import with_worker

LONG = {"ignore_eos": True, "max_tokens": 180}


def spec(method: str) -> PipelineSpec:
    (thinker, *_) = resolve("tiny-omni", ()).spec.stages
    return PipelineSpec(name="matrix", stages=[with_worker(attrs.evolve(thinker, output="text"), method)])


async def main(load: str, method: str) -> None:
    async with open_omni(spec(method)) as omni:
        async with omni.generate("What is two plus three?") as stream:
            await stream.result()
        for _ in range(1_000_000 if load == "loaded" else 0):
            async with omni.generate("What is two plus three?", LONG) as stream:
                await anext(stream)
                print(json.dumps(dict(omni.pids())), flush=True)
                await stream.result()
        print(json.dumps(dict(omni.pids())), flush=True)
        await trio.sleep_forever()


if __name__ == "__main__":
    try:
        trio.run(main, *sys.argv[1:])
    except* KeyboardInterrupt:
        sys.exit(130)
