"""Stages on the omni stage wire: the client, the front-end and the engine kind ``generation``."""

from __future__ import annotations

from omni_actors.stages.omni._client import StageDiffusionClient
from omni_actors.stages.omni._frontend import OmniFrontend
from omni_actors.stages.omni._kind import OmniKind

__all__ = ["KIND", "OmniFrontend", "OmniKind", "StageDiffusionClient"]

KIND = OmniKind()
"""What the entry point ``generation`` names."""
