"""Pipelines of fake engines, in memory and on a virtual clock."""

from __future__ import annotations

from typing import Any

import attrs

from omni_actors import Deadlines, InputSpec, PipelineSpec, StageSpec

SHORT = Deadlines(start_s=20, placement_s=5, edge_s=30, silence_s=1, hang_s=4, stop_s=3, kill_s=1, stable_s=60)




def core(name: str, *, replicas: int = 1, deadlines: Deadlines = SHORT, **more: Any) -> StageSpec:
    """An LLM stage on vLLM's wire. Keyword arguments that are not StageSpec's are the fake's behaviour."""
    return _stage("fake-core", name, replicas, deadlines, more)


def omni_stage(name: str, *, replicas: int = 1, deadlines: Deadlines = SHORT, **more: Any) -> StageSpec:
    """A stage on the omni wire."""
    return _stage("fake", name, replicas, deadlines, more)


def _stage(engine: str, name: str, replicas: int, deadlines: Deadlines, more: dict[str, Any]) -> StageSpec:
    own = {field.name for field in attrs.fields(StageSpec)}
    spec = {key: value for key, value in more.items() if key in own}
    behaviour = {key: value for key, value in more.items() if key not in own}
    return StageSpec(
        name=name, engine=engine, replicas=replicas, deadlines=deadlines, engine_args=behaviour, **spec
    )


def pipeline(*stages: StageSpec, **more: Any) -> PipelineSpec:
    return PipelineSpec(name="fake", stages=stages, **{"drain_s": 5.0, "abort_s": 2.0, **more})


def speech(**changes: dict[str, Any]) -> PipelineSpec:
    """Thinker, talker, vocoder: the rig of CASES.md. ``changes``: behaviour per stage; ``mode`` of the first edge."""
    thinker = {"output": "text", "tokens": 10, **changes.pop("thinker", {})}
    talker = {"inputs": [InputSpec(stage="thinker")], "tokens": 8, **changes.pop("talker", {})}
    vocoder = {
        "inputs": [InputSpec(stage="talker")],
        "output": "audio",
        "chunks": 3,
        "transform": "omni_actors.testing.pipelines:voice",
        **changes.pop("vocoder", {}),
    }
    return pipeline(core("thinker", **thinker), core("talker", **talker), omni_stage("vocoder", **vocoder), **changes)


