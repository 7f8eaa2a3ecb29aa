"""What the client needs of a front-end besides ``Frontend``: vLLM's and the simulation's provide it alike."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from omni_actors.stages._interface import Frontend

if TYPE_CHECKING:
    from collections.abc import Sequence

    from omni_actors.wire.vllm import CoreCodec, ReadyResponse, TextProcessor

__all__ = ["CoreFrontend"]


class CoreFrontend(Frontend, Protocol):
    """A front-end whose engine speaks vLLM's EngineCore wire."""

    def codec(self) -> CoreCodec:
        """A codec for one generation."""

    def processor(self) -> TextProcessor:
        """A processor for one generation, with nothing in it."""

    def engine_ready(self, response: ReadyResponse, *, generation: int) -> None:
        """Follow what an engine found out while it loaded; what an earlier generation held is forgotten."""

    def data_missing(self, hashes: Sequence[str]) -> None:
        """An engine no longer holds this multi-modal data: send it again next time."""
