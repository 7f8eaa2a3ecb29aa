"""AsyncOmni as a program for ``bench asyncio``: ``python -m omni_actors_asyncio.benches.ours BENCH FOLDER``.

On uvloop, with engines that the reference and the floor share, and with the reference's own client code: all three are
EngineClients.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TextIO

from omni_actors.cli.benches._ours import Host
from omni_actors.cli.benches._reference import on_uvloop, run_rounds
from omni_actors.cli.benches._work import pipeline
from omni_actors_asyncio import AsyncOmni

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["main"]


def main() -> None:
    """Run until stdin ends."""
    on_uvloop(_serve)


async def _serve(loop: Any, bench: str, folder: Path, channel: TextIO) -> None:
    host = Host(folder, guests=2)
    async with AsyncOmni(pipeline(bench), world=host.world, disable_log_stats=True) as omni:
        await run_rounds(loop, [omni], channel, host.cpu_s)


if __name__ == "__main__":
    main()
