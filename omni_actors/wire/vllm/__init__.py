"""vLLM's EngineCore wire: the handshake machine and the one codec that depends on vLLM's version. Never awaits."""

from __future__ import annotations

from .handshake import Handshake, Phase, ReadyResponse
from .interface import CoreCodec, Meter, Sink, StepOutput, StepOutputs, TextProcessor

__all__ = [
    "CoreCodec",
    "Handshake",
    "Meter",
    "Phase",
    "ReadyResponse",
    "Sink",
    "StepOutput",
    "StepOutputs",
    "TextProcessor",
]
