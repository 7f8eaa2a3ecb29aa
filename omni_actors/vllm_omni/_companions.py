"""CFG companions: prompts that vLLM-Omni's function makes of a user's, to be worked on beside it."""

from __future__ import annotations

from functools import cached_property
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
        given = request.params.get(self._spec.name)
        params = self._params.make(given, stream=False, text=True)
        with failures(self._expand, self._spec.name):
            expanded = self._expand(as_mapping(request.prompt), params)
        return {each.role: self._beside(each, request, given) for each in expanded or ()}

    @cached_property
    def _expand(self) -> Any:
        """vLLM-Omni's function of this stage."""
        from ._plan import stage_metadata

        return stage_metadata(self._spec.model, *arguments(self._spec)).prompt_expand_func

    @cached_property
    def _params(self) -> ParamsMaker:
        return ParamsMaker(self._spec.name, self._spec.params, self._spec.fixed_params)

    def _beside(self, expanded: Any, request: RequestView, params: Any) -> StageInput:
        prompt = HandedOver(
            sources=(),
            prompt=expanded.prompt,
            modalities=tuple(request.modalities),
            suffix=expanded.request_id_suffix,
            overrides=dict(expanded.sampling_params_override or {}),
        )
        return StageInput(prompt, params)
