"""OmniFrontend: one vLLM-Omni LLM stage's input processing, by vLLM-Omni's own processors and functions."""

from __future__ import annotations

import copy
import time
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from omni_actors._errors import InvalidRequest, TransformFailed
from omni_actors.stages._interface import Work
from omni_actors.stages.vllm._frontend import config_errors, environ_kept
from omni_actors.stages.vllm._params import ParamsMaker
from omni_actors.stages.vllm._quick_text import QuickText

from ._between import between, function_name
from ._cost import Cost, is_long
from ._handover import HandedOver
from ._kind import arguments
from ._names import name_of
from ._plan import receives_chunks, resolve, stage_plan
from ._wire import OmniCoreCodec, OmniOutputs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from omni_actors.config.specs import StageSpec
    from omni_actors.wire.vllm import CoreCodec, Meter, ReadyResponse, TextProcessor

__all__ = ["OmniFrontend"]

_ROOT_OPTIONS = frozenset(("lora_request", "tokenization_kwargs", "trace_headers", "data_parallel_rank"))

_DATA = frozenset(("multi_modal_data", "mm_processor_kwargs"))


class OmniFrontend:
    """See ``CoreFrontend``. Raises ConfigError, in vLLM-Omni's words.

    ``vllm_config``, ``input_processor``, ``renderer`` and ``metadata`` (the stage's) are vLLM's and vLLM-Omni's own
    objects, for adapters.
    """

    asks: Sequence[str] = ()

    def __init__(self, spec: StageSpec) -> None:
        self._stage = spec.name
        options, self._id = arguments(spec)
        with environ_kept(), config_errors(spec, "vLLM-Omni"):
            from vllm_omni.engine import async_engine_utils, orchestrator
            from vllm_omni.engine.stage_init_utils import build_stage0_input_processor

            # Kept, for each request would look them up among the modules again.
            self._utils: Any = async_engine_utils
            self._from_tokens: Any = orchestrator.build_engine_core_request_from_tokens
            plan = stage_plan(spec.model, options, self._id)
            self._finals = _finals(resolve(spec.model, options))
            self.metadata, self.vllm_config = plan.metadata, plan.vllm_config
            self.input_processor: Any = build_stage0_input_processor(plan.vllm_config)
            self.renderer: Any = self.input_processor.renderer
            self._quick = QuickText(self.renderer, self.vllm_config.model_config)
            self._quick.take_over()
            self._chained = receives_chunks(spec.model, options, self._id)
        self._params = ParamsMaker(spec.name, spec.params, spec.fixed_params)
        self._cost = Cost()

    def check(self, prompt: Any, params: Any) -> int:
        """How many samples: one. What is wrong with a prompt, vLLM-Omni's own processors say."""
        return self.samples(params)

    def samples(self, params: Any) -> int:
        """One; vLLM-Omni knows no other number where there are several stages. Raises InvalidRequest."""
        if (samples := self._params.check(params)) != 1:
            raise self._invalid(f"one sample per request, not {samples}")
        return samples

    def heavy(self, prompt: Any) -> bool:
        """A user's prompt that is long or not text; and everything, while what was timed lately took a millisecond."""
        return _is_long(prompt) or not self._cost.light

    def prepare(
        self,
        keys: Sequence[str],
        prompt: Any,
        params: Any,
        *,
        stream: bool,
        text: bool,
        priority: int = 0,
        options: Mapping[str, Any] | None = None,
    ) -> list[Work]:
        """One OmniEngineCoreRequest. Raises InvalidRequest, TransformFailed."""
        assert isinstance(prompt, HandedOver), "the transform of a vLLM-Omni stage is ``handed_over``"
        sampling = self._params.make(params, stream=stream, text=True)
        for name, value in prompt.overrides.items():
            setattr(sampling, name, value)
        called = name_of(keys[0]) + prompt.suffix
        with nullcontext() if _is_long(prompt) else self._cost.timed():
            request = self._request(keys[0], called, prompt, sampling, priority, dict(options or {}))
        request.request_id, request.external_req_id = keys[0], called
        return [Work(key=keys[0], body=request, stream=stream, text=True)]

    def _request(
        self, key: str, called: str, prompt: HandedOver, sampling: Any, priority: int, options: dict[str, Any]
    ) -> Any:
        if self._chained:
            return self._placeholder(key, prompt, sampling)
        if prompt.sources:
            return self._from_upstream(key, prompt, sampling)
        return self._from_user(key, called, prompt, sampling, priority, options)

    def _from_user(
        self, key: str, called: str, given: HandedOver, sampling: Any, priority: int, options: dict[str, Any]
    ) -> Any:
        theirs = self._utils
        for name in sorted(options.keys() - _ROOT_OPTIONS):
            raise self._invalid(f"unknown option {name!r}; it takes {', '.join(sorted(_ROOT_OPTIONS))}")
        prompt = given.prompt
        if isinstance(prompt, dict):
            prompt = {**prompt, "additional_information": dict(prompt.get("additional_information") or {})}
            theirs.inject_global_id(prompt, called)
        try:
            if self.metadata.prompt_transform_func is not None:
                prompt = self.metadata.prompt_transform_func(prompt, [sampling])
            quick = None if "tokenization_kwargs" in options else self._quick.render(prompt)
            request = self.input_processor.process_inputs(
                request_id=key,
                prompt=quick or prompt,
                params=sampling,
                supported_tasks=("generate",),
                priority=priority,
                **options,
            )
            request = theirs.upgrade_to_omni_request(request, prompt)
        except Exception as error:
            # Tokenizers, templates and model processors raise whatever they like at a bad prompt: this request's fault.
            raise self._invalid(str(error) or type(error).__name__) from error
        if given.suffix:  # a companion: nobody downstream gets its output, but its keys and values are wanted there
            return theirs.apply_omni_final_stage_metadata(request, self._id, force_kv_transfer=True)
        return theirs.apply_omni_final_stage_metadata(request, self._final_stage(given.modalities))

    def _from_upstream(self, key: str, given: HandedOver, sampling: Any) -> Any:
        inputs = self._inputs(given)
        if len(inputs) != 1:
            name = function_name(self.metadata.custom_process_input_func)
            words = f"{name} of stage {self._stage} made {len(inputs)} inputs of one output"
            raise TransformFailed(words, function=name, stage=self._stage)
        return self._from_tokens(
            request_id=key,
            prompt=inputs[0],
            params=sampling,
            arrival_time=time.time(),
            model_config=self.vllm_config.model_config,
        )

    def _placeholder(self, key: str, given: HandedOver, sampling: Any) -> Any:
        """A prompt of as many zeros as the model's engine will need places for; what it means comes in chunks."""
        from vllm_omni.distributed.omni_connectors.adapter import compute_talker_prompt_ids_length

        model = self.vllm_config.model_config
        ids = list(given.sources[0].prompt_token_ids)
        try:
            length = compute_talker_prompt_ids_length(ids)
        except IndexError:  # a turn that ends where it begins
            length = len(ids)
        wanted = getattr(model.hf_config, "async_chunk_prewarm_prompt_len", None)
        if wanted is not None and int(wanted) > 1:
            length = int(wanted)
        prompt = (
            copy.deepcopy({k: v for k, v in given.prompt.items() if k not in _DATA})
            if isinstance(given.prompt, dict)
            else {}
        )
        self._utils.inject_global_id(prompt, name_of(key))
        prompt |= {"prompt_token_ids": [0] * max(1, length), "multi_modal_data": None, "mm_processor_kwargs": None}
        return self._from_tokens(
            request_id=key, prompt=prompt, params=sampling, arrival_time=time.time(), model_config=model
        )

    def _inputs(self, given: HandedOver) -> list[Any]:
        """What vLLM-Omni's function makes of the outputs before. Raises InvalidRequest for its client errors."""
        function = self.metadata.custom_process_input_func
        if function is None:
            return [{"prompt_token_ids": list(source.outputs[0].token_ids)} for source in given.sources]
        model = self.vllm_config.model_config
        made = between(
            function,
            self._stage,
            given.sources,
            given.prompt,
            self.metadata.requires_multimodal_data,
            next_stage_hf_config=model.hf_config,
            target_model_config=model,
        )
        return list(made or ())

    def _final_stage(self, modalities: Sequence[str]) -> int:
        return max(number for number, modality in self._finals.items() if not modalities or modality in modalities)

    def _invalid(self, words: str) -> InvalidRequest:
        return InvalidRequest(f"stage {self._stage!r}: {words}", stage=self._stage)

    def codec(self) -> CoreCodec:
        """One per generation."""
        return OmniCoreCodec()

    def meter(self, replica: int) -> Meter | None:
        """None: its engines' own statistics are not read."""
        return None

    def processor(self, meter: Meter | None = None) -> TextProcessor:
        """One per generation."""
        return OmniOutputs(self.input_processor.tokenizer, makes=self.metadata.engine_output_type, rate=self._rate())

    def _rate(self) -> int | None:
        """Samples per second of what the user hears of this stage, where the model does not say it with them."""
        if not (self.metadata.final_output and self.metadata.final_output_type == "audio"):
            return None
        from vllm_omni.metrics.definitions import resolve_audio_sample_rate

        return int(resolve_audio_sample_rate([self.vllm_config]))

    def engine_ready(self, response: ReadyResponse, *, generation: int) -> None:
        """A shorter limit than configured, if its cache holds no more."""
        model = self.vllm_config.model_config
        if response.max_model_len is not None:
            model.max_model_len = min(model.max_model_len, response.max_model_len)

    def answered(self, method: str, answer: Any) -> None:
        """Never: it asks nothing."""
        raise AssertionError(method)

    def data_missing(self, hashes: Sequence[str]) -> None:
        """Forget that the engine holds these."""
        cache = self.renderer.mm_processor_cache
        for each in hashes if cache is not None else ():
            cache.invalidate(each)


def _is_long(given: HandedOver) -> bool:
    return not given.sources and is_long(given.prompt)


def _finals(resolution: Any) -> dict[int, str]:
    return {stage.stage_id: stage.final_output_type for stage in resolution.stage_configs if stage.final_output}
