"""VllmKind: what the runtime has to know to run a stage as a vLLM EngineCore."""

from __future__ import annotations

import math
import os
import re
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import msgspec

from omni_actors._errors import ConfigError
from omni_actors.config._hints import did_you_mean
from omni_actors.stages._interface import Frontend, Launch
from omni_actors.stages._process import device_env

from ._client import StageEngineCoreClient
from ._known import known_engine_args, known_pooling_params, known_sampling_params, vllm_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from omni_actors.config.specs import StageSpec
    from omni_actors.transport import Transport

    from ._interface import CoreFrontend

__all__ = ["VllmKind", "engine_env", "packed"]

_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")
_ENV = {"VLLM_WORKER_MULTIPROC_METHOD": "spawn", "VLLM_NO_USAGE_STATS": "1"}
_CPU_ENV = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}
"""The CPU build's own defaults take half the memory and pin every engine to the same cores."""


class VllmKind:
    """The engine kind ``vllm`` (see ``EngineKind``)."""

    hang_s = 60.0
    step_s = math.inf
    slow_frontend = True

    def check(self, spec: StageSpec) -> None:
        """Raises ConfigError for a missing model folder, an unknown engine argument or parameter."""
        if vllm_folder() is None:
            hint = "install omni-actors[vllm], or omni-actors[cpu] for a machine without a GPU"
            raise ConfigError("vLLM is not installed", path=f"stages.{spec.name}.engine", hint=hint, stage=spec.name)
        _check_model(spec)
        params = known_pooling_params() if spec.engine_args.get("runner") == "pooling" else known_sampling_params()
        for field, given, known in (
            ("engine_args", spec.engine_args, known_engine_args()),
            ("params", spec.params, params),
            ("fixed_params", spec.fixed_params, params),
        ):
            for name in sorted(given.keys() - known if known else ()):
                path, hint = f"stages.{spec.name}.{field}.{name}", did_you_mean(name, known)
                raise ConfigError("vLLM does not know this", path=path, hint=hint, stage=spec.name)

    def frontend(self, spec: StageSpec) -> Frontend:
        """Imports vLLM and loads the tokenizer: seconds, in a thread. Raises ConfigError."""
        from ._frontend import VllmFrontend

        return VllmFrontend(spec)

    def client(
        self,
        spec: StageSpec,
        frontend: Callable[[], Frontend],
        transport: Transport,
        *,
        replica: int,
        generation: int,
    ) -> StageEngineCoreClient:
        """A client with three bound sockets."""
        made = cast("Callable[[], CoreFrontend]", frontend)
        return StageEngineCoreClient(made, transport, stage=spec.name, replica=replica, generation=generation)

    def launch(self, spec: StageSpec, addresses: Mapping[str, str], *, replica: int, generation: int) -> Launch:
        """``engines.core_proc`` with the engine arguments as data. Raises ConfigError if they are not plain data."""
        from ._frontend import engine_args, log_stats

        environment = engine_env(spec)
        payload = {
            "env": environment,
            "engine_args": engine_args(spec),
            "handshake": addresses["handshake"],
            "log_stats": log_stats(spec),
        }
        return Launch(
            stage=spec.name,
            replica=replica,
            generation=generation,
            argv=(spec.python or sys.executable, "-m", "omni_actors.engines.core_proc"),
            env=environment,
            payload=packed(payload, spec),
        )


def packed(payload: Mapping[str, Any], spec: StageSpec) -> bytes:
    """What goes to the engine's stdin. Raises ConfigError if it is not plain data."""
    try:
        return msgspec.msgpack.encode(payload)
    except (TypeError, ValueError, OverflowError) as error:
        words = f"engine arguments travel as plain data: {error}"
        raise ConfigError(words, path=f"stages.{spec.name}.engine_args", stage=spec.name) from error


def _check_model(spec: StageSpec) -> None:
    path = f"stages.{spec.name}.model"
    if not spec.model:
        raise ConfigError("a vLLM stage needs a model", path=path, hint="a folder or a hub id", stage=spec.name)
    if Path(spec.model).is_dir():
        return
    if not _HUB_ID.fullmatch(spec.model) or spec.model.startswith("."):
        raise ConfigError(f"there is no model folder {spec.model}", path=path, stage=spec.name)


def engine_env(spec: StageSpec) -> dict[str, str]:
    """What the engine's process gets on top of ours."""
    environment = dict(_ENV)
    if _is_cpu_build():
        environment |= {name: value for name, value in _CPU_ENV.items() if name not in os.environ}
    return {**environment, **device_env(spec.devices), **spec.env}


def _is_cpu_build() -> bool:
    for package in ("vllm-cpu", "vllm"):
        try:
            installed = version(package)
        except PackageNotFoundError:
            continue
        return package == "vllm-cpu" or "cpu" in installed
    return False
