"""What the omni routes know of the server they belong to."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from omni_actors_asyncio import AsyncOmni

from ._limits import HttpLimits
from ._refusals import HttpError

if TYPE_CHECKING:
    from omni_actors.config import StageSpec

__all__ = ["Door", "Rendered"]


@attrs.frozen(kw_only=True)
class Rendered:
    """A chat as AsyncOmni takes it. ``usage``: whether a stream ends with the count of tokens."""

    prompt: Any
    sampling: Any = None
    usage: bool = False
    priority: int = 0
    options: Mapping[str, Any] = attrs.field(factory=dict)


@attrs.frozen(kw_only=True)
class Door:
    """``models``: the names that clients may use.

    ``render`` makes of a chat's fields (all but the audio's) what the stage takes; None where chats are not answered.
    It raises HttpError for what is wrong with them, the model's name included.
    """

    omni: AsyncOmni
    models: Sequence[str]
    limits: HttpLimits = attrs.field(factory=HttpLimits)
    render: Callable[[Mapping[str, Any]], Awaitable[Rendered]] | None = None

    @property
    def painters(self) -> tuple[StageSpec, ...]:
        """The stages whose output is pictures."""
        return tuple(stage for stage in self._stages if stage.output == "image")

    @property
    def roots(self) -> tuple[StageSpec, ...]:
        """The stages that take the prompt."""
        return tuple(stage for stage in self._stages if not stage.inputs)

    @property
    def _stages(self) -> tuple[StageSpec, ...]:
        stages: tuple[StageSpec, ...] = self.omni._bridge.omni.spec.stages
        return stages

    def makes(self, modality: str) -> bool:
        """Whether that is among what the pipeline makes."""
        return any(stage.output == modality for stage in self._stages)

    def model(self, name: str | None) -> str:
        """The model's name for an answer. Raises HttpError (404) for one that is not served here."""
        if name is None or name in self.models:
            return name or self.models[0]
        words = f"The model `{name[:200]}` does not exist. Served here: {', '.join(self.models)}."
        raise HttpError(404, words, param="model", kind="NotFoundError")
