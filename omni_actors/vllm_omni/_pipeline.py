"""A PipelineSpec of a model that vLLM-Omni knows, with its deploy file."""

from __future__ import annotations

from typing import Any

from omni_actors._errors import ConfigError
from omni_actors.config.specs import Deadlines, EdgeMode, InputSpec, PipelineSpec, StageSpec
from omni_actors.stages.vllm._frontend import environ_kept

from ._plan import receives_chunks, resolve

__all__ = ["pipeline"]

_START_S = 300.0
"""As vLLM-Omni gives each stage; its ``stage_init_timeout`` says otherwise."""
_TRANSFORM = "omni_actors.vllm_omni:handed_over"
_COMPANIONS = "omni_actors.vllm_omni:Companions"


def pipeline(model: str, **options: Any) -> PipelineSpec:
    """The graph of ``model``. ``options``: what vLLM-Omni's AsyncOmni takes, ``deploy_config`` (a path) among them.

    Imports vLLM-Omni: seconds. Raises ConfigError, in vLLM-Omni's words or for what we do not run.
    """
    with environ_kept():
        try:
            resolution = resolve(model, options)
        except Exception as error:
            raise ConfigError(f"vLLM-Omni refuses it: {error}", path="model") from error
    names = {stage.stage_id: stage.model_stage for stage in resolution.stage_configs}
    stages = [_stage(model, options, stage, names) for stage in resolution.stage_configs]
    return PipelineSpec(name=resolution.pipeline_config.model_type.replace("_", "-"), stages=tuple(stages))


def _stage(model: str, options: dict[str, Any], stage: Any, names: dict[int, str]) -> StageSpec:
    name = names[stage.stage_id]
    guided = getattr(stage, "prompt_expand_func", None) is not None
    mode: EdgeMode = "chunks" if receives_chunks(model, options, stage.stage_id) else "whole"
    return StageSpec(
        name=name,
        engine="vllm-omni-diffusion" if stage.stage_type == "diffusion" else "vllm-omni",
        model=model,
        engine_args={**options, "stage_id": stage.stage_id},
        inputs=tuple(InputSpec(stage=names[source], mode=mode) for source in stage.input_sources),
        transform=_TRANSFORM,
        companions=_COMPANIONS if guided else None,
        cheap=not guided,
        output=stage.final_output_type if stage.final_output else None,
        deadlines=Deadlines(start_s=float(options.get("stage_init_timeout", _START_S))),
        params=stage.model_config.default_sampling_params or {},
    )
