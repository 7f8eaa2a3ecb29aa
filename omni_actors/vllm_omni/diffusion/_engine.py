"""OmniDiffusion: vLLM-Omni's DiffusionEngine as a class that GenerationEngine hosts.

vLLM-Omni drives its engine from a thread of its own and tells an event loop what comes of it. Here our working thread
drives it: one ``step`` is one wave of its scheduler, so that an abort acts between two waves and nothing is waited for.
In step execution a wave is one denoising step of all requests at work. Else it is their whole denoising: then the
model's own modules listen for aborts as they are called, which is possible where the engine has no worker processes.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING, Any

import msgspec
import torch
from vllm.lora.request import LoRARequest
from vllm_omni.diffusion.data import DiffusionOutput
from vllm_omni.diffusion.diffusion_engine import DiffusionEngine
from vllm_omni.diffusion.request import OmniDiffusionRequest
from vllm_omni.diffusion.sched import StepScheduler
from vllm_omni.diffusion.worker.utils import BatchRunnerOutput, RunnerOutput
from vllm_omni.distributed.omni_connectors.utils.serialization import OmniMsgpackDecoder
from vllm_omni.errors import OmniClientError
from vllm_omni.inputs.data import OmniDiffusionSamplingParams

from omni_actors._errors import InvalidRequest
from omni_actors.engines.generation import Chunk, Item, Step
from omni_actors.vllm_omni._plan import diffusion_config, prepare_engine

from ._outputs import chunks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

__all__ = ["OmniDiffusion"]

_LOG = logging.getLogger("omni_actors.vllm_omni")


class OmniDiffusion:
    """See ``engines.generation.Generator``. One stage of ``model``, resolved with vLLM-Omni's own ``options``."""

    def __init__(self, model: str, options: dict[str, Any], stage_id: int, devices: str | None = None) -> None:
        prepare_engine(devices)
        config = diffusion_config(model, options, stage_id)
        config.enrich_config()
        self._engine = DiffusionEngine.make_engine(config)
        # What its scheduler is done with goes to us; the queues that it would go to are for readers in event loops.
        self._engine._put_output = self._made
        self._at_work: dict[str, deque[DiffusionOutput]] = {}
        self._in_wave: frozenset[str] = frozenset()
        self._listen: Callable[[], None] = lambda: None
        self._hook(config.enforce_eager)

    def hear(self, listen: Callable[[], None]) -> None:
        """Take the host's function that lets aborts act in the middle of a step."""
        self._listen = listen

    def start(self, item: Item) -> Iterator[Chunk | Step]:
        """Give the request to the scheduler. Raises InvalidRequest for what it or the model's preprocessing refuses."""
        try:
            request = _request(item.prompt["request"])
            self._engine.add_request(request)
        except (OmniClientError, ValueError) as error:
            raise InvalidRequest(str(error)) from error
        self._engine._out_streams.pop(request.request_id)
        made = self._at_work[request.request_id] = deque()
        return _Pieces(self, request, made, shown=bool(item.params.get("progress")))

    def step(self, batch: Sequence[Item]) -> None:
        """One wave. Ends the process where the engine has failed for good."""
        self._wave()
        if self._engine._closed or self._engine.executor.is_dead:
            raise SystemExit("vLLM-Omni's diffusion engine has failed")

    def collective_rpc(self, method: str, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None) -> list[Any]:
        """Call a method of vLLM-Omni's workers; what each has answered."""
        answers: list[Any] = self._engine.executor.collective_rpc(method, args=tuple(args), kwargs=kwargs)
        return answers

    def told(self, request: OmniDiffusionRequest, output: DiffusionOutput) -> Iterator[Chunk]:
        """One output of its scheduler as chunks. Raises InvalidRequest, or what the model's postprocessing raises."""
        if output.async_output_id:  # from workers of its own; the deadline is the host's for a step
            output = self._engine.executor.wait_output_ready(output.async_output_id).result()
        try:
            formatted = self._engine.postprocess_output(request, output)
        except OmniClientError as error:
            raise InvalidRequest(str(error)) from error
        for each in formatted:
            yield from chunks(each, finished=output.finished)

    def progress(self, request: OmniDiffusionRequest, *, shown: bool) -> Step:
        """How far it is, where its engine goes step by step."""
        scheduler = self._engine.scheduler
        if not isinstance(scheduler, StepScheduler):
            return Step(done=0, total=request.sampling_params.num_inference_steps or 0)
        progress = scheduler._request_progress[request.request_id]
        return Step(done=progress.current_step, total=progress.total_steps, shown=shown)

    def forget(self, key: str) -> None:
        """Its end, or its abort: then the scheduler forgets it too, at once or at the end of the wave that it is in."""
        del self._at_work[key]
        engine = self._engine
        if engine.scheduler.get_request_state(key) is None:
            return
        engine.abort(key)
        engine._process_aborts_queue()
        if not self._in_wave:
            engine._emit_finished_outputs(engine.scheduler.pending_finished_request_ids())

    def _made(self, key: str, output: DiffusionOutput) -> None:
        if (made := self._at_work.get(key)) is not None:
            made.append(output)

    def _wave(self) -> None:
        """What ``DiffusionEngine._busy_loop`` does in one turn."""
        engine, scheduler = self._engine, self._engine.scheduler
        wave = scheduler.schedule()
        if wave.is_empty:
            known = {key for key in wave.finished_req_ids if scheduler.get_request_state(key) is not None}
            engine._emit_finished_outputs(known)
            return
        keys = list(wave.scheduled_request_ids)
        self._in_wave = frozenset(keys)
        try:
            engine._prepare_kv_for_forward(wave)
            keys = list(wave.scheduled_request_ids)
            made, completed = self._executed(wave, keys)
            engine._emit_outputs(
                scheduler.update_from_output(wave, made), keys, made, worker_execution_completed=completed
            )
        finally:
            self._in_wave = frozenset()

    def _executed(self, wave: Any, keys: list[str]) -> tuple[Any, bool]:
        """What the workers made of it, and whether they came to its end: what they raise is the requests' error."""
        try:
            made = self._engine.execute_fn(wave) if keys else BatchRunnerOutput.from_list([])
            self._engine._poll_native_kv()
        except Exception as error:
            if self._engine._closed:
                raise
            if not isinstance(error, _Unwanted):
                _LOG.exception("diffusion requests failed: %s", ", ".join(keys))
            result = DiffusionOutput.from_exception(error)
            outputs = [RunnerOutput(request_id=key, step_index=None, finished=True, result=result) for key in keys]
            return BatchRunnerOutput.from_list(outputs), False
        return made, True

    def _hook(self, eager: bool) -> None:
        """Have the parts of the model listen as they are called."""
        driver = getattr(self._engine.executor, "driver_worker", None)
        pipeline = None if driver is None else driver.worker.model_runner.pipeline
        if not isinstance(pipeline, torch.nn.Module):
            return
        heard = self._heard if eager else torch.compiler.disable(self._heard)
        for part in pipeline.children():
            part.register_forward_pre_hook(heard)

    def _heard(self, *_: Any) -> None:
        """Raises out of a forward pass whose requests nobody wants any more."""
        if not self._in_wave:
            return
        self._listen()
        if not self._in_wave & self._at_work.keys():
            raise _Unwanted("all requests of this pass were aborted")


