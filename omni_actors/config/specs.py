"""Specs: what a pipeline is, as frozen data. Everything that starts a process starts from one of these.

A spec is made by a pipeline module in Python or by the deploy YAML reader; both end here. Specs hold data only:
functions are dotted paths (``package.module:name``), so that a spec can be printed, compared and sent to a child.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Literal

import attrs

__all__ = ["Deadlines", "EdgeMode", "InputSpec", "Limits", "Modality", "PipelineSpec", "StageSpec"]

EdgeMode = Literal["whole", "segments", "chunks"]
Modality = Literal["text", "audio", "image", "video", "embedding"]


def _frozen_map(value: Mapping[str, Any] | None) -> Mapping[str, Any]:
    return MappingProxyType(dict(value or {}))


@attrs.frozen(kw_only=True)
class Deadlines:
    """Seconds that one stage is given. ``None`` means the engine kind's default: ``hang_s`` (silence where an answer is
    owed) vLLM 60, ours 10; ``step_s`` (inside one step, as ours tell) 300.
    """

    start_s: float = 600.0
    placement_s: float = 30.0
    edge_s: float = 60.0
    silence_s: float = 5.0
    hang_s: float | None = None
    step_s: float | None = None
    stop_s: float = 10.0
    kill_s: float = 2.0
    stable_s: float = 60.0
    backoff_first_s: float = 0.5
    backoff_max_s: float = 30.0


@attrs.frozen(kw_only=True)
class InputSpec:
    """One edge of the graph, seen from its consumer.

    ``split`` (``segments`` only) is the dotted path of a pure function ``(text, finished) -> (segments, rest)``.
    """

    stage: str
    mode: EdgeMode = "whole"
    split: str | None = None
    parts_in_flight: int = 4


def _inputs(value: Iterable[InputSpec]) -> tuple[InputSpec, ...]:
    return tuple(value)


@attrs.frozen(kw_only=True)
class StageSpec:
    """One node of the graph: an engine kind, a model and how many copies of it run.

    ``transform`` is the dotted path of ``f(upstream, request) -> prompt`` (see ``lifecycle.Upstream``); without it a
    root stage gets the user's prompt and an inner stage its single producer's token ids (LLM) or tensors.
    ``companions`` is that of ``f(upstream, request) -> {name: prompt}``: works that this stage does beside its main one
    (guidance without the prompt, say), for the transforms of its consumers; an empty mapping is none, eight the most.
    Of a class that a path names, an instance is made with this spec, and called.
    ``cheap`` declares that both take microseconds, so that they run inline and not in a thread.
    ``output`` is the modality a user can ask for, or None for an inner stage.
    ``devices`` (``"0,1"``) are shared out among the replicas if there are enough, else all have the same (see
    ``devices_of``).
    ``params`` are the default sampling parameters; ``fixed_params`` cannot be overridden by a caller.
    ``nice``, 0 to 19: how readily its processes leave the CPU to others (the operating system's word). Where stages
    share few cores, those that a request meets last should give way: they wait for the first ones anyway.
    """

    name: str
    engine: str
    model: str = ""
    engine_args: Mapping[str, Any] = attrs.field(factory=dict, converter=_frozen_map)
    devices: str | None = None
    env: Mapping[str, str] = attrs.field(factory=dict, converter=_frozen_map)
    python: str | None = None
    replicas: int = 1
    nice: int = 0
    inputs: tuple[InputSpec, ...] = attrs.field(default=(), converter=_inputs)
    transform: str | None = None
    companions: str | None = None
    cheap: bool = True
    output: Modality | None = None
    params: Mapping[str, Any] = attrs.field(factory=dict, converter=_frozen_map)
    fixed_params: Mapping[str, Any] = attrs.field(factory=dict, converter=_frozen_map)
    deadlines: Deadlines = Deadlines()

    def devices_of(self, replica: int) -> str | None:
        """What one replica sees: as many devices as each of the others, or all of them where there is only one."""
        if self.devices is None or self.replicas < 2:
            return self.devices
        devices = [device.strip() for device in self.devices.split(",")]
        each = len(devices) // self.replicas
        return ",".join(devices[each * replica : each * (replica + 1)]) if each else self.devices


@attrs.frozen(kw_only=True)
class Limits:
    """What the house holds at once, and how far a reader may fall behind.

    ``max_requests`` counts slots (a request with ``n=4`` takes four); ``max_bytes`` counts prompts;
    ``stream_bytes`` is one request's unread output.
    """

    max_requests: int = 10_000
    max_bytes: int = 1 << 30
    stream_bytes: int = 64 << 20


def _stages(value: Iterable[StageSpec]) -> tuple[StageSpec, ...]:
    return tuple(value)


@attrs.frozen(kw_only=True)
class PipelineSpec:
    """A named graph of stages. ``drain_s`` and ``abort_s`` are the runtime's own rungs of the shutdown ladder."""

    name: str
    stages: tuple[StageSpec, ...] = attrs.field(converter=_stages)
    limits: Limits = Limits()
    drain_s: float = 30.0
    abort_s: float = 5.0
    description: str = ""

    def stage(self, name: str) -> StageSpec:
        """The stage called ``name``; KeyError if there is none."""
        for stage in self.stages:
            if stage.name == name:
                return stage
        raise KeyError(name)
