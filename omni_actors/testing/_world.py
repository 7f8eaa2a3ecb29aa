"""The simulation's world: fake engines as tasks over in-memory sockets, on whatever clock the trio run has.

Nothing of the runtime is replaced: ``open_omni(spec, world=MemoryWorld())`` runs the same
supervisors, router and clients.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from omni_actors.runtime import World
from omni_actors.transport import MemoryTransport

from ._core_kind import FakeCoreKind
from ._fake_core import fake_core
from ._fake_omni import fake_omni
from ._launcher import Engine, MemoryLauncher, Observe, open_memory_launcher
from ._omni_kind import FakeOmniKind

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from omni_actors.config import PipelineSpec
    from omni_actors.stages import EngineKind
    from omni_actors.transport import Transport

__all__ = ["FAKE", "FAKE_CORE", "MemoryWorld"]

ENGINES: Mapping[str, Engine] = {
    "omni_actors.testing.fake_core": fake_core,
    "omni_actors.testing.fake_omni": fake_omni,
}
ENGINES_QUEUE = 10_000
"""Messages. Engines queue as ZeroMQ does, however little room a run leaves to the runtime."""
KINDS: Mapping[str, EngineKind] = {"fake": FakeOmniKind(), "fake-core": FakeCoreKind()}
FAKE, FAKE_CORE = KINDS["fake"], KINDS["fake-core"]


class MemoryWorld:
    """One in-memory world, for one ``open_omni`` at a time; ``launcher`` and ``transport`` are its present ones.

    ``tap`` wraps the transport that the runtime gets, ``observe`` hears of processes; ``hwm`` and ``queue_limit`` are
    ``MemoryTransport``'s; ``salt`` is the keys' (default: another one each time). ``left``: how many processes and
    sockets the runtime had left behind when it was over; empty before.
    """

    def __init__(
        self,
        engines: Mapping[str, Engine] | None = None,
        *,
        tap: Callable[[MemoryTransport], Transport] | None = None,
        observe: Observe | None = None,
        salt: str | None = None,
        **limits: int,
    ) -> None:
        self._engines = {**ENGINES, **(engines or {})}
        self._tap, self._observe, self._limits = tap, observe, limits
        self._more: dict[str, Any] = {} if salt is None else {"salt": salt}
        self.launcher: MemoryLauncher
        self.transport: MemoryTransport
        self.left: dict[str, int] = {}

    @asynccontextmanager
    async def __call__(self, spec: PipelineSpec) -> AsyncIterator[World]:
        """What ``open_omni(world=…)`` calls."""
        self.transport = MemoryTransport(**self._limits, peer_queue_limit=ENGINES_QUEUE)
        transport = self._tap(self.transport) if self._tap is not None else self.transport
        async with open_memory_launcher(self._engines, self.transport, self._observe) as self.launcher:
            try:
                yield World(launcher=self.launcher, transport=transport, kinds=KINDS, **self._more)
            finally:
                self.left = {"processes": len(self.launcher.processes), "sockets": self.transport.open_sockets}
        self.transport.close()
