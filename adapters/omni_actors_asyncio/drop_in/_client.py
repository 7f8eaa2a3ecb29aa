"""``ModelOmni``: what ``AsyncOmni(model=…)`` makes. vLLM-Omni's AsyncOmni, as its users and its serving layer know it.

What that is beside ``generate`` are names: of the stages' configurations, their params, their processors. All of them
are vLLM-Omni's own objects, those of the stages' front-ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import attrs
from vllm_omni.diffusion.data import OmniACK
from vllm_omni.entrypoints.omni_base import OmniEngineDeadError
from vllm_omni.metrics.modality import OmniModalityMetrics

from omni_actors import PipelineSpec, UsageError
from omni_actors.vllm_omni import pipeline as model_pipeline
from omni_actors.vllm_omni._kind import arguments
from omni_actors.vllm_omni._plan import resolve
from omni_actors_asyncio._client import AsyncOmni

from ._generate import Requests
from ._metrics import StageInfo
from ._options import ModelOptions

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from vllm_omni.entrypoints.client_request_state import ClientRequestState

    from omni_actors import AbortReport

__all__ = ["ModelOmni"]


@attrs.frozen(kw_only=True)
class Engine:
    """What vLLM-Omni's serving layer asks of an ``engine``. ``stage_pools``: there are none; replicas are ours."""

    stage_configs: Sequence[Any]
    alive: Callable[[], bool]
    metadata: Sequence[Any]
    stage_pools: None = None

    @property
    def num_stages(self) -> int:
        return len(self.stage_configs)

    def is_alive(self) -> bool:
        return self.alive()

    def get_stage_metadata(self, stage_id: int) -> Any:
        return self.metadata[stage_id]


