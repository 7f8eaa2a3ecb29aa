"""OmniDiffusionFrontend: what a diffusion stage of vLLM-Omni is asked, by vLLM-Omni's own types and functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from omni_actors._errors import InvalidRequest, TransformFailed
from omni_actors.config._hints import did_you_mean
from omni_actors.stages._interface import Work
from omni_actors.stages.vllm._frontend import config_errors, environ_kept
from omni_actors.vllm_omni._between import between, function_name
from omni_actors.vllm_omni._handover import HandedOver
from omni_actors.vllm_omni._kind import arguments
from omni_actors.vllm_omni._names import name_of
from omni_actors.vllm_omni._plan import diffusion_config, stage_metadata
from omni_actors.wire import omni as wire

if TYPE_CHECKING:
    from omni_actors.config.specs import StageSpec

__all__ = ["OmniDiffusionFrontend"]

_LIVING = frozenset(("generator", "modules"))
"""Fields of OmniDiffusionSamplingParams that cannot go to another process."""


class OmniDiffusionFrontend:
    """See ``Frontend``. Raises ConfigError, in vLLM-Omni's words.

    Params are vLLM-Omni's OmniDiffusionSamplingParams or a mapping of its fields, over the stage's defaults. ``n`` is
    another word for ``num_outputs_per_prompt``; with ``progress`` its reader is told of each step. ``metadata``: the
    stage's, vLLM-Omni's own object, for adapters.
    """

    def __init__(self, spec: StageSpec) -> None:
        self._stage = spec.name
        self._defaults, self._fixed = dict(spec.params), dict(spec.fixed_params)
        self._model, self._arguments = spec.model, arguments(spec)
        with environ_kept(), config_errors(spec, "vLLM-Omni"):
            from vllm_omni.distributed.omni_connectors.utils.serialization import OmniMsgpackEncoder
            from vllm_omni.inputs.data import OmniDiffusionSamplingParams

            self.metadata = stage_metadata(spec.model, *self._arguments)
            self._type, self._encode = OmniDiffusionSamplingParams, OmniMsgpackEncoder().encode
            self._known = frozenset(self._type.__dataclass_fields__) - _LIVING
            self._type(**self._defaults)

    @cached_property
    def od_config(self) -> Any:
        """vLLM-Omni's OmniDiffusionConfig of the stage, for adapters. Raises what vLLM-Omni raises."""
        return diffusion_config(self._model, *self._arguments)

    def check(self, prompt: Any, params: Any) -> int:
        """One lease, whatever the number of pictures: vLLM-Omni makes them together. Raises InvalidRequest."""
        return self.samples(params)

    def samples(self, params: Any) -> int:
        """One. Raises InvalidRequest for params that it does not know."""
        if params is None or isinstance(params, self._type):
            return 1
        if not isinstance(params, Mapping):
            words = "params are OmniDiffusionSamplingParams or a mapping of its fields, not"
            raise self._invalid(f"{words} {type(params).__name__}")
        for name in params.keys() - self._known - {"n", "progress"}:
            raise self._invalid(f"unknown sampling param {name!r}; {did_you_mean(str(name), self._known)}")
        return 1

    def heavy(self, prompt: Any) -> bool:
        """Always: nobody knows what a function between two stages does."""
        return True

    def prepare(self, keys: Sequence[str], prompt: Any, params: Any, *, stream: bool, text: bool, priority: int = 0,
                options: Mapping[str, Any] | None = None) -> list[Work]:  # fmt: skip
        """One Submit, of what vLLM-Omni's own client would send. Raises InvalidRequest, TransformFailed."""
        assert isinstance(prompt, HandedOver), "the transform of a vLLM-Omni stage is ``handed_over``"
        for name in sorted((options or {}).keys() - {"trace_headers"}):
            raise self._invalid(f"its engine knows no option {name!r}; what it is to do is said in its params")
        key = keys[0]
        sampling, shown = self._sampling(params)
        asked = self._asked(prompt, sampling)
        if prompt.companions:
            sampling.cfg_kv_request_ids = {role: made.request_id for role, made in prompt.companions.items()}
        request = {"request_id": name_of(key), "prompt": asked, "sampling_params": self._plain(sampling)}
        try:
            body = wire.Submit(key, {"request": self._encode(request)}, {"progress": shown}, 0, priority)
        except (TypeError, ValueError, RecursionError) as error:
            raise self._invalid(f"a prompt that cannot be sent: {error}") from error
        return [Work(key=key, body=body, stream=stream, text=text)]

    def _sampling(self, params: Any) -> tuple[Any, bool]:
        """OmniDiffusionSamplingParams of one request alone, and whether its reader wants to see its steps."""
        if isinstance(params, self._type):
            given = {name: getattr(params, name) for name in self._known}
            if given["seed"] is None and params.generator is not None:
                given["seed"] = params.generator.initial_seed()
        else:
            given = {**self._defaults, **(params or {})}
        given |= self._fixed
        shown = bool(given.pop("progress", False))
        if (n := given.pop("n", None)) is not None:
            given["num_outputs_per_prompt"] = n
        if type(given.get("num_outputs_per_prompt", 1)) is not int or given.get("num_outputs_per_prompt", 1) < 1:
            raise self._invalid("n must be a whole number of at least 1")
        try:
            return self._type(**given), shown
        except (TypeError, ValueError) as error:
            raise self._invalid(str(error)) from error

    def _plain(self, sampling: Any) -> dict[str, Any]:
        return {name: getattr(sampling, name) for name in self._known}

    def _asked(self, given: HandedOver, sampling: Any) -> Any:
        """The user's prompt, or what vLLM-Omni's function makes of the outputs before."""
        function = self.metadata.custom_process_input_func
        if not given.sources or function is None:
            return given.prompt
        sources = [*given.sources, *given.companions.values()]
        made = between(
            function,
            self._stage,
            sources,
            given.prompt,
            self.metadata.requires_multimodal_data,
            sampling_params=sampling,
        )
        if not made:
            words = f"{function_name(function)} made no input for stage {self._stage}"
            raise TransformFailed(words, function=function_name(function), stage=self._stage)
        return made[0] if isinstance(made, list) and len(made) == 1 else made

    def _invalid(self, words: str) -> InvalidRequest:
        return InvalidRequest(f"stage {self._stage!r}: {words}", stage=self._stage)
