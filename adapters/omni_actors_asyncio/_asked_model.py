"""Whether what somebody wants opened is a model of vLLM-Omni, to be used as vLLM-Omni's users do."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from omni_actors import PipelineSpec

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["is_model"]


def is_model(pipeline: Any, how: Mapping[str, Any]) -> bool:
    """Named as one (a hub id, a folder, ``model=``), or a pipeline of such stages."""
    if isinstance(pipeline, PipelineSpec):
        return all(stage.engine.startswith("vllm-omni") for stage in pipeline.stages)
    if pipeline is None:
        return "model" in how
    name = str(pipeline)
    return os.path.isdir(name) or (
        name.count("/") == 1 and not name.endswith((".yaml", ".yml")) and name[0] not in "./"
    )
