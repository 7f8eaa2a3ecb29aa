"""OmniKind: what the runtime has to know to run a vLLM-Omni LLM stage."""

from __future__ import annotations

import os
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from omni_actors._errors import ConfigError
from omni_actors.stages._interface import Frontend, Launch
from omni_actors.stages.vllm._kind import VllmKind, engine_env, packed

from ._sweeper import Sweeper

if TYPE_CHECKING:
    from collections.abc import Mapping

    from omni_actors.config.specs import StageSpec

__all__ = ["SUPPORTED", "OmniKind", "arguments", "check_stage"]

SUPPORTED = "0.30"
"""Of vLLM-Omni; it needs the same of vLLM."""
_INPUT_WAIT = "VLLM_OMNI_INPUT_WAIT_TIMEOUT_S"


def arguments(spec: StageSpec) -> tuple[dict[str, Any], int]:
    """A stage's ``engine_args``: vLLM-Omni's own keyword arguments, and the number of the stage."""
    options = dict(spec.engine_args)
    return options, int(options.pop("stage_id"))


def check_stage(spec: StageSpec) -> None:
    """Raises ConfigError where vLLM-Omni, or a version of it that we know, is not installed."""
    try:
        installed = version("vllm-omni")
    except PackageNotFoundError:
        installed = None
    path = f"stages.{spec.name}.engine"
    if installed is None:
        hint = "install omni-actors[omni]"
        raise ConfigError("vLLM-Omni is not installed", path=path, hint=hint, stage=spec.name)
    if not installed.startswith(f"{SUPPORTED}."):
        hint = f"this version of omni-actors runs vLLM-Omni {SUPPORTED}"
        raise ConfigError(f"vLLM-Omni {installed} is installed", path=path, hint=hint, stage=spec.name)
    if type(spec.engine_args.get("stage_id")) is not int:
        path = f"stages.{spec.name}.engine_args.stage_id"
        hint = "let omni_actors.vllm_omni.pipeline make the stages of a model"
        raise ConfigError("which of the model's stages this is", path=path, hint=hint, stage=spec.name)
    if not spec.model:
        path = f"stages.{spec.name}.model"
        raise ConfigError("a deploy file has no model", path=path, hint="--model PATH|ID", stage=spec.name)


class OmniKind(VllmKind):
    """The engine kind ``vllm-omni`` (see ``EngineKind``). Its client is vLLM's: the wire is the same."""

    def __init__(self) -> None:
        self._sweeper: Sweeper | None = None

    def check(self, spec: StageSpec) -> None:
        """Raises ConfigError where vLLM-Omni, or a version of it that we know, is not installed."""
        check_stage(spec)

    def frontend(self, spec: StageSpec) -> Frontend:
        """Imports vLLM-Omni and makes the stage's configuration: seconds, in a thread. Raises ConfigError."""
        from ._frontend import OmniFrontend

        return OmniFrontend(spec)

    def request_over(self, key: str) -> None:
        """This request has ended: what its stages had for each other is nobody's any more."""
        if self._sweeper is None:
            self._sweeper = Sweeper()
        self._sweeper.sweep([key])

    def launch(self, spec: StageSpec, addresses: Mapping[str, str], *, replica: int, generation: int) -> Launch:
        """``engines.stage_core`` with the stage as data. Raises ConfigError if its options are not plain data."""
        options, stage_id = arguments(spec)
        surroundings = {**_waits(spec), **engine_env(spec), "VLLM_OMNI_REPLICA_ID": str(replica)}
        payload: dict[str, Any] = {
            "env": surroundings,
            "model": spec.model,
            "options": options,
            "stage_id": stage_id,
            "replica": replica,
            "devices": spec.devices,
            "handshake": addresses["handshake"],
        }
        return Launch(
            stage=spec.name,
            replica=replica,
            generation=generation,
            argv=(spec.python or sys.executable, "-m", "omni_actors.vllm_omni.stage_core"),
            env=surroundings,
            payload=packed(payload, spec),
        )


def _waits(spec: StageSpec) -> dict[str, str]:
    """How long vLLM-Omni's scheduler waits for what the stage before has for it: as long as the edge may take."""
    return {} if _INPUT_WAIT in os.environ else {_INPUT_WAIT: str(spec.deadlines.edge_s)}
