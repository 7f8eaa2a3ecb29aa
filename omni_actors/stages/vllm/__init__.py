"""Stages that are vLLM EngineCores. Importing this imports no vLLM; the front-end does, when it is made."""

from __future__ import annotations

from ._client import StageEngineCoreClient
from ._interface import CoreFrontend
from ._kind import VllmKind

__all__ = ["KIND", "CoreFrontend", "StageEngineCoreClient", "VllmKind"]

KIND = VllmKind()
