"""Pipelines of fake engines as specs: the same rig runs in memory on a virtual clock and as real processes.

Keyword arguments that are not ``StageSpec``'s are the fake's behaviour (``FakeCoreBehaviour``, ``FakeBehaviour``).
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import attrs
import trio

from omni_actors.config import Deadlines, InputSpec, PipelineSpec, StageSpec
from omni_actors.runtime import OmniRuntime, open_omni

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

__all__ = ["SHORT", "core", "omni_stage", "open_in_time", "pipeline", "speech"]

SHORT = Deadlines(
    start_s=20, placement_s=5, edge_s=30, silence_s=1, hang_s=4, step_s=3, stop_s=3, kill_s=1, stable_s=60
)


def core(name: str, *, replicas: int = 1, deadlines: Deadlines = SHORT, **more: Any) -> StageSpec:
    """An LLM stage on vLLM's wire."""
    return _stage("fake-core", name, replicas, deadlines, more)


def omni_stage(name: str, *, replicas: int = 1, deadlines: Deadlines = SHORT, **more: Any) -> StageSpec:
    """A stage on the omni wire."""
    return _stage("fake", name, replicas, deadlines, more)


def _stage(engine: str, name: str, replicas: int, deadlines: Deadlines, more: dict[str, Any]) -> StageSpec:
    own = {field.name for field in attrs.fields(StageSpec)}
    spec = {key: value for key, value in more.items() if key in own}
    behaviour = {key: value for key, value in more.items() if key not in own}
    return StageSpec(name=name, engine=engine, replicas=replicas, deadlines=deadlines, engine_args=behaviour, **spec)


def pipeline(*stages: StageSpec, **more: Any) -> PipelineSpec:
    """These stages, with a short ladder."""
    return PipelineSpec(name="fake", stages=stages, **{"drain_s": 5.0, "abort_s": 2.0, **more})


def speech(
    *,
    thinker: Mapping[str, Any] | None = None,
    talker: Mapping[str, Any] | None = None,
    vocoder: Mapping[str, Any] | None = None,
    **more: Any,
) -> PipelineSpec:
    """Thinker, talker, vocoder. ``thinker`` and so on: changes of that stage; ``more`` is the pipeline's."""
    return pipeline(
        core("thinker", **{"output": "text", "tokens": 10, **(thinker or {})}),
        core("talker", **{"inputs": [InputSpec(stage="thinker")], "tokens": 8, **(talker or {})}),
        omni_stage(
            "vocoder",
            **{
                "inputs": [InputSpec(stage="talker")],
                "output": "audio",
                "chunks": 3,
                "transform": "omni_actors.testing.pipelines:voice",
                **(vocoder or {}),
            },
        ),
        **more,
    )


@asynccontextmanager
async def open_in_time(spec: PipelineSpec, *, within_s: float = 90, **how: Any) -> AsyncIterator[OmniRuntime]:
    """``open_omni`` for tests on a real clock: what hangs raises ``trio.TooSlowError``, long before anybody wonders."""
    with trio.fail_after(within_s):
        async with open_omni(spec, **how) as omni:
            yield omni
