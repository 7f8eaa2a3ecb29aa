"""What the omni routes know of the server they belong to."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import attrs

from omni_actors_asyncio import AsyncOmni

from ._limits import HttpLimits
from ._refusals import HttpError

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
    """``models``: the names that clients may use. ``makes_text``: whether text is among what the pipeline makes.

    ``render`` makes of a chat's fields (all but the audio's) what the stage takes; None where chats are not answered.
    It raises HttpError for what is wrong with them, the model's name included.
    """

    omni: AsyncOmni
    models: Sequence[str]
    makes_text: bool = True
    limits: HttpLimits = attrs.field(factory=HttpLimits)
    render: Callable[[Mapping[str, Any]], Awaitable[Rendered]] | None = None

    def model(self, name: str | None) -> str:
        """The model's name for an answer. Raises HttpError (404) for one that is not served here."""
        if name is None or name in self.models:
            return name or self.models[0]
        words = f"The model `{name[:200]}` does not exist. Served here: {', '.join(self.models)}."
        raise HttpError(404, words, param="model", kind="NotFoundError")
