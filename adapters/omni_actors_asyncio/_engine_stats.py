"""One vLLM stage's statistics, through vLLM's own StatLoggerManager: Prometheus metrics, log lines, plugins.

What AsyncLLM does for its engines: each step's SchedulerStats and IterationStats are recorded with the engine's number,
which here is the replica's. The loggers are vLLM's, made to write into our families and to name their stage. Records
are made in the trio thread, log lines in any; both hold the families' lock. A logger that raises is a bug of its own:
it is told once, and its stage is not recorded any more.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from ._families import Families, Maker

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["EngineStats"]

logger = logging.getLogger("omni_actors.asyncio")

_MAKERS = {"_gauge_cls": "gauge", "_counter_cls": "counter", "_histogram_cls": "histogram"}


class EngineStats:
    """A stage's loggers. ``frontend`` is the stage's, with every engine ready. Raises what vLLM's plugins raise."""

    def __init__(self, stage: str, replicas: int, frontend: Any, families: Families, model_name: str) -> None:
        from vllm.v1.metrics.loggers import PrometheusStatLogger, StatLoggerManager, load_stat_logger_plugin_factories

        makers = {name: Maker(families, kind, stage, model_name) for name, kind in _MAKERS.items()}
        self._stage, self._lock, self._renderer = stage, families.lock, frontend.renderer
        self._broken = False
        with self._lock:
            self._manager: Any = StatLoggerManager(
                vllm_config=frontend.vllm_config,
                engine_idxs=list(range(replicas)),
                custom_stat_loggers=[
                    _writing_to(makers, PrometheusStatLogger),
                    _naming(stage),
                    *load_stat_logger_plugin_factories(),
                ],
                enable_default_loggers=False,
            )
            self._manager.log_engine_initialized()

    def record(self, replica: int, scheduler_stats: Any, iteration_stats: Any) -> None:
        """One step of one engine."""
        if self._broken:
            return
        try:
            with self._lock:
                self._manager.record(scheduler_stats, iteration_stats, self._renderer.stat_mm_cache(), replica)
        except Exception:
            self._broken = True
            logger.exception("stage %s: its statistics cannot be recorded, and are given up", self._stage)

    def log(self) -> None:
        """vLLM's line for each engine: throughput, running, waiting, caches."""
        with self._lock:
            self._manager.log()

    def slept(self, *, asleep: bool, level: int = 0) -> None:
        """Its engines sleep (from level 1 on without their weights), or are awake again."""
        with self._lock:
            self._manager.record_sleep_state(int(asleep), level)


def _writing_to(makers: Mapping[str, Maker], kind: type[Any]) -> type[Any]:
    """The same class with our makers in the place of prometheus_client's; and so for the classes that it uses."""
    ours: dict[str, Any] = {}
    for name in (name for name in dir(kind) if name.endswith("_cls")):
        ours[name] = makers[name] if name in makers else _writing_to(makers, getattr(kind, name))
    return type(kind.__name__, (kind,), ours)


def _naming(stage: str) -> type[Any]:
    from vllm.v1.metrics.loggers import LoggingStatLogger

    class StageStatLogger(LoggingStatLogger):  # type: ignore[misc]  # vLLM has no types for mypy
        """vLLM's log line, beginning with the stage."""

        @property
        def log_prefix(self) -> str:
            return f"Stage {stage}, engine {self.engine_index:03d}: "

    return StageStatLogger
