"""The simulation's world: fake engines as tasks over in-memory sockets, on whatever clock the trio run has.

Nothing of the runtime is replaced: ``open_omni(spec, world=MemoryWorld())`` runs the same
supervisors, router and clients.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from omni_actors.runtime import World
from omni_actors.transport import MemoryTransport

from ._fake_core import fake_core
from ._fake_omni import fake_omni
from ._launcher import Engine, MemoryLauncher, open_memory_launcher

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from omni_actors.config import PipelineSpec

__all__ = ["MemoryWorld"]

ENGINES: Mapping[str, Engine] = {
    "omni_actors.testing.fake_core": fake_core,
    "omni_actors.testing.fake_omni": fake_omni,
}


class MemoryWorld:
    """One in-memory world, for one ``open_omni`` at a time; ``launcher`` and ``transport`` are its present ones."""

    def __init__(self, engines: Mapping[str, Engine] | None = None) -> None:
        self._engines = {**ENGINES, **(engines or {})}
        self.launcher: MemoryLauncher
        self.transport: MemoryTransport

    @asynccontextmanager
    async def __call__(self, spec: PipelineSpec) -> AsyncIterator[World]:
        """What ``open_omni(world=…)`` calls."""
        self.transport = MemoryTransport()
        async with open_memory_launcher(self._engines, self.transport) as self.launcher:
            yield World(launcher=self.launcher, transport=self.transport)
        self.transport.close()
