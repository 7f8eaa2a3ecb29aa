"""What the client needs of a front-end besides ``Frontend``: vLLM's and the simulation's provide it alike."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from omni_actors.stages._interface import Frontend

if TYPE_CHECKING:
    from collections.abc import Sequence

    from omni_actors.wire.vllm import CoreCodec, Meter, ReadyResponse, TextProcessor

__all__ = ["CoreFrontend"]


class CoreFrontend(Frontend, Protocol):
    """A front-end whose engine speaks vLLM's EngineCore wire.

    ``asks``: calls without arguments whose answers it needs before a new engine gets any work.
    """

    asks: Sequence[str]

    def answered(self, method: str, answer: Any) -> None:
        """What an engine said to one of ``asks``."""

    def codec(self) -> CoreCodec:
        """A codec for one generation."""

    def meter(self, replica: int) -> Meter | None:
        """What counts for one generation of this replica; None if nobody wants to know."""

    def processor(self, meter: Meter | None = None) -> TextProcessor:
        """A processor for one generation, with nothing in it. Its outputs show what ``meter`` counts of them."""

    def engine_ready(self, response: ReadyResponse, *, generation: int) -> None:
        """Follow what an engine found out while it loaded; what an earlier generation held is forgotten."""

    def data_missing(self, hashes: Sequence[str]) -> None:
        """An engine no longer holds this multi-modal data: send it again next time."""
