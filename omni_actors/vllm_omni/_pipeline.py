"""A PipelineSpec of a model that vLLM-Omni knows, with its deploy file, and where each of its values came from."""

from __future__ import annotations

import enum
import os
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from omni_actors._errors import ConfigError
from omni_actors.config import Deadlines, EdgeMode, InputSpec, ModelSpec, PipelineSpec, StageSpec
from omni_actors.config._models import CONFIGS
from omni_actors.stages.vllm._frontend import environ_kept

from ._origins import Origins
from ._plan import receives_chunks, resolve
from ._support import refuse_what_we_do_not_run

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["model_spec", "pipeline"]

_START_S = 300.0
"""As vLLM-Omni gives each stage; its ``stage_init_timeout`` says otherwise."""
_EDGE_S = 600.0
"""As long as vLLM-Omni's schedulers wait for what the stage before has for them."""
_TRANSFORM = "omni_actors.vllm_omni:handed_over"
_COMPANIONS = "omni_actors.vllm_omni:Companions"
_ENGINES = {"llm": "vllm-omni", "diffusion": "vllm-omni-diffusion"}


def pipeline(model: str, **options: Any) -> PipelineSpec:
    """The graph of ``model``. ``options``: what vLLM-Omni's AsyncOmni takes, ``deploy_config`` (a path) among them.

    Imports vLLM-Omni: seconds. Raises ConfigError, in vLLM-Omni's words or for what we do not run.
    """
    return model_spec(model, options).spec


def model_spec(model: str, options: Mapping[str, Any]) -> ModelSpec:
    """As ``pipeline``, with the sources of its values."""
    if find_spec("vllm_omni") is None:
        who = f"{model!r} is a model" if model else "this is a deploy file of vLLM-Omni"
        words = f"{who}, and vLLM-Omni, which knows what its stages are, is not installed"
        raise ConfigError(words, path="model", hint="install omni-actors[omni] beside vLLM 0.30")
    with environ_kept():
        resolution = _resolved(model, options)
        refuse_what_we_do_not_run(model, options, resolution)
        return _Maker(model, options, resolution).made()


def _resolved(model: str, options: Mapping[str, Any]) -> Any:
    try:
        return resolve(model, options)
    except Exception as error:
        words = f"vLLM-Omni refuses it: {error}".removesuffix(".")
        raise ConfigError(words, path="model", hint=_hint(model)) from error


def _hint(model: str) -> str | None:
    """What may be wrong with the model's name, if its configuration is not to be had."""
    from vllm.transformers_utils.repo_utils import file_or_path_exists

    if not model:
        return "name the model: --model PATH|ID"
    if os.path.isdir(model) or any(file_or_path_exists(model, name, None) for name in CONFIGS):
        return None
    return "its config.json is neither in the hub's cache nor could it be fetched: check the name and the network"


class _Maker:
    """Makes the spec of one resolution."""

    def __init__(self, model: str, options: Mapping[str, Any], resolution: Any) -> None:
        self._model, self._options, self._resolution = model, dict(options), resolution
        self._names = {stage.stage_id: stage.model_stage for stage in resolution.stage_configs}
        self._origins = Origins(options, resolution.config_path)
        self._devices = _devices(resolution)

    def made(self) -> ModelSpec:
        kind = self._resolution.pipeline_config.model_type
        stages = tuple(self._stage(stage) for stage in self._resolution.stage_configs)
        sources = {
            ("stages", stage.model_stage, *path): source
            for stage in self._resolution.stage_configs
            for path, source in self._origins.of_stage(stage.stage_id).items()
            if not (path[0] == "params" and path[-1] in stage.sampling_constraints)  # those are the registry's
        }
        spec = PipelineSpec(name=kind.replace("_", "-"), stages=stages)
        return ModelSpec(spec, f"vLLM-Omni's {kind}", sources)

    def _stage(self, stage: Any) -> StageSpec:
        number, runtime = stage.stage_id, stage.runtime_config
        guided = getattr(stage, "prompt_expand_func", None) is not None
        return StageSpec(
            name=self._names[number],
            engine=_ENGINES[stage.stage_type.value],
            model=self._model,
            engine_args={**self._options, "stage_id": number},
            devices=self._devices[number],
            env={str(name): str(value) for name, value in (runtime.env or {}).items()},
            replicas=runtime.num_replicas,
            inputs=tuple(InputSpec(stage=self._names[s], mode=self._mode(number)) for s in stage.input_sources),
            transform=_TRANSFORM,
            companions=_COMPANIONS if guided else None,
            cheap=not guided,
            output=stage.final_output_type if stage.final_output else None,
            params=_plain(stage.model_config.default_sampling_params or {}),
            fixed_params=_plain(stage.sampling_constraints),
            deadlines=Deadlines(start_s=float(self._options.get("stage_init_timeout", _START_S)), edge_s=_EDGE_S),
        )

    def _mode(self, number: int) -> EdgeMode:
        return "chunks" if receives_chunks(self._model, self._options, number) else "whole"


def _devices(resolution: Any) -> dict[int, str | None]:
    """By stage: the devices of all its replicas, one after another, as vLLM-Omni shares them out among them.

    A deploy file counts within what ``CUDA_VISIBLE_DEVICES`` (or its like on other platforms) shows; ours are those.
    """
    from vllm_omni.engine.stage_init_utils import compute_replica_layout
    from vllm_omni.entrypoints.stage_utils import resolve_stage_physical_devices

    found: dict[int, str | None] = {}
    try:
        _, shared_out = compute_replica_layout(resolution.stage_configs)
        for index, stage in enumerate(resolution.stage_configs):
            parts = shared_out.get(index, [stage.runtime_config.devices])
            physical = [resolve_stage_physical_devices(stage.stage_id, part) for part in parts]
            known = [part for part in physical if part is not None]
            found[stage.stage_id] = ",".join(known) if known else None
    except (TypeError, ValueError) as error:
        words, file = f"vLLM-Omni refuses it: {error}", resolution.config_path
        raise ConfigError(words, file=file, path="stages.devices") from error
    return found


def _plain(params: Mapping[str, Any]) -> dict[str, Any]:
    """Sampling params as data: vLLM's enumerations as their values."""
    return {name: value.value if isinstance(value, enum.Enum) else value for name, value in params.items()}
