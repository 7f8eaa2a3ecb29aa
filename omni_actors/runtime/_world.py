"""Where engines run and how they are reached: the real world of processes and ZeroMQ, or another one for tests.

The real one owns the run folder, the sockets, the launcher and its reaper; leaving it leaves nothing (I24).
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from importlib.metadata import entry_points
from typing import Any

import attrs

from omni_actors._errors import ConfigError
from omni_actors.config import PipelineSpec, registered
from omni_actors.stages import EngineKind, Launcher
from omni_actors.transport import Transport

__all__ = ["World", "engine_kind", "real_world"]


@attrs.frozen(kw_only=True)
class World:
    """``kinds`` are engine kinds beside the installed ones. ``salt`` makes the keys of requests this runtime's own."""

    launcher: Launcher
    transport: Transport
    kinds: Mapping[str, EngineKind] = attrs.field(factory=dict)
    salt: str = attrs.field(factory=lambda: secrets.token_hex(3))


Worlds = Callable[[PipelineSpec], AbstractAsyncContextManager[World]]


@asynccontextmanager
async def real_world(spec: PipelineSpec) -> AsyncIterator[World]:
    """Processes and ipc sockets in a private folder. Raises ConfigError if the folder cannot be made."""
    from omni_actors.engines.reaper import salt_of
    from omni_actors.stages._process import open_launcher
    from omni_actors.transport import RunFolder, ZmqTransport, sweep_stale

    sweep_stale()
    folder, cookie = RunFolder(), f"omni-{secrets.token_hex(8)}"
    try:
        transport = ZmqTransport(folder.path)
        try:
            async with open_launcher(cookie=cookie, run_folder=str(folder.path)) as launcher:
                yield World(launcher=launcher, transport=transport, salt=salt_of(cookie))
        finally:
            transport.close()
    finally:
        folder.close()


def engine_kind(name: str, more: Mapping[str, EngineKind], stage: str) -> EngineKind:
    """The engine kind called ``name``. Raises ConfigError."""
    if name in more:
        return more[name]
    for entry in entry_points(group="omni_actors.engines"):
        if entry.name == name:
            kind: Any = entry.load()
            return kind  # type: ignore[no-any-return]
    raise ConfigError(
        f"unknown engine kind {name!r}; known: {', '.join(sorted(registered('omni_actors.engines')))}", stage=stage
    )
