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
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from omni_actors._errors import ConfigError, InvalidRequest
from omni_actors.stages._interface import Work
from omni_actors.wire.vllm.codec import EngineCoreCodec, EngineCoreText, input_options
from omni_actors.wire.vllm.meter import EngineCoreMeter

from ._params import ParamsMaker
from ._pooling import PoolingParamsMaker
from ._prompts import PromptRenderer, check_prompt

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from omni_actors.config.specs import StageSpec
    from omni_actors.wire.vllm import CoreCodec, Meter, ReadyResponse, TextProcessor

__all__ = ["VllmFrontend", "config_errors", "engine_args", "environ_kept", "log_stats"]

_LOG = logging.getLogger("omni_actors.stages.vllm")
_TASKS = "get_supported_tasks"
_REASONING = ("reasoning_ended", "reasoning_parser_kwargs")
"""What vLLM's AsyncLLM sets on a request after ``process_inputs``."""
_OF_THE_CACHE = (
    "num_gpu_blocks",
    "block_size",
    "mamba_block_size",
    "effective_attention_block_size",
    "kv_cache_size_tokens",
    "kv_cache_max_concurrency",
)
"""What an engine finds out about its cache: vLLM's metrics show it, from the front-end's configuration."""


def engine_args(spec: StageSpec) -> dict[str, Any]:
    """What both sides build their config from."""
    arguments: dict[str, Any] = {"model": spec.model, **spec.engine_args}
    if spec.replicas > 1:
        # The front-end's multi-modal cache mirrors one engine's; with several it would promise what they don't hold.
        arguments.setdefault("mm_processor_cache_gb", 0)
    return arguments


@cache
def _init_tracer(endpoint: str) -> None:
    """A process has one; of several stages' the first one's stays."""
    from vllm.tracing import init_tracer

    init_tracer("vllm.llm_engine", endpoint)


def log_stats(spec: StageSpec) -> bool:
    """Whether its engines say what they do: with ``disable_log_stats: false``, or for the spans of its requests."""
    arguments = spec.engine_args
    return not arguments.get("disable_log_stats", True) or bool(arguments.get("otlp_traces_endpoint"))


