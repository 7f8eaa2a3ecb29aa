"""``open_omni``: a pipeline's processes, supervision and request handling for the length of a block.

One tree of tasks. The tasks that requests lean on (router, timers, stages, the ladder) outlive a cancelled body until
the ladder has been climbed down; a bug in any of them cancels the body and leaves as one OmniError.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import attrs
import trio

from omni_actors._buggify import chance
from omni_actors._errors import ConfigError, OmniError, StartupFailed, UsageError
from omni_actors.config import PipelineSpec, StageSpec, load_object, registered, resolve, validate
from omni_actors.lifecycle import Edge, Graph, Node
from omni_actors.stages import EngineKind, StageEvent, StageSupervisor, bounded_shield, open_service_nursery

from ._collector import rare_collections
from ._handler import RequestHandler
from ._omni import OmniRuntime
from ._router import Inbox, Router
from ._shutdown import Ladder
from ._world import World, Worlds, engine_kind, real_world

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path


__all__ = ["open_omni", "pipeline_spec"]

ROUTER_CAPACITY = 256
"""Batches between the stage clients and the router: one per engine step and replica, applied without waiting."""


@asynccontextmanager
async def open_omni(
    pipeline: str | Path | PipelineSpec,
    *,
    overrides: Sequence[str] = (),
    on_event: Callable[[StageEvent], None] | None = None,
    world: Worlds = real_world,
) -> AsyncIterator[OmniRuntime]:
    """Start a pipeline and hold it: ``async with open_omni("tiny-omni") as omni: …``.

    ``pipeline`` is a registered name, a deploy file or a spec; ``overrides`` are ``--set``'s (``thinker.replicas=2``).
    ``on_event`` is called synchronously with every step of every replica (for progress). Raises ConfigError before any
    process is started, StartupFailed with the stage's own words if one does not become ready (the others are gone
    then). Leaving the block climbs down the shutdown ladder: a normal end drains, an exception or a cancellation
    aborts at once. The body's exception leaves as itself; a fatal error of the runtime cancels the body and leaves as
    one OmniError. Shielded on the way out, within the ladder's deadlines.
    """
    if sys.platform != "linux":
        raise UsageError(f"omni_actors runs on Linux only (pidfd, process groups); this is {sys.platform}")
    spec = pipeline_spec(pipeline, overrides)
    raised: BaseException | None = None
    try:
        with rare_collections():
            async with world(spec) as place, open_service_nursery() as services, trio.open_nursery() as jobs:
                parts = _assemble(spec, place, jobs, on_event)
                try:
                    await parts.start(services.start_soon)
                    yield parts.omni
                except BaseException as error:
                    raised = error
                    raise
                finally:
                    await _leave(parts.omni, drain=raised is None)
                    jobs.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        leaving = _one(group, raised)
        raise leaving from leaving.__cause__


def pipeline_spec(pipeline: str | Path | PipelineSpec, overrides: Sequence[str]) -> PipelineSpec:
    """What ``open_omni`` opens. Raises ConfigError, UsageError."""
    if isinstance(pipeline, PipelineSpec):
        if overrides:
            raise UsageError("overrides are for names and deploy files; change the spec itself with attrs.evolve")
        return pipeline
    return resolve(str(pipeline), overrides).spec


@attrs.frozen(kw_only=True)
class _Parts:
    """Every part of one runtime, none of them running yet."""

    omni: OmniRuntime
    handler: RequestHandler
    ladder: Ladder
    stages: Sequence[StageSupervisor]
    inbox: Inbox

    async def start(self, start_soon: Callable[..., None]) -> None:
        """Start everything; return when every stage is ready."""
        start_soon(Router(self.handler).run, self.inbox)
        start_soon(self.handler.deadlines.run)
        start_soon(self.ladder.run)
        for stage in self.stages:
            start_soon(stage.run)
        for stage in self.stages:
            await stage.started.wait()
        if "vllm" in sys.modules:
            gc.collect()
            gc.freeze()  # a full collection of vLLM's 600,000 objects would stop every stream for 0.3 s


def _assemble(
    spec: PipelineSpec, place: World, jobs: trio.Nursery, on_event: Callable[[StageEvent], None] | None
) -> _Parts:
    """Raises ConfigError for all that can be known before a process is started."""
    validate(spec, engines={*registered("omni_actors.engines"), *place.kinds})
    kinds = {stage.name: engine_kind(stage.engine, place.kinds, stage.name) for stage in spec.stages}
    for stage in spec.stages:
        kinds[stage.name].check(stage)
    graph = _graph(spec)
    inbox = Inbox(1 if chance("inbox.capacity") else ROUTER_CAPACITY)
    stages = {s.name: _stage(s, kinds[s.name], place, inbox) for s in spec.stages}
    handler = RequestHandler(graph, stages, spec.limits, jobs, salt=place.salt)
    ladder = Ladder(handler, tuple(stages.values()), drain_s=spec.drain_s, abort_s=spec.abort_s)
    omni = OmniRuntime(spec, handler, stages, ladder, inbox)
    for supervisor in stages.values():
        supervisor.observers.append(omni.stage_changed)
        if on_event is not None:
            supervisor.observers.append(on_event)
    return _Parts(omni=omni, handler=handler, ladder=ladder, stages=tuple(stages.values()), inbox=inbox)


def _stage(spec: StageSpec, kind: EngineKind, place: World, inbox: Inbox) -> StageSupervisor:
    return StageSupervisor(
        spec,
        kind,
        launcher=place.launcher,
        transport=place.transport,
        send=inbox.put,
        transform=_function(spec.transform, spec),
        companions=_function(spec.companions, spec),
    )


def _function(path: str | None, spec: StageSpec) -> Callable[..., object] | None:
    """What a stage's dotted path names; of a class, an instance made for this stage."""
    if path is None:
        return None
    found = load_object(path)
    made: Callable[..., object] = found(spec) if isinstance(found, type) else found
    return made


