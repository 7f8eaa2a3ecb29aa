"""A host to be killed while it streams: ``python fault_host_program.py MODEL``. Says who lives, with pieces left over.

It has stopped its last stage, so that what the stage before makes piles up in shared memory.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import trio
from prompts import PROMPTS

from omni_actors import open_omni
from omni_actors.vllm_omni import pipeline
from omni_actors.vllm_omni.tiny import options

HERE = Path(__file__).parent


async def main(model):
    spec = pipeline(model, **options(Path(model)))
    async with open_omni(spec) as omni, omni.generate(PROMPTS["read"](model)) as stream:
        await anext(stream)
        os.kill(omni.pids()[f"{spec.stages[-1].name}/0"], signal.SIGSTOP)
        salt = omni._handler.table._salt
        while not any(salt in name for name in os.listdir("/dev/shm")):  # noqa: ASYNC110  # a folder tells nobody
            await trio.sleep(0.01)
        print(json.dumps(dict(omni.pids())), flush=True)
        await trio.sleep_forever()


if __name__ == "__main__":
    trio.run(main, sys.argv[1])