class VllmFrontend:
    """One stage's front-end (see ``Frontend`` and ``CoreFrontend``).

    ``vllm_config``, ``renderer`` and ``input_processor`` are vLLM's own objects, for adapters. ``pooling``: whether the
    stage's model pools (embeds, classifies) and takes pooling params. ``asks``: what is asked of each new engine.
    ``on_stats(replica, scheduler_stats, iteration_stats)`` gets vLLM's statistics of every step; it must not raise.
    Raises ConfigError, in vLLM's words, if it cannot make a config of the stage's engine arguments.
    """

    def __init__(self, spec: StageSpec) -> None:
        self._stage, self.log_stats = spec.name, log_stats(spec)
        self.on_stats: Callable[[int, Any, Any], None] | None = None
        with environ_kept(), config_errors(spec):
            # vLLM sets its logging up when it is first imported, to stdout unless told: that belongs to our user.
            os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")
            from vllm import AsyncEngineArgs
            from vllm.renderers import renderer_from_config
            from vllm.v1.engine.input_processor import InputProcessor

            self.vllm_config: Any = AsyncEngineArgs(**engine_args(spec)).create_engine_config()
            self.renderer: Any = renderer_from_config(self.vllm_config)
            self.input_processor: Any = InputProcessor(self.vllm_config, self.renderer)
            self._prompts = PromptRenderer(self.renderer, self.vllm_config.model_config)
            if (endpoint := self.vllm_config.observability_config.otlp_traces_endpoint) is not None:
                _init_tracer(endpoint)
        self.pooling = self.vllm_config.model_config.runner_type == "pooling"
        self.asks: Sequence[str] = (_TASKS,) if self.pooling else ()
        self._tasks: tuple[str, ...] = () if self.pooling else ("generate",)
        maker = PoolingParamsMaker if self.pooling else ParamsMaker
        self._params: ParamsMaker | PoolingParamsMaker = maker(spec.name, spec.params, spec.fixed_params)

    def check(self, prompt: Any, params: Any) -> int:
        """How many samples. Text is not tokenized here, so a text that is too long is refused by ``prepare``."""
        self._check_prompt(prompt)
        return self._params.check(params)

    def _check_prompt(self, prompt: Any) -> None:
        """Where something is generated, there must be room for a token of it."""
        check_prompt(self._stage, prompt, self.vllm_config.model_config.max_model_len, room=0 if self.pooling else 1)

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
        other keywords of its ``process_inputs``, tokenization_kwargs, chat_template_kwargs, reasoning_ended,
        reasoning_parser_kwargs. ``resumable``: this is a piece of a stream of input, and not its last.
        """
        self._check_prompt(prompt)
        sampling = self._params.make(params, stream=stream, text=text)
        options = dict(options or {})
        resumable = bool(options.pop("resumable", False))
        try:
            request, said = self._request(keys[0], prompt, sampling, priority, resumable, options)
        except InvalidRequest as error:
            raise self._invalid(error.message) from error
        except Exception as error:
            # vLLM, tokenizers and chat templates raise whatever they like at a bad prompt; it fails this request alone.
            raise self._invalid(str(error) or type(error).__name__) from error
        if resumable:
            _check_piece(self._stage, request, len(keys))
        partial = stream and sampling.output_kind.name == "DELTA"
        bodies = _samples(request, keys)
        return [
            Work(key=body.request_id, body=body, index=i, stream=partial, text=text, resumable=resumable, prompt=said)
            for i, body in enumerate(bodies)
        ]

    def _request(
        self, key: str, prompt: Any, sampling: Any, priority: int, resumable: bool, options: dict[str, Any]
    ) -> tuple[Any, str | None]:
        """The request, and its prompt as text if it is a piece of a stream: vLLM's outputs show the pieces joined."""
        tokenization = options.pop("tokenization_kwargs", None) or {}
        chat = options.pop("chat_template_kwargs", None) or {}
        reasoning = {name: options.pop(name) for name in _REASONING if name in options}
        process = self.input_processor.process_inputs
        extra = input_options(process, options) if options else {}
        rendered = self._prompts.render(prompt, tokenization=tokenization, chat=chat)
        request = process(key, rendered, sampling, self._tasks, priority=priority, resumable=resumable, **extra)
        for name, value in reasoning.items():
            setattr(request, name, value)
        return request, rendered.get("prompt") if resumable else None

    def _invalid(self, words: str) -> InvalidRequest:
        return InvalidRequest(f"stage {self._stage!r}: {words}", stage=self._stage)

    def codec(self) -> CoreCodec:
        """vLLM's encoder and decoder; each generation has its own."""
        return EngineCoreCodec()

    def meter(self, replica: int) -> Meter | None:
        """vLLM's statistics of one generation, if the stage logs any; they are told to ``on_stats``."""
        spans = self.vllm_config.observability_config.otlp_traces_endpoint is not None
        return EngineCoreMeter(partial(self._tell, replica), spans=spans) if self.log_stats else None

    def _tell(self, replica: int, scheduler_stats: Any, iteration_stats: Any) -> None:
        if self.on_stats is not None:
            self.on_stats(replica, scheduler_stats, iteration_stats)

    def processor(self, meter: Meter | None = None) -> TextProcessor:
        """vLLM's OutputProcessor; each generation has its own."""
        interval = self.vllm_config.scheduler_config.stream_interval
        stats = meter.stats if isinstance(meter, EngineCoreMeter) else None
        return EngineCoreText(self.renderer.tokenizer, stream_interval=interval, stats=stats)

    def engine_ready(self, response: ReadyResponse, *, generation: int) -> None:
        """Take over what the engine found out: a shorter limit (it fits its cache), its blocks, the cache's size."""
        model, cache = self.vllm_config.model_config, self.vllm_config.cache_config
        if response.max_model_len is not None and response.max_model_len < model.max_model_len:
            _LOG.info("%s: the engine lowered max_model_len to %d", self._stage, response.max_model_len)
            model.max_model_len = response.max_model_len
            self._prompts.limit_changed()
        for name in _OF_THE_CACHE:
            if (said := getattr(response, name)) is not None:
                setattr(cache, name, said)
        if generation > 0:
            self._prompts.forget_data()

    def answered(self, method: str, answer: Any) -> None:
        """The tasks of a model that pools: a request for another one must not reach the engine."""
        assert method == _TASKS, method
        self._tasks = tuple(answer)

    def data_missing(self, hashes: Sequence[str]) -> None:
        """Forget that the engine holds these; the next request with the same data sends it."""
        cache = self.renderer.mm_processor_cache
        for each in hashes if cache is not None else ():
            cache.invalidate(each)


def _check_piece(stage: str, request: Any, samples: int) -> None:
    """Raise InvalidRequest for what vLLM has no streamed input for: it would answer wrongly, or never end."""
    params = request.sampling_params
    if params is None or samples > 1 or params.stop or params.output_kind.name != "DELTA":
        why = "streamed input takes one sample of text that is streamed as well, without stop strings"
    elif request.prompt_embeds is not None:
        why = "streamed input takes no prompt_embeds"
    else:
        return
    raise InvalidRequest(f"stage {stage!r}: {why}", stage=stage)


def _samples(request: Any, keys: Sequence[str]) -> list[Any]:
    """One request per sample, seeded apart as vLLM's ParentRequest does."""
    if request.sampling_params is None:
        (request.external_req_id,) = keys
        return [request]
    seed = request.sampling_params.seed
    bodies = [request, *(copy.copy(request) for _ in keys[1:])]
    for index, (body, key) in enumerate(zip(bodies, keys, strict=True)):
        params = request.sampling_params if index == 0 or seed is None else copy.copy(request.sampling_params)
        params.n, params.skip_clone = 1, False
        params.seed = seed if seed is None else seed + index
        body.sampling_params, body.request_id, body.external_req_id = params, key, key
    return bodies


@contextmanager
def environ_kept() -> Iterator[None]:
    """Undo what a library changes in ``os.environ``: children inherit it."""
    before = dict(os.environ)
    try:
        yield
    finally:
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        os.environ.update(before)


@contextmanager
def config_errors(spec: StageSpec, who: str = "vLLM") -> Iterator[None]:
    """Whatever is raised inside means that this stage won't do: a ConfigError, in the words of ``who``."""
    try:
        yield
    except Exception as error:
        # vLLM's config layer raises pydantic's, transformers' and its own errors; all mean that this spec won't do.
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        words = " ".join(lines[:4]) or type(error).__name__
        raise ConfigError(f"{who} refuses it: {words}", path=f"stages.{spec.name}", stage=spec.name) from error
