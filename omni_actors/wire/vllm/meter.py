"""What vLLM counts of each step: its own IterationStats, fed for every lease, read as text or not.

vLLM counts inside its OutputProcessor. Ours sees only the outputs that somebody reads as text, and of a plain request
only the first and the last: so the counting stands beside it, over all outputs of a step. One step is one
IterationStats, told with the engine's SchedulerStats when the step's last output is applied, as AsyncLLM does.

A plain output in the middle is counted here, in the four lines that vLLM's ``update_from_output`` comes to then: it
reads the environment at each call, which is four fifths of its time (vLLM 0.33 no longer does). Everything else goes
through vLLM's own. Depends on vLLM's version as ``codec`` does; 0.30 to 0.33 have the same signatures.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from .interface import StepOutputs

__all__ = ["EngineCoreMeter", "Unmetered"]


class Unmetered:
    """A ``Meter`` for whom nobody listens."""

    def add(self, body: Any) -> None: ...

    def count(self, outputs: Sequence[Any], timestamp: float) -> None: ...

    def finished(self, key: str, reason: str) -> None: ...

    def drop(self, keys: Iterable[str]) -> None: ...

    def end(self, step: StepOutputs) -> None: ...

    def close(self) -> None: ...


class _Request:
    """One request's numbers."""

    __slots__ = ("body", "cached_tokens", "lora_name", "max_tokens_param", "prefilling", "prompt_len", "stats")

    def __init__(self, body: Any, stats: Any) -> None:
        prompt = body.prompt_token_ids if body.prompt_token_ids is not None else body.prompt_embeds
        self.body, self.stats, self.prefilling, self.cached_tokens = body, stats, True, 0
        self.prompt_len = len(prompt) if prompt is not None else 0
        self.max_tokens_param = body.sampling_params.max_tokens if body.sampling_params is not None else None
        self.lora_name = body.lora_request.lora_name if body.lora_request is not None else None


def _traced(request: _Request) -> SimpleNamespace:
    """What vLLM's ``do_tracing`` reads of its own RequestState."""
    body, params = request.body, request.body.sampling_params
    return SimpleNamespace(
        stats=request.stats,
        external_req_id=body.external_req_id,
        prompt_token_ids=body.prompt_token_ids,
        prompt_embeds=body.prompt_embeds,
        max_tokens_param=request.max_tokens_param,
        top_p=params and params.top_p,
        temperature=params and params.temperature,
        n=params and params.n,
    )


class EngineCoreMeter:
    """One generation's meter. ``tell(scheduler_stats, iteration_stats)`` is called once per step, and must not raise.

    When the generation is over it tells that its engine runs nothing, for nobody else will. ``spans``: each request
    that finishes leaves an OpenTelemetry span, made by vLLM.
    """

    def __init__(self, tell: Callable[[Any, Any], None], *, spans: bool = False) -> None:
        from vllm import envs
        from vllm.v1.engine import FinishReason
        from vllm.v1.engine.output_processor import OutputProcessor
        from vllm.v1.metrics.stats import IterationStats, LoRARequestStates, RequestStateStats, SchedulerStats

        self._tell, self._reasons = tell, {str(reason): reason for reason in FinishReason}
        self._iteration_type, self._stats_type, self._scheduler_type = IterationStats, RequestStateStats, SchedulerStats
        self._loras = LoRARequestStates(log_stats=True)
        self._all_the_way = bool(envs.VLLM_COMPUTE_NANS_IN_LOGITS)
        self._trace = OutputProcessor.do_tracing if spans else None
        self._requests: dict[str, _Request] = {}
        self._iteration: Any = None  # the running step's

    def add(self, body: Any) -> None:
        """A request, or another piece of its input."""
        known = self._requests.get(body.request_id)
        if known is not None:
            known.prefilling, known.stats.arrival_time = True, body.arrival_time
            return
        stats = self._stats_type(arrival_time=body.arrival_time)
        params = body.sampling_params
        if params is not None and hasattr(stats, "is_watermarked"):
            stats.is_watermarked = bool(params.watermarking)
            stats.is_watermark_skipped = params._watermarking_skipped
        self._requests[body.request_id] = _Request(body, stats)

    def stats(self, key: str) -> Any:
        """A request's RequestStateStats, for whoever shows them to the user; None if it is unknown."""
        request = self._requests.get(key)
        return None if request is None else request.stats

    def count(self, outputs: Sequence[Any], timestamp: float) -> None:
        """Some outputs of the running step, before they are processed. Those of unknown requests are not counted."""
        if self._iteration is None:
            self._iteration = self._iteration_type()
        iteration, requests, plain = self._iteration, self._requests, not self._all_the_way
        latencies = iteration.inter_token_latencies_iter
        for output in outputs:
            request = requests.get(output.request_id)
            if request is None:
                continue
            if request.prefilling or output.events is not None or not plain:
                self._count_all(request, output, timestamp)
                continue
            stats, tokens = request.stats, len(output.new_token_ids)
            latencies.append(timestamp - stats.last_token_ts)
            stats.last_token_ts = timestamp
            stats.num_generation_tokens += tokens
            iteration.num_generation_tokens += tokens

    def _count_all(self, request: _Request, output: Any, timestamp: float) -> None:
        self._iteration.update_from_output(
            output, timestamp, request.prefilling, request.stats, self._loras, request.lora_name
        )
        if request.prefilling and output.prefill_stats is not None:
            request.cached_tokens = output.prefill_stats.num_cached_tokens
        request.prefilling = False

    def finished(self, key: str, reason: str) -> None:
        """It has ended, by the engine or by a stop string; as a rule within the step of its last output."""
        request = self._requests.pop(key, None)
        if request is None:
            return
        self._loras.request_finished(key, request.lora_name)
        if self._iteration is None:
            return  # one that ended between two steps, because no more input came: vLLM counts no such end either
        iteration, stats = self._iteration, request.stats
        iteration.update_from_finished_request(
            self._reasons[reason], key, request.prompt_len, request.max_tokens_param, stats, request.cached_tokens
        )
        iteration.max_num_generation_tokens_iter.append(stats.num_generation_tokens)
        iteration.n_params_iter.append(1)
        if self._trace is not None:
            self._trace(None, SimpleNamespace(trace_headers=request.body.trace_headers), _traced(request), iteration)

    def drop(self, keys: Iterable[str]) -> None:
        """They were aborted: vLLM does not count those either. Unknown ones are ignored."""
        for key in keys:
            if (request := self._requests.pop(key, None)) is not None:
                self._loras.request_finished(key, request.lora_name)

    def end(self, step: StepOutputs) -> None:
        """The step is over."""
        iteration, self._iteration = self._iteration, None
        scheduler = step.scheduler_stats
        if iteration is not None or scheduler is not None:
            self._loras.update_scheduler_stats(scheduler)
            self._tell(scheduler, iteration)

    def close(self) -> None:
        """The generation is over."""
        self._requests.clear()
        self._tell(self._scheduler_type(), None)
