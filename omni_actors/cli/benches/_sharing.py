"""One engine for several front-ends: what the benchmarks add to our own runtime so that a reference can attach itself.

vLLM's engine serves several clients: each has an input and an output address of its own and an index, and every request
names the index of its client. Ours is client 0, as always; the guests count from 1 and bind the addresses made here.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, cast

import attrs

from omni_actors.runtime._world import real_world
from omni_actors.stages.vllm import StageEngineCoreClient, VllmKind
from omni_actors.wire.vllm import Handshake

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from omni_actors.config import PipelineSpec, StageSpec
    from omni_actors.runtime import World
    from omni_actors.stages import Frontend
    from omni_actors.stages.vllm import CoreFrontend
    from omni_actors.transport import Transport

__all__ = ["FLOOR_INDEX", "REFERENCE_INDEX", "SharedKind", "guest_addresses", "shared_world"]

REFERENCE_INDEX = 1
FLOOR_INDEX = 2


def guest_addresses(folder: Path, stage: str, index: int) -> tuple[str, str]:
    """Where guest ``index`` binds its input and its output socket for this stage's engine."""
    return f"ipc://{folder}/{stage}-i{index}", f"ipc://{folder}/{stage}-o{index}"


class _SharingClient(StageEngineCoreClient):
    """Our client, unchanged but for what its handshake tells the engine."""

    others: tuple[tuple[str, str], ...] = ()

    def _machine(self) -> Handshake:
        return Handshake(
            input_address=self._input.address, output_address=self._output.address, other_clients=self.others
        )


class SharedKind(VllmKind):
    """The engine kind ``vllm``, whose engines also connect to the sockets of so many guests in ``folder``."""

    def __init__(self, folder: Path, guests: int) -> None:
        self._folder, self._guests = folder, guests

    def client(
        self,
        spec: StageSpec,
        frontend: Callable[[], Frontend],
        transport: Transport,
        *,
        replica: int,
        generation: int,
    ) -> StageEngineCoreClient:
        """A client that introduces the guests to its engine."""
        made = cast("Callable[[], CoreFrontend]", frontend)
        client = _SharingClient(made, transport, stage=spec.name, replica=replica, generation=generation)
        client.others = tuple(guest_addresses(self._folder, spec.name, 1 + i) for i in range(self._guests))
        return client


@asynccontextmanager
async def shared_world(spec: PipelineSpec, folder: Path, guests: int) -> AsyncIterator[World]:
    """The real world, in which ``vllm`` engines are shared with so many guests."""
    async with real_world(spec) as place:
        yield attrs.evolve(place, kinds={**place.kinds, "vllm": SharedKind(folder, guests)})
