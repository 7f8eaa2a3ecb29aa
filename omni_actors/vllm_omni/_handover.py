"""What goes from stage to stage: the outputs of the stage before, as vLLM-Omni's functions between stages expect them.

The transform of every stage is ``handed_over``. It only collects; the stage's own front-end, which knows the function
of its stage, calls that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

if TYPE_CHECKING:
    from collections.abc import Mapping

    from omni_actors.lifecycle import RequestView, StageResult

__all__ = ["HandedOver", "handed_over"]


@attrs.frozen(kw_only=True)
class HandedOver:
    """``sources``: vLLM-Omni's last RequestOutput of each stage before this one; none for a root.

    ``prompt`` is the user's, ``modalities`` are those asked for.
    """

    sources: tuple[Any, ...]
    prompt: Any
    modalities: tuple[str, ...]


def handed_over(upstream: Mapping[str, StageResult], request: RequestView) -> HandedOver:
    """The transform of a vLLM-Omni stage."""
    sources = tuple(result.native for result in upstream.values())
    return HandedOver(sources=sources, prompt=request.prompt, modalities=tuple(request.modalities))
