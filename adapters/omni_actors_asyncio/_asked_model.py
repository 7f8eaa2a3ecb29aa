"""Whether what somebody wants opened is a model of vLLM-Omni, to be used as vLLM-Omni's users do."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from omni_actors import ConfigError, PipelineSpec
from omni_actors.config import is_model as is_a_name

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["in_its_place", "is_model"]


def is_model(pipeline: Any, how: Mapping[str, Any]) -> bool:
    """Named as one (a hub id, a model's folder, ``model=``), or a pipeline of such stages."""
    if isinstance(pipeline, PipelineSpec):
        return all(stage.engine.startswith("vllm-omni") for stage in pipeline.stages)
    if pipeline is None:
        return "model" in how
    return is_a_name(str(pipeline))


def in_its_place(name: str) -> Any:
    """What stands in the place of vLLM-Omni's own: a name of ``drop_in``. Raises ConfigError without vLLM-Omni."""
    if find_spec("vllm_omni") is None:
        hint = "install omni-actors[omni] beside vLLM 0.30"
        raise ConfigError("this is a model of vLLM-Omni, which is not installed", path="model", hint=hint)
    return getattr(import_module(f"{__package__}.drop_in"), name)
