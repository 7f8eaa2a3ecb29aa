"""What the pipeline looks like now, and when that changes: for who watches it.

``changed`` runs in the runtime's thread. It looks when a stage changes, when a request comes and when the runtime
begins to stop; while requests are held, whose pieces come and go with every engine step, ``SAMPLE_S`` apart. An idle
pipeline is not looked at, but for a sign of life.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import attrs
import trio

from ._refusals import public

if TYPE_CHECKING:
    from omni_actors import OmniRuntime, PipelineSpec

__all__ = ["View", "changed", "closed", "document"]

SAMPLE_S = 0.25
HEARTBEAT_S = 10.0
"""A watcher that hears nothing for longer than this can tell that nobody is there any more."""


@attrs.frozen(kw_only=True)
class View:
    """``in_flight``: requests that are not over in every engine. ``stages``: a row of values each, see ``document``."""

    reason: str | None
    in_flight: int
    stages: tuple[tuple[tuple[str, Any], ...], ...]


def look(omni: OmniRuntime) -> View:
    """Now. In the runtime's thread; synchronous and cheap."""
    health, loads = omni.health(), omni.loads()
    rows = []
    for stage in health.stages:
        load = loads[stage.stage]
        row = {
            "stage": stage.stage,
            "state": stage.state,
            "reason": None if stage.reason is None else public(stage.reason),
            "ready": stage.ready,
            "replicas": stage.replicas,
            "restarts": load.restarts,
            "running": load.running,
            "waiting": load.waiting,
        }
        rows.append(tuple(row.items()))
    reason = None if health.reason is None else public(health.reason)
    return View(reason=reason, in_flight=omni.statistics().requests, stages=tuple(rows))


async def changed(bridge: Any, last: View | None) -> View:
    """The first view that differs from ``last``; after ``HEARTBEAT_S`` the same one again."""
    omni = bridge.omni
    with trio.move_on_after(HEARTBEAT_S):
        while (view := look(omni)) == last:
            with trio.move_on_after(SAMPLE_S if view.in_flight else math.inf):
                await omni.wait_news()
    return view


def closed() -> View:
    """The last one: there is no runtime any more."""
    return View(reason="the server is stopping", in_flight=0, stages=())


def document(view: View, spec: PipelineSpec, models: tuple[str, ...]) -> dict[str, Any]:
    """As clients get it: the pipeline's graph, and each stage as it is now."""
    rows = {dict(row)["stage"]: dict(row) for row in view.stages}
    stages = []
    for stage in spec.stages:
        inputs = [{"stage": each.stage, "mode": each.mode} for each in stage.inputs]
        graph = {"engine": stage.engine, "output": stage.output, "inputs": inputs}
        stages.append({"stage": stage.name, **graph, **rows.get(stage.name, {"state": "stopped"})})
    return {
        "pipeline": spec.name,
        "description": spec.description,
        "models": models,
        "ready": view.reason is None,
        "reason": view.reason,
        "in_flight": view.in_flight,
        "stages": stages,
    }
