"""A host of real engines, to be killed: answers one question, says who lives, then goes on asking."""

from __future__ import annotations

import json

import attrs
import trio

from omni_actors import open_omni
from omni_actors.config import PipelineSpec, resolve
from omni_actors.testing.chaos import with_worker


def spec() -> PipelineSpec:
    """tiny-omni, its LLMs with workers."""
    found = resolve("tiny-omni", ()).spec
    return attrs.evolve(found, stages=[with_worker(s) if s.engine == "vllm" else s for s in found.stages])


async def main() -> None:
    async with open_omni(spec()) as omni:
        for _ in range(1_000_000):
            async with omni.generate("What is two plus three, and nine minus four?") as stream:
                text = (await stream.result()).text()
            print(json.dumps({"pids": dict(omni.pids()), "text": text}), flush=True)


if __name__ == "__main__":
    trio.run(main)
