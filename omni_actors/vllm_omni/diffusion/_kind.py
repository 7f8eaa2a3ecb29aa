"""OmniDiffusionKind: what the runtime has to know to run a vLLM-Omni diffusion stage."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from omni_actors.stages.omni import OmniKind as GenerationKind
from omni_actors.stages.vllm._kind import engine_env
from omni_actors.vllm_omni._kind import arguments, check_stage

if TYPE_CHECKING:
    from omni_actors.config.specs import StageSpec

    from ._frontend import OmniDiffusionFrontend

__all__ = ["OmniDiffusionKind"]

_HOSTED = "omni_actors.vllm_omni.diffusion:OmniDiffusion"
_AT_ONCE = 64
"""How many requests its engine is given; how many it works on at once is its own ``max_num_seqs``."""


class OmniDiffusionKind(GenerationKind):
    """The engine kind ``vllm-omni-diffusion`` (see ``EngineKind``): vLLM-Omni's engine behind the omni stage wire."""

    slow_frontend = True

    def check(self, spec: StageSpec) -> None:
        """Raises ConfigError where vLLM-Omni, or a version of it that we know, is not installed."""
        check_stage(spec)

    def frontend(self, spec: StageSpec) -> OmniDiffusionFrontend:
        """Imports vLLM-Omni and makes the stage's configuration: seconds, in a thread. Raises ConfigError."""
        from ._frontend import OmniDiffusionFrontend

        return OmniDiffusionFrontend(spec)

    def environment(self, spec: StageSpec, replica: int) -> dict[str, str]:
        """As that of vLLM's engines."""
        return {**engine_env(spec), "VLLM_OMNI_REPLICA_ID": str(replica)}

    def payload(self, spec: StageSpec) -> dict[str, Any]:
        """What the child reads from its stdin, beside ``env``, ``address`` and ``identity``."""
        options, stage_id = arguments(spec)
        args = {"model": spec.model, "options": options, "stage_id": stage_id, "devices": spec.devices}
        return {**super().payload(spec), "class": _HOSTED, "args": args, "max_batch": _AT_ONCE}
