"""AsyncOmni as a program for ``bench asyncio``: ``python -m omni_actors_asyncio.benches.ours BENCH FOLDER``.

On uvloop, with engines that the reference and the floor share, and with the reference's own client code: all three are
EngineClients.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import uvloop

from omni_actors.cli.benches._ours import Host
from omni_actors.cli.benches._reference import run_rounds
from omni_actors.cli.benches._work import own_channel, pipeline
from omni_actors_asyncio import AsyncOmni

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

__all__ = ["main"]


def main() -> None:
    """Run until stdin ends."""
    bench, folder = sys.argv[1:]
    channel = own_channel()
    loop: AbstractEventLoop = uvloop.new_event_loop()
    loop.run_until_complete(_serve(loop, bench, Path(folder), channel))


async def _serve(loop: Any, bench: str, folder: Path, channel: TextIO) -> None:
    host = Host(folder, guests=2)
    async with AsyncOmni(pipeline(bench), world=host.world, disable_log_stats=True) as omni:
        await run_rounds(loop, [omni], channel, host.cpu_s)


if __name__ == "__main__":
    main()
