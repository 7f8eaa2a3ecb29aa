"""All that ``/metrics`` says of an AsyncOmni: vLLM's metrics of each vLLM stage, and the runtime's own (``omni_…``).

vLLM's are written step by step (see ``_engine_stats``). The runtime's own are read when somebody asks, never polled:
every number is one that the runtime keeps anyway, read from the asker's thread with nothing that could see it half
changed. Both stand in prometheus_client's global registry while the AsyncOmni is open. As with vLLM's own engines, of
several in one process the registry shows the newest.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from prometheus_client import REGISTRY
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from ._engine_stats import EngineStats
from ._families import Families

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from prometheus_client.metrics_core import Metric

    from omni_actors import OmniRuntime

    from ._bridge import Bridge

__all__ = ["Metrics"]

_STATES = ("starting", "ready", "restarting", "down")

_lock = threading.Lock()
_shown: list[Any] = []
"""The collectors that we have put into the registry."""


class Metrics:
    """One AsyncOmni's. ``engines``: the loggers of its vLLM stages that say what they do, by name."""

    def __init__(self, bridge: Bridge, *, log_stats: bool, model_name: str | None) -> None:
        self.engines: dict[str, EngineStats] = {}
        self._bridge = bridge
        self._families = Families()
        if log_stats:
            self._attach(bridge.omni, model_name or bridge.omni.spec.name)

    def _attach(self, omni: OmniRuntime, model_name: str) -> None:
        for stage in omni.spec.stages:
            frontend: Any = omni.frontend(stage.name)
            if getattr(frontend, "log_stats", False):
                stats = EngineStats(stage.name, stage.replicas, frontend, self._families, model_name)
                self.engines[stage.name] = stats
                frontend.on_stats = stats.record

    def show(self) -> None:
        """Put them into the registry, in the place of an older AsyncOmni's."""
        with _lock:
            _clear(_shown)
            for collector in (self._families, self) if self.engines else (self,):
                REGISTRY.register(collector)
                _shown.append(collector)

    def hide(self) -> None:
        """Take them out again. Idempotent."""
        with _lock:
            if self in _shown:
                _clear(_shown)

    def log(self) -> None:
        """vLLM's line for each engine."""
        for stats in self.engines.values():
            stats.log()

    def slept(self, stages: Iterable[str], *, asleep: bool, level: int = 0) -> None:
        """Engines of these stages fell asleep, or are awake again."""
        for stage in stages:
            if stage in self.engines:
                self.engines[stage].slept(asleep=asleep, level=level)

    def collect(self) -> Iterator[Metric]:
        """The runtime's own, now; nothing when it is closed. From any thread."""
        if self._bridge.health is None:
            return
        yield from self._of_requests()
        yield from self._of_stages()

    def _of_requests(self) -> Iterator[Metric]:
        omni = self._bridge.omni
        now, limits = omni.statistics(), omni.spec.limits
        yield _gauge("omni_requests_in_flight", "Requests that have not ended.", now.unsettled)
        yield _gauge("omni_requests_unreleased", "Requests that an engine may still hold something of.", now.requests)
        yield _gauge("omni_slots_taken", "Admission slots taken (a request with n samples takes n).", now.slots)
        yield _gauge("omni_slots_max", "Admission slots.", limits.max_requests)
        yield _gauge("omni_prompt_bytes", "Bytes of the prompts admitted.", now.prompt_bytes)
        yield _gauge("omni_prompt_bytes_max", "Bytes of prompts that are admitted at once.", limits.max_bytes)
        yield _gauge("omni_leases", "Pieces of work that engines hold.", now.leases)
        yield _gauge("omni_router_batches", "Batches of outputs that wait for the router.", now.batches)
        unread = self._bridge.unread_bytes
        yield _gauge("omni_unread_bytes", "Bytes that readers of requests in flight have not taken.", unread)
        ended = CounterMetricFamily("omni_requests_ended", "Requests that ended, by how.", labels=["kind"])
        for kind, count in now.ended.items():
            ended.add_metric([kind.name.lower()], count)
        yield ended
        yield CounterMetricFamily("omni_requests_refused", "Requests that were not admitted.", value=now.refused)
        yield CounterMetricFamily("omni_late_messages", "Outputs of engines that came too late.", value=now.late)

    def _of_stages(self) -> Iterator[Metric]:
        omni, health = self._bridge.omni, self._bridge.health
        if health is None:
            return
        yield _gauge("omni_ready", "1 when new requests are taken and every stage can serve.", int(health.ready))
        state = GaugeMetricFamily("omni_stage_state", "1 for the state that a stage is in.", labels=["stage", "state"])
        of = _PerStage()
        for stage in health.stages:
            for name in _STATES:
                state.add_metric([stage.stage, name], int(stage.state == name))
            of.set("omni_stage_replicas", "Replicas.", stage.stage, stage.replicas)
            of.set("omni_stage_replicas_ready", "Replicas that are ready.", stage.stage, stage.ready)
        for name, load in omni.loads().items():
            of.set("omni_stage_running", "Pieces of work that its engines hold.", name, load.running)
            of.set("omni_stage_waiting", "Inputs being prepared, or waiting for a replica.", name, load.waiting)
        yield state
        yield from of.families.values()
        restarts = CounterMetricFamily("omni_stage_restarts", "Starts after the first.", labels=["stage", "replica"])
        for name, number, generation in omni.generations():
            restarts.add_metric([name, str(number)], max(generation - 1, 0))
        yield restarts


class _PerStage:
    """Gauges with the label ``stage``."""

    def __init__(self) -> None:
        self.families: dict[str, GaugeMetricFamily] = {}

    def set(self, name: str, documentation: str, stage: str, value: float) -> None:
        family = self.families.setdefault(name, GaugeMetricFamily(name, documentation, labels=["stage"]))
        family.add_metric([stage], value)


def _gauge(name: str, documentation: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, documentation, value=value)


def _clear(shown: list[Any]) -> None:
    while shown:
        with suppress(KeyError):  # vLLM took it out for an engine of its own
            REGISTRY.unregister(shown.pop())
