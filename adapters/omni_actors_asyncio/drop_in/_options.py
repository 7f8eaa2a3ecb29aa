"""The keyword arguments of vLLM-Omni's AsyncOmni: which are its pipeline's, and which the entry point's own.

vLLM-Omni drops a name that it does not know without a word. Here that is an error.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

import attrs

from omni_actors import ConfigError
from omni_actors.config._hints import did_you_mean
from omni_actors.stages.vllm._frontend import environ_kept

__all__ = ["ModelOptions"]

_STAGE = re.compile(r"stage_\d+_.+")
_FLEET = frozenset(
    ("api_server_count", "client_config", "omni_dp_size_local", "omni_heartbeat_timeout", "omni_lb_policy",
     "omni_master_address", "omni_master_port", "omni_replica_address", "replica_id", "single_stage_mode", "stage_id")
)  # fmt: skip
"""How vLLM-Omni spreads its stages over several programs."""
_NO_EFFECT = frozenset(("batch_timeout", "enable_orch_monitor", "parallel_stage_init", "ray_address", "worker_backend"))
"""Of its orchestrator, which does not run here."""


@attrs.frozen(kw_only=True)
class ModelOptions:
    """``pipeline`` is for ``omni_actors.vllm_omni.pipeline``; the rest is the entry point's own."""

    model: str
    pipeline: Mapping[str, Any]
    output_modalities: tuple[str, ...] = ()
    log_stats: bool = False
    tts_batch_max_items: int = 32
    tts_max_instructions_length: int | None = None

    @classmethod
    def of(cls, model: Any, given: Mapping[str, Any]) -> ModelOptions:
        """Raises ConfigError. Imports vLLM-Omni: seconds."""
        if not model:
            raise ConfigError("which model?", path="model", hint="a hub id or a folder")
        own = {field.name for field in attrs.fields(cls)} - {"model", "pipeline"}
        left = {name: value for name, value in given.items() if name not in own}
        _check(left)
        start_s = min(float(left.pop("stage_init_timeout", 300)), float(left.pop("init_timeout", 600)))
        pipeline = {name: value for name, value in left.items() if name not in _of_the_server() | _NO_EFFECT}
        said = {name: value for name, value in given.items() if name in own}
        said["output_modalities"] = tuple(said.get("output_modalities") or ())
        return cls(model=str(model), pipeline={**pipeline, "stage_init_timeout": start_s}, **said)


def _check(given: Mapping[str, Any]) -> None:
    for name in given:
        if name in _FLEET:
            hint = "a stage's replicas, and where they run, are in its deploy file"
            raise ConfigError(f"{name} spreads vLLM-Omni's own processes, which do not run here", path=name, hint=hint)
    known = _known()
    for name in given:
        if name not in known and not _STAGE.fullmatch(name):
            hint = did_you_mean(name, known)
            raise ConfigError("not an argument of vLLM-Omni's AsyncOmni", path=name, hint=hint)


def _known() -> frozenset[str]:
    with environ_kept():
        from vllm_omni.config.stage_config import deploy_runtime_override_keys
        from vllm_omni.diffusion.data import OmniDiffusionConfig
        from vllm_omni.engine.arg_utils import OmniAsyncEngineArgs, orchestrator_field_names

    dataclass_fields = (*dataclasses.fields(OmniAsyncEngineArgs), *dataclasses.fields(OmniDiffusionConfig))
    names = {field.name for field in dataclass_fields} | _of_the_server() | {"lora_scale", "streaming_output"}
    return frozenset((*names, *deploy_runtime_override_keys(), *orchestrator_field_names()))


def _of_the_server() -> frozenset[str]:
    """What its command line gives to it along with the rest, and it does not read."""
    from vllm.entrypoints.launchers.cli_args import FrontendArgs

    names = {field.name for field in dataclasses.fields(FrontendArgs)}
    return frozenset(names) | {"command", "disable_log_stats", "headless", "model_tag", "omni", "subparser"}