def _graph(spec: PipelineSpec) -> Graph:
    return Graph(Node(name=s.name, output=s.output, edges=tuple(_edges(s))) for s in spec.stages)


def _edges(spec: StageSpec) -> list[Edge]:
    edges = []
    for source in spec.inputs:
        split = load_object(source.split) if source.split else None
        edges.append(
            Edge(
                source=source.stage,
                mode=source.mode,
                split=split,
                split_name=source.split or "",
                parts_in_flight=source.parts_in_flight,
            )
        )
    return edges


async def _leave(omni: OmniRuntime, *, drain: bool) -> None:
    """Climb down. Bounded: by the ladder's rungs, each of them with a deadline, and by this shield."""
    limits = [stage.deadlines for stage in omni.spec.stages]
    longest_s = omni.spec.drain_s + omni.spec.abort_s + max(d.stop_s + 2 * d.kill_s for d in limits) + 15
    with bounded_shield(trio.current_time() + longest_s):
        if drain:
            await omni.shutdown()
        else:
            await omni.shutdown(drain_s=0)


def _one(group: BaseExceptionGroup[BaseException], raised: BaseException | None) -> BaseException:
    """The one error that leaves: a failure of the runtime's own tasks before the body's, and the body's as itself.

    The body's may be a group. Nurseries rebuild groups on their way out, so it is known by its leaves.
    """
    bodys = {id(leaf) for leaf in _leaves(raised)} if raised is not None else set()
    ours = [leaf for leaf in _leaves(group) if id(leaf) not in bodys and not isinstance(leaf, trio.Cancelled)]
    if not ours:
        return raised if raised is not None else group
    if graver := [error for error in ours if not isinstance(error, Exception)]:
        return graver[0]
    if known := [error for error in ours if isinstance(error, OmniError)]:
        return next((error for error in known if isinstance(error, StartupFailed | ConfigError)), known[0])
    fatal = OmniError(f"the runtime failed: {type(ours[0]).__name__}: {ours[0]}")
    fatal.__cause__ = ours[0] if len(ours) == 1 else group
    return fatal


def _leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for inner in error.exceptions for leaf in _leaves(inner)]
    return [error]
