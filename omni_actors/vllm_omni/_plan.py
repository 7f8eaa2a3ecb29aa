"""What vLLM-Omni makes of a model and its deploy file: the stages, and each one's configuration.

Host and engine process resolve it from the same data, each for itself, so nothing but data travels between them. All
of it is vLLM-Omni's own code; here is only the order in which it is called.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import attrs
import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "StagePlan",
    "diffusion_config",
    "prepare_engine",
    "receives_chunks",
    "resolve",
    "stage_metadata",
    "stage_plan",
]


@attrs.frozen(kw_only=True)
class StagePlan:
    """One stage as vLLM-Omni sees it: its metadata, vLLM's configuration and the executor's class."""

    metadata: Any
    vllm_config: Any
    executor: type[Any]


def resolve(model: str, options: Mapping[str, Any]) -> Any:
    """vLLM-Omni's OmniConfigResolution. ``options``: the keyword arguments of its AsyncOmni, ``deploy_config`` among
    them. Raises what vLLM-Omni raises.
    """
    return _resolved(model, msgspec.json.encode(dict(options), order="sorted"))


@lru_cache(maxsize=8)
def _resolved(model: str, options: bytes) -> Any:
    from vllm_omni.config.resolver import resolve_omni_config
    from vllm_omni.entrypoints.utils import prepare_stage_config_inputs
    from vllm_omni.plugins import load_omni_general_plugins

    load_omni_general_plugins()
    given: dict[str, Any] = msgspec.json.decode(options)
    trusted = given.pop("trust_remote_code", None)
    inputs = prepare_stage_config_inputs(model, given, trust_remote_code=trusted)
    return resolve_omni_config(
        inputs.model,
        trust_remote_code=trusted,
        cli_overrides=inputs.kwargs,
        deploy_config_path=inputs.deploy_config_path,
        stage_overrides=inputs.stage_overrides,
        strategy_config_path=inputs.strategy_config_path,
    )


def receives_chunks(model: str, options: Mapping[str, Any], stage_id: int) -> bool:
    """Whether the stage before hands its results to this one through a connector while it makes them."""
    resolution = resolve(model, options)
    stage = resolution.stage_by_id(stage_id)
    if not (stage.input_sources and stage.connector_config.async_chunk):
        return False
    role = (_connector(model, resolution, stage_id)[1].get("extra") or {}).get("role")
    return role != "sender"


def stage_plan(model: str, options: Mapping[str, Any], stage_id: int) -> StagePlan:
    """The plan of one LLM stage. Raises what vLLM-Omni raises."""
    from vllm_omni.distributed.omni_connectors.utils.initialization import resolve_omni_kv_config_for_stage
    from vllm_omni.engine import stage_init_utils as theirs

    resolution = resolve(model, options)
    stage = resolution.stage_by_id(stage_id)
    transfer, connector = _connector(model, resolution, stage_id)
    arguments = theirs.build_engine_args_dict_from_omni_stage_config(stage, model, stage_connector_spec=connector)
    theirs.inject_omni_kv_connector_config(arguments, resolve_omni_kv_config_for_stage(transfer, stage_id), stage_id)
    theirs._inject_inferred_kv_tp_topology(arguments.get("omni_kv_config"), stage_id, list(resolution.stage_configs))
    config, executor = theirs.build_vllm_config(
        stage, model, stage_connector_spec=connector, engine_args_dict=arguments
    )
    metadata = theirs.extract_stage_metadata_from_omni_stage_config(stage)
    return StagePlan(metadata=metadata, vllm_config=config, executor=executor)


def prepare_engine(devices: str | None) -> None:
    """What vLLM-Omni wants of a process before it makes an engine there. ``devices``: those that it may see."""
    from vllm_omni.engine.stage_init_utils import prepare_engine_environment
    from vllm_omni.platforms import current_omni_platform

    if devices is not None:  # for CUDA it is set; other platforms have a variable of their own
        current_omni_platform.set_device_control_env_var(devices)
    prepare_engine_environment()


def stage_metadata(model: str, options: Mapping[str, Any], stage_id: int) -> Any:
    """vLLM-Omni's StageMetadata: a stage's functions, defaults and kinds of output. Raises what vLLM-Omni raises."""
    from vllm_omni.engine.stage_init_utils import extract_stage_metadata_from_omni_stage_config

    return extract_stage_metadata_from_omni_stage_config(resolve(model, options).stage_by_id(stage_id))


def diffusion_config(model: str, options: Mapping[str, Any], stage_id: int) -> Any:
    """vLLM-Omni's OmniDiffusionConfig of one diffusion stage, for its engine. Raises what vLLM-Omni raises."""
    from vllm_omni.distributed.omni_connectors.utils.initialization import resolve_omni_kv_config_for_stage
    from vllm_omni.engine import stage_init_utils as theirs
    from vllm_omni.entrypoints.utils import inject_omni_kv_config

    resolution = resolve(model, options)
    stage = resolution.stage_by_id(stage_id)
    transfer, _ = _connector(model, resolution, stage_id)
    connector, source, target = resolve_omni_kv_config_for_stage(transfer, stage_id)
    if connector:
        inject_omni_kv_config(stage, connector, source, target)
    theirs.inject_kv_stage_info(stage, stage_id, list(resolution.stage_configs))
    return theirs.build_diffusion_config(model, stage, theirs.extract_stage_metadata_from_omni_stage_config(stage))


def _connector(model: str, resolution: Any, stage_id: int) -> tuple[Any, dict[str, Any]]:
    """vLLM-Omni's OmniTransferConfig, and of it what this stage gets."""
    from vllm_omni.engine import stage_init_utils as theirs

    transfer = theirs.load_omni_transfer_config_for_model(model, resolution.config_path)
    return transfer, theirs.get_stage_connector_spec(transfer, stage_id, async_chunk=_async_chunk(resolution))


def _async_chunk(resolution: Any) -> bool:
    return any(bool(stage.connector_config.async_chunk) for stage in resolution.stage_configs)
