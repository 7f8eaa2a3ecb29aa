"""CFG companions: prompts that vLLM-Omni's function makes of a user's, to be worked on beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from omni_actors.runtime import StageInput
from omni_actors.stages.vllm._params import ParamsMaker

from ._between import failures
from ._handover import HandedOver, as_mapping
from ._kind import arguments

if TYPE_CHECKING:
    from collections.abc import Mapping

    from omni_actors.config.specs import StageSpec
    from omni_actors.lifecycle import RequestView, StageResult

__all__ = ["Companions"]


class Companions:
    """The companions of a vLLM-Omni stage, by role (see ``StageSpec.companions``). Made once, with the stage's spec."""

    def __init__(self, spec: StageSpec) -> None:
        self._spec = spec

    def __call__(self, upstream: Mapping[str, StageResult], request: RequestView) -> Mapping[str, StageInput]:
        """Called once the stage's front-end is made: vLLM-Omni is imported. Raises InvalidRequest, TransformFailed."""
        from ._plan import stage_metadata

        spec = self._spec
        options, stage_id = arguments(spec)
        expand = stage_metadata(spec.model, options, stage_id).prompt_expand_func
        given = request.params.get(spec.name)
        params = ParamsMaker(spec.name, spec.params, spec.fixed_params).make(given, stream=False, text=True)
        with failures(expand, spec.name):
            expanded = expand(as_mapping(request.prompt), params)
        return {each.role: self._beside(each, request, given) for each in expanded or ()}

    def _beside(self, expanded: Any, request: RequestView, params: Any) -> StageInput:
        prompt = HandedOver(
            sources=(),
            prompt=expanded.prompt,
            modalities=tuple(request.modalities),
            suffix=expanded.request_id_suffix,
            overrides=dict(expanded.sampling_params_override or {}),
        )
        return StageInput(prompt, params)
