"""A host to be killed: starts one family through a launcher, says who lives, and waits for its end."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import msgspec
import trio

from omni_actors.stages._interface import Launch
from omni_actors.stages._process import open_launcher


async def main(run_folder: str, cookie: str, mode: str) -> None:
    async with open_launcher(cookie=cookie, run_folder=run_folder) as launcher:
        print(f'{{"reaper": {launcher.reaper.pid}}}', flush=True)
        program = str(Path(__file__).with_name("family_program.py"))
        argv = [sys.executable, program, mode]
        await launcher.spawn(
            Launch(stage="s", replica=0, generation=1, argv=argv, env={}, payload=msgspec.msgpack.encode({}))
        )
        await trio.sleep_forever()


if __name__ == "__main__":
    # The family's words come out of our log: they go on to the test that reads our stdout.
    logging.basicConfig(stream=sys.stdout, level=logging.INFO, format="%(message)s")
    trio.run(main, *sys.argv[1:])