def _request(told: bytes) -> OmniDiffusionRequest:
    """What the stage's front-end has written, as vLLM-Omni's own types."""
    fields = OmniMsgpackDecoder().decode(told)
    sampling = fields["sampling_params"]
    if sampling.get("lora_request") is not None:
        sampling["lora_request"] = msgspec.convert(sampling["lora_request"], LoRARequest)
    return OmniDiffusionRequest(**{**fields, "sampling_params": OmniDiffusionSamplingParams(**sampling)})


class _Pieces:
    """The chunks and steps of one request. No generator: its end must be heard of even if it was never begun."""

    def __init__(
        self, stage: OmniDiffusion, request: OmniDiffusionRequest, made: deque[DiffusionOutput], *, shown: bool
    ) -> None:
        self._stage, self._request, self._made, self._shown = stage, request, made, shown
        self._told: Iterator[Chunk] = iter(())

    def __iter__(self) -> Iterator[Chunk | Step]:
        return self

    def __next__(self) -> Chunk | Step:
        if (chunk := next(self._told, None)) is not None:
            return chunk
        if not self._made:
            return self._stage.progress(self._request, shown=self._shown)
        self._told = self._stage.told(self._request, self._made.popleft())
        return next(self)

    def close(self) -> None:
        """Called once, at its end or abort."""
        self._stage.forget(self._request.request_id)


class _Unwanted(Exception):
    """Ends a pass; it reaches nobody."""