class ModelOmni(Requests, AsyncOmni):  # type: ignore[misc]  # its ``generate`` is vLLM-Omni's
    """``AsyncOmni(model="Qwen/Qwen2.5-Omni-7B", deploy_config=…, …)``: the arguments are vLLM-Omni's.

    Made so, it is running when it is there, as theirs is, and ends with ``shutdown``, or with ``async with``, or with
    the program. Made of a PipelineSpec (``omni_actors.vllm_omni.pipeline``), it is entered like any AsyncOmni.

    Raises ConfigError for arguments, StartupFailed and what else ``open_omni`` raises.
    """

    tts_batch_max_items = 32
    tts_max_instructions_length: int | None = None
    io_processor: Any = None
    _wanted: Sequence[str] = ()
    _running = False

    def __init__(self, pipeline: Any = None, *, model: str = "", on_event: Any = None, **given: Any) -> None:
        if isinstance(pipeline, PipelineSpec):
            super().__init__(pipeline, on_event=on_event, **given)
            return
        asked = ModelOptions.of(model or pipeline, given)
        spec = model_pipeline(asked.model, **asked.pipeline)
        super().__init__(spec, on_event=on_event, disable_log_stats=not asked.log_stats)
        self._wanted = asked.output_modalities
        self.tts_batch_max_items = asked.tts_batch_max_items
        self.tts_max_instructions_length = asked.tts_max_instructions_length
        self._bridge.open()
        self._opened()

    @classmethod
    def from_cli_args(cls, args: Any, model: str | None = None) -> ModelOmni:
        """Of what vLLM-Omni's parser read, as far as it was said."""
        said = args.get_explicit_kwargs_dict()
        named = said.pop("model", None) or args.model
        if model is not None and named is not None and model != named:
            raise ValueError(f"the model is said twice, {model!r} and {named!r}")
        return cls(model=model or named, **said)

    async def __aenter__(self) -> ModelOmni:
        if not self._running:
            await super().__aenter__()
        return self

    def _opened(self) -> None:
        super()._opened()
        self._running = True
        spec = self._bridge.omni.spec
        options, _ = arguments(spec.stages[0])
        self.model = spec.stages[0].model
        resolution = resolve(self.model, options)
        self.stage_configs = list(resolution.stage_configs)
        self.endpoint_restrictions = getattr(resolution.pipeline_config, "endpoint_restrictions", ())
        self.config_path = resolution.config_path
        self.async_chunk = any(bool(stage.connector_config.async_chunk) for stage in self.stage_configs)
        self._know([self._bridge.omni.frontend(stage.name) for stage in spec.stages])
        self.engine = Engine(
            stage_configs=self.stage_configs, alive=lambda: self._bridge.health is not None, metadata=self._metadata
        )

    def _know(self, frontends: Sequence[Any]) -> None:
        self._metadata = [frontend.metadata for frontend in frontends]
        names = [stage.name for stage in self._bridge.omni.spec.stages]
        kinds = [meta.final_output_type if meta.final_output else None for meta in self._metadata]
        self._stages = {
            name: StageInfo(number=number, name=name, kind=kind)
            for number, (name, kind) in enumerate(zip(names, kinds, strict=True))
        }
        self.default_sampling_params_list = [meta.default_sampling_params for meta in self._metadata]
        self.output_modalities = list(self._wanted) or [kind for kind in kinds if kind is not None]
        reads = [number for number, config in enumerate(self.stage_configs) if config.is_comprehension]
        self._painters = [frontend for frontend in frontends if hasattr(frontend, "od_config")]
        first = frontends[reads[0] if reads else 0]
        self._tokenizer = self.vllm_config = self.model_config = None
        if first not in self._painters:  # a model that only paints reads no prompt as vLLM does
            self._tokenizer = first.input_processor.tokenizer
            self.vllm_config, self.model_config = first.vllm_config, first.vllm_config.model_config
        self.input_processor = getattr(frontends[0], "input_processor", None)
        self.renderer = getattr(frontends[0], "renderer", None)
        self.request_states: dict[str, ClientRequestState] = {}
        self.log_stats = self._log_stats
        self.mod_metrics = OmniModalityMetrics(model_name=self.model, log_stats=self._log_stats)

    # ------------------------------------------------------------------ its state

    @property
    def num_stages(self) -> int:
        """How many stages the model has."""
        return len(self._stages)

    def _trouble(self) -> str | None:
        """A stage that is down fails the requests that need it, and no others."""
        return None if self._bridge.health is not None else "the runtime is closed"

    @property
    def dead_error(self) -> BaseException:
        """Why ``errored``."""
        error: BaseException = OmniEngineDeadError(self._trouble() or "it is alive")
        return error

    async def check_health(self) -> None:
        """Raises EngineDeadError when it is closed, or a stage has no replica that can serve."""
        health = self._bridge.health
        if health is None:
            raise self.dead_error
        for stage in health.stages:
            if not stage.ready:
                words = f"stage {stage.stage} is {stage.state}: {stage.reason}"
                raise OmniEngineDeadError(words, error_stage_id=self._stages[stage.stage].number)

    async def get_vllm_config(self) -> Any:
        """The vLLM configuration of the stage that reads the prompt."""
        return self.vllm_config

    async def get_tokenizer(self) -> Any:
        """That stage's."""
        return self._tokenizer

    async def get_input_preprocessor(self) -> Any:
        """The first stage's input processor."""
        return self.input_processor

    async def get_supported_tasks(self) -> tuple[str, ...]:
        """In vLLM-Omni's words: ``generate`` if a stage reads, ``speech`` if one makes sound."""
        reads = any(config.is_comprehension for config in self.stage_configs)
        speaks = any(meta.final_output_type == "audio" for meta in self._metadata)
        return (*(("generate",) if reads else ()), *(("speech",) if speaks else ())) or ("generate",)

    def get_diffusion_od_config(self) -> Any:
        """vLLM-Omni's OmniDiffusionConfig of the diffusion stage; None if there is none."""
        return self._painters[0].od_config if self._painters else None

    # ------------------------------------------------------------------ the end of requests, of stages

    async def abort(
        self, request_id: str | Iterable[str], internal: bool = False, *, timeout: float | None = None
    ) -> list[AbortReport]:
        """Abort every request with this id, or these; returns when all engines have confirmed, or after ``timeout``:
        then with nothing, and the abort goes on.
        """
        try:
            async with asyncio.timeout(timeout):
                return await super().abort(request_id)
        except TimeoutError:
            return []

    def _named(self, stage_ids: Sequence[int] | None) -> list[str] | None:
        if stage_ids is None:
            return None
        names = list(self._stages)
        for number in stage_ids:
            if not 0 <= number < len(names):
                raise UsageError(f"there is no stage {number}; there are {len(names)}")
        return [names[number] for number in stage_ids]

    async def collective_rpc(
        self,
        method: str,
        timeout: float | None = None,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
        stage_ids: Sequence[int] | None = None,
        *,
        stages: Sequence[str] | None = None,
    ) -> list[Any]:
        """A method of every worker of these stages (default: all), in stage, replica and worker order."""
        return await super().collective_rpc(method, timeout, args, kwargs, stages=stages or self._named(stage_ids))

    async def sleep(  # type: ignore[override]
        self, stage_ids: Sequence[int] | None = None, level: int = 2, mode: str = "abort"
    ) -> list[Any]:
        """As vLLM's engines sleep (see ``Control.sleep``); one acknowledgement for each stage."""
        names = self._named(stage_ids) or list(self._stages)
        await super().sleep(level, mode, stages=names)
        return [_slept(self._stages[name].number, "sleep", level) for name in names]

    async def wake_up(  # type: ignore[override]
        self, stage_ids: Sequence[int] | None = None, tags: list[str] | None = None
    ) -> list[Any]:
        """The end of it; one acknowledgement for each stage."""
        names = self._named(stage_ids) or list(self._stages)
        await super().wake_up(tags, stages=names)
        return [_slept(self._stages[name].number, "wake_up", 0) for name in names]

    async def start_profile(self, profile_prefix: str | None = None, stages: Any = None, **how: Any) -> None:
        """The engines' own profilers; ``stages`` by number."""
        await super().start_profile(profile_prefix, stages=self._named(stages), **how)

    async def stop_profile(self, stages: Any = None) -> None:
        """Writes the traces."""
        await super().stop_profile(stages=self._named(stages))


def _slept(stage_id: int, what: str, level: int) -> Any:
    return OmniACK(task_id=f"{what}-{stage_id}", status="SUCCESS", stage_id=stage_id, rank=0, metadata={"level": level})
