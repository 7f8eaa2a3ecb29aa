"""Stages on the omni stage wire: the client, the front-ends and the engine kinds ``generation`` and ``diffusion``."""

from __future__ import annotations

from omni_actors.stages.omni._client import StageDiffusionClient
from omni_actors.stages.omni._diffusion import DiffusionFrontend, DiffusionKind
from omni_actors.stages.omni._frontend import OmniFrontend
from omni_actors.stages.omni._kind import OmniKind

__all__ = [
    "DIFFUSION", "KIND", "DiffusionFrontend", "DiffusionKind", "OmniFrontend", "OmniKind", "StageDiffusionClient",
]  # fmt: skip

KIND = OmniKind()
"""What the entry point ``generation`` names."""

DIFFUSION = DiffusionKind()
"""What the entry point ``diffusion`` names."""
