"""What goes from stage to stage: the outputs of the stage before, as vLLM-Omni's functions between stages expect them.

The transform of every stage is ``handed_over``. It only collects; the stage's own front-end, which knows the function
of its stage, calls that.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from omni_actors.lifecycle import RequestView, StageResult

__all__ = ["HandedOver", "as_mapping", "handed_over"]


class HandedOver(msgspec.Struct, frozen=True, kw_only=True):
    """``sources``: vLLM-Omni's last RequestOutput of each stage before this one; none for a root.

    ``companions``: that of each companion of these, by role. ``prompt`` is the user's, ``modalities`` are those asked
    for. A companion's own prompt has a ``suffix`` to the request's name, and ``overrides`` of its sampling params.
    """

    sources: tuple[Any, ...]
    prompt: Any
    modalities: tuple[str, ...]
    companions: Mapping[str, Any] = msgspec.field(default_factory=dict)
    suffix: str = ""
    overrides: Mapping[str, Any] = msgspec.field(default_factory=dict)


def as_mapping(prompt: Any) -> Any:
    """A user's prompt as vLLM-Omni's functions expect it, which look for more than its text."""
    return {"prompt": prompt} if isinstance(prompt, str) else prompt


def handed_over(upstream: Mapping[str, StageResult], request: RequestView) -> HandedOver:
    """The transform of a vLLM-Omni stage."""
    results = upstream.values()
    return HandedOver(
        sources=tuple(result.native for result in results),
        prompt=as_mapping(request.prompt) if results else request.prompt,
        modalities=tuple(request.modalities),
        companions={role: made.native for result in results for role, made in result.companions.items()},
    )
