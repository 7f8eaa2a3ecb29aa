"""What vLLM-Omni says of a request's stages, measured by our runtime: ``stage_metrics`` and ``stage_durations``.

The shape is vLLM-Omni's own (``StageRequestStats``, and what its aggregator makes of it). Times are those of the host:
a stage's begins when its work goes to an engine.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import attrs
from vllm_omni.metrics.stats import OrchestratorAggregator, StageRequestStats, StageStats

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from omni_actors.lifecycle import Timing

    from ._ticket import MeasuredTicket

__all__ = ["Ended", "StageInfo", "durations", "metrics"]


@attrs.frozen(kw_only=True)
class StageInfo:
    """One stage as vLLM-Omni calls it. ``kind``: its ``final_output_type``."""

    number: int
    name: str
    kind: str | None


@attrs.frozen(kw_only=True)
class Ended:
    """The end of a stage whose outputs are read: what only its outputs tell."""

    reason: str | None = None
    tokens: int = 0
    frames: int = 0
    rate: int = 0


def metrics(
    stages: Mapping[str, StageInfo], ticket: MeasuredTicket, ended: Mapping[str, Ended], now: str
) -> dict[str, Any]:
    """vLLM-Omni's ``metrics`` of an output of stage ``now``: all stages that have finished, and that one at the top."""
    found = {
        name: _stats(stages[name], timing, ticket, ended.get(name, Ended())) for name, timing in _known(ticket).items()
    }
    if not found:
        return {}
    shown = {str(stages[name].number): _shown(stages[name], stats) for name, stats in found.items()}
    made: dict[str, Any] = {"stage_metrics": shown}
    if now in found:
        mine = shown[str(stages[now].number)]
        made |= {key: mine[key] for key in ("stage_id", "final_output_type", "num_tokens_in", "num_tokens_out")}
    return made


def durations(stages: Mapping[str, StageInfo], ticket: MeasuredTicket) -> dict[str, float]:
    """vLLM-Omni's ``stage_durations``: milliseconds of each stage that has finished."""
    return {f"stage_{stages[name].number}_gen_ms": _ms(timing) for name, timing in _known(ticket).items()}


def _known(ticket: MeasuredTicket) -> dict[str, Timing]:
    """Of the stages that have finished by now, in the order in which they got their work."""
    found = {name: timing for done in list(ticket.done.values()) for name, timing in done.items()}
    return dict(sorted(found.items(), key=lambda item: item[1].submitted_at or 0.0))


def _ms(timing: Timing) -> float:
    if timing.submitted_at is None or timing.finished_at is None:
        return 0.0
    return max(0.0, (timing.finished_at - timing.submitted_at) * 1000)


def _shown(stage: StageInfo, stats: StageRequestStats) -> dict[str, Any]:
    shown: dict[str, Any] = OrchestratorAggregator._merge_stage_metric_event(None, stats)
    return {**shown, "stage_name": stage.name, "final_output_type": stage.kind}


def _stats(stage: StageInfo, timing: Timing, ticket: MeasuredTicket, ended: Ended) -> StageRequestStats:
    tokens, gaps = timing.tokens or ended.tokens, _gaps(ticket.came.get(stage.name, ()))
    unit, units = (stage.kind or "stream"), ended.frames if stage.kind == "audio" else tokens
    text, spread = stage.kind == "text", sum(gaps)
    return StageRequestStats(
        batch_id=0,
        batch_size=1,
        num_tokens_in=ticket.prompt_tokens if stage.number == 0 else 0,
        num_tokens_out=tokens,
        stage_gen_time_ms=_ms(timing),
        rx_transfer_bytes=0,
        rx_decode_time_ms=0.0,
        rx_in_flight_time_ms=0.0,
        stage_stats=StageStats(total_token=tokens, total_gen_time_ms=_ms(timing)),
        stage_id=stage.number,
        replica_id=timing.replica,
        final_output_type=stage.kind,
        finish_reason=ended.reason,
        audio_generated_frames=ended.frames,
        audio_sample_rate=ended.rate,
        audio_duration_s=ended.frames / ended.rate if ended.rate else 0.0,
        output_unit_type=unit,
        output_unit_count=units,
        serving_time_to_first_output_ms=_since(ticket.submitted_at, timing.first_at),
        time_per_output_unit_ms=spread / (units - 1) if text and units > 1 else 0.0,
        inter_output_latency_ms=spread / len(gaps) if gaps else 0.0,
        inter_output_latencies_ms=gaps,
        vllm_ttft_ms=_since(timing.submitted_at, timing.first_at) if text else 0.0,
        vllm_tpot_ms=spread / (tokens - 1) if text and tokens > 1 else 0.0,
        vllm_itl_ms=spread / len(gaps) if text and gaps else 0.0,
        vllm_itls_ms=gaps if text else [],
    )


def _gaps(came: Sequence[float]) -> list[float]:
    return [(later - earlier) * 1000 for earlier, later in pairwise(list(came))]


def _since(begin: float | None, end: float | None) -> float:
    return max(0.0, (end - begin) * 1000) if begin is not None and end is not None else 0.0
