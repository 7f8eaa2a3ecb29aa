"""What a run tells about itself: the per-request table of times."""

from __future__ import annotations

from omni_actors.observe._stats import RequestStats, StageRow, StageTiming, request_stats

__all__ = ["RequestStats", "StageRow", "StageTiming", "request_stats"]
