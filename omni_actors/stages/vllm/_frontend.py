"""VllmFrontend: prompts and sampling params to EngineCoreRequests, with vLLM's own renderer and InputProcessor.

It builds vLLM's config from the same engine arguments as the engine's process, so nothing but data travels between
the two. It owns that config, the renderer and its multi-modal cache. Building it takes seconds (imports) and touches no
device; the changes that vLLM makes to ``os.environ`` on the way are undone, because children inherit it.
"""

from __future__ import annotations

import copy
import logging
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from omni_actors._errors import ConfigError, InvalidRequest
from omni_actors.stages._interface import Work
from omni_actors.wire.vllm.codec import EngineCoreCodec, EngineCoreText, input_options

from ._params import ParamsMaker
from ._prompts import PromptRenderer, check_prompt

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from omni_actors.config.specs import StageSpec
    from omni_actors.wire.vllm import CoreCodec, ReadyResponse, TextProcessor

__all__ = ["VllmFrontend", "engine_args"]

_LOG = logging.getLogger("omni_actors.stages.vllm")
_TASKS = ("generate",)


def engine_args(spec: StageSpec) -> dict[str, Any]:
    """What both sides build their config from."""
    arguments: dict[str, Any] = {"model": spec.model, **spec.engine_args}
    if spec.replicas > 1:
        # The front-end's multi-modal cache mirrors one engine's; with several it would promise what they don't hold.
        arguments.setdefault("mm_processor_cache_gb", 0)
    return arguments


class VllmFrontend:
    """One stage's front-end (see ``Frontend`` and ``CoreFrontend``).

    ``vllm_config``, ``renderer`` and ``input_processor`` are vLLM's own objects, for adapters.
    Raises ConfigError, in vLLM's words, if it cannot make a config of the stage's engine arguments.
    """

    def __init__(self, spec: StageSpec) -> None:
        self._stage = spec.name
        with _environ_kept(), _config_errors(spec):
            # vLLM sets its logging up when it is first imported, to stdout unless told: that belongs to our user.
            os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")
            from vllm import AsyncEngineArgs
            from vllm.renderers import renderer_from_config
            from vllm.v1.engine.input_processor import InputProcessor

            self.vllm_config: Any = AsyncEngineArgs(**engine_args(spec)).create_engine_config()
            self.renderer: Any = renderer_from_config(self.vllm_config)
            self.input_processor: Any = InputProcessor(self.vllm_config, self.renderer)
            self._prompts = PromptRenderer(self.renderer, self.vllm_config.model_config)
        self._params = ParamsMaker(spec.name, spec.params, spec.fixed_params)

    def check(self, prompt: Any, params: Any) -> int:
        """How many samples. Text is not tokenized here, so a text that is too long is refused by ``prepare``."""
        check_prompt(self._stage, prompt, self.vllm_config.model_config.max_model_len)
        return self._params.check(params)

    def samples(self, params: Any) -> int:
        """How many samples these params ask for."""
        return self._params.check(params)

    def heavy(self, prompt: Any) -> bool:
        """Long texts, anything multi-modal, and text while another thread holds the tokenizer."""
        return self._prompts.heavy(prompt)

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
        """One EngineCoreRequest per key. ``options``: vLLM's lora_request, trace_headers, data_parallel_rank and the
        other keywords of its ``process_inputs``, tokenization_kwargs, chat_template_kwargs.
        """
        check_prompt(self._stage, prompt, self.vllm_config.model_config.max_model_len)
        sampling = self._params.make(params, stream=stream, text=text)
        try:
            request = self._request(keys[0], prompt, sampling, priority, dict(options or {}))
        except InvalidRequest as error:
            raise self._invalid(error.message) from error
        except Exception as error:
            # vLLM, tokenizers and chat templates raise whatever they like at a bad prompt; it fails this request alone.
            raise self._invalid(str(error) or type(error).__name__) from error
        partial = stream and sampling.output_kind.name == "DELTA"
        bodies = _samples(request, keys)
        return [
            Work(key=body.request_id, body=body, index=i, stream=partial, text=text) for i, body in enumerate(bodies)
        ]

    def _request(self, key: str, prompt: Any, sampling: Any, priority: int, options: dict[str, Any]) -> Any:
        tokenization = options.pop("tokenization_kwargs", None) or {}
        chat = options.pop("chat_template_kwargs", None) or {}
        process = self.input_processor.process_inputs
        extra = input_options(process, options) if options else {}
        rendered = self._prompts.render(prompt, tokenization=tokenization, chat=chat)
        return process(key, rendered, sampling, _TASKS, priority=priority, **extra)

    def _invalid(self, words: str) -> InvalidRequest:
        return InvalidRequest(f"stage {self._stage!r}: {words}", stage=self._stage)

    def codec(self) -> CoreCodec:
        """vLLM's encoder and decoder; each generation has its own."""
        return EngineCoreCodec()

    def processor(self) -> TextProcessor:
        """vLLM's OutputProcessor; each generation has its own."""
        interval = self.vllm_config.scheduler_config.stream_interval
        return EngineCoreText(self.renderer.tokenizer, stream_interval=interval)

    def engine_ready(self, response: ReadyResponse, *, generation: int) -> None:
        """Take over what the engine found out: a shorter limit (it fits its cache), its blocks."""
        model, cache = self.vllm_config.model_config, self.vllm_config.cache_config
        if response.max_model_len is not None and response.max_model_len < model.max_model_len:
            _LOG.info("%s: the engine lowered max_model_len to %d", self._stage, response.max_model_len)
            model.max_model_len = response.max_model_len
            self._prompts.limit_changed()
        if response.num_gpu_blocks is not None:
            cache.num_gpu_blocks = response.num_gpu_blocks
        if response.block_size is not None:
            cache.block_size = response.block_size
        if generation > 0:
            self._prompts.forget_data()

    def data_missing(self, hashes: Sequence[str]) -> None:
        """Forget that the engine holds these; the next request with the same data sends it."""
        cache = self.renderer.mm_processor_cache
        for each in hashes if cache is not None else ():
            cache.invalidate(each)


def _samples(request: Any, keys: Sequence[str]) -> list[Any]:
    """One request per sample, seeded apart as vLLM's ParentRequest does."""
    seed = request.sampling_params.seed
    bodies = [request, *(copy.copy(request) for _ in keys[1:])]
    for index, (body, key) in enumerate(zip(bodies, keys, strict=True)):
        params = request.sampling_params if index == 0 or seed is None else copy.copy(request.sampling_params)
        params.n, params.skip_clone = 1, False
        params.seed = seed if seed is None else seed + index
        body.sampling_params, body.request_id, body.external_req_id = params, key, key
    return bodies


@contextmanager
def _environ_kept() -> Iterator[None]:
    before = dict(os.environ)
    try:
        yield
    finally:
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        os.environ.update(before)


@contextmanager
def _config_errors(spec: StageSpec) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        # vLLM's config layer raises pydantic's, transformers' and its own errors; all mean that this spec won't do.
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        words = " ".join(lines[:4]) or type(error).__name__
        raise ConfigError(f"vLLM refuses it: {words}", path=f"stages.{spec.name}", stage=spec.name) from error
