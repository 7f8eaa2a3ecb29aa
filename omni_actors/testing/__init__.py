"""For tests of pipelines: fake engines that speak the real wires, and an in-memory world to run them in."""

from __future__ import annotations

from ._core_kind import FakeCoreKind, FakeFrontend
from ._core_wire import FakeCoreCodec, FakeParams
from ._fake_core import FakeCore, FakeCoreBehaviour, fake_core, fake_tokens
from ._fake_omni import FakeBehaviour, FakeOmni, FakeOmniKind, fake_omni
from ._launcher import Engine, Exit, MemoryLauncher, MemoryProcess, current_process, open_memory_launcher
from ._world import KINDS, MemoryWorld

FAKE, FAKE_CORE = KINDS["fake"], KINDS["fake-core"]

__all__ = [
    "FAKE", "FAKE_CORE", "Engine", "Exit", "FakeBehaviour", "FakeCore", "FakeCoreBehaviour", "FakeCoreCodec",
    "FakeCoreKind", "FakeFrontend", "FakeOmni", "FakeOmniKind", "FakeParams", "MemoryLauncher", "MemoryProcess",
    "MemoryWorld", "current_process", "fake_core", "fake_omni", "fake_tokens", "open_memory_launcher",
]  # fmt: skip
