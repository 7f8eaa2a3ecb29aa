"""The pipeline ``text-to-image``: one painter, any diffusers pipeline that makes pictures of text. No model of its own.

The prompt and the params of its stage are the arguments of that pipeline's ``__call__`` (see ``engines.diffusion``).
"""

from __future__ import annotations

from typing import Any

from omni_actors.config import PipelineSpec, StageSpec

__all__ = ["pipeline"]


def pipeline(model: str = "", **engine_args: Any) -> PipelineSpec:
    """One stage, ``painter``. ``model``: a folder in diffusers' layout, or an id of the hub (``--model`` in commands).

    ``engine_args`` are the fields of ``engines.diffusion.Options``, and ``max_batch``. Without a model it can be drawn,
    and is refused when it is opened.
    """
    painter = StageSpec(name="painter", engine="diffusion", model=model, engine_args=engine_args, output="image")
    return PipelineSpec(
        name="text-to-image",
        description="Pictures of text, by any diffusers model: --model PATH.",
        stages=(painter,),
    )
