"""A host of real engines, to be killed: answers one question, says who lives, then goes on asking."""

from __future__ import annotations

import json

import trio

from omni_actors import open_omni


async def main() -> None:
    async with open_omni("tiny-omni") as omni:
        for _ in range(1_000_000):
            async with omni.generate("What is two plus three, and nine minus four?") as stream:
                text = (await stream.result()).text()
            print(json.dumps({"pids": dict(omni.pids()), "text": text}), flush=True)


if __name__ == "__main__":
    trio.run(main)
