"""A scenario: a pipeline and what happens to it, as data. It prints, compares, travels as JSON and shrinks.

Times are virtual seconds from the moment the pipeline begins to start. What an operation cannot do when its time comes
(kill an engine that is not there, abort through a runtime that never opened) it leaves undone; the history says so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import attrs
import msgspec

from omni_actors.config import Deadlines, EdgeMode, InputSpec, Limits, Modality, PipelineSpec, StageSpec

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "Abort", "Call", "Cancel", "Exit", "Inject", "Kill", "Leave", "Op", "Resume", "Scenario", "Shutdown", "Stage",
    "Stall", "Submit", "scenario_from_json",
]  # fmt: skip

_FUNCTIONS = "omni_actors.testing.pipelines:"


class Stage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One node of a generated pipeline. ``wire``: an LLM on vLLM's wire, or an engine on the omni wire.

    ``segments``: its one input comes in pieces. ``chunks``: it is made from engine to engine (LLMs). ``plain``: an LLM
    behind an LLM takes its tokens as they are, without a transform. ``cheap``: its functions run inline.
    ``companions``: it works on a short and a long one beside its main work, which an LLM ends after two tokens then:
    some stage must read it whole. ``behaviour`` and ``deadlines``: fields of the fake's behaviour, and of
    ``Deadlines``.
    """

    name: str
    wire: Literal["core", "omni"] = "core"
    inputs: tuple[str, ...] = ()
    segments: bool = False
    chunks: bool = False
    plain: bool = False
    output: Modality | None = None
    replicas: int = 1
    cheap: bool = True
    companions: bool = False
    behaviour: dict[str, Any] = {}
    deadlines: dict[str, float] = {}

    def spec(self) -> StageSpec:
        """As the runtime takes it. Tokens and bytes flow on; several inputs are joined."""
        mode: EdgeMode = "segments" if self.segments else "chunks" if self.chunks else "whole"
        split = f"{_FUNCTIONS}fours" if self.segments else None
        transform = None
        if self.inputs and not self.plain:
            transform = f"{_FUNCTIONS}{'blend' if self.wire == 'core' else 'blend_bytes'}"
        signed = {"signed": True} if self.wire == "omni" else {}
        return StageSpec(
            name=self.name,
            engine="fake-core" if self.wire == "core" else "fake",
            replicas=self.replicas,
            inputs=[InputSpec(stage=name, mode=mode, split=split) for name in self.inputs],
            transform=transform,
            companions=f"{_FUNCTIONS}guides" if self.companions else None,
            cheap=self.cheap,
            output=self.output,
            params={"max_tokens": 2} if self.companions and self.wire == "core" else {},
            engine_args={**signed, **self.behaviour},
            deadlines=attrs.evolve(SHORT, **self.deadlines),
        )


SHORT = Deadlines(
    start_s=20, placement_s=5, edge_s=30, silence_s=1, hang_s=4, step_s=3, stop_s=3, kill_s=1, stable_s=60
)
"""Deadlines short enough for a scenario to see each of them pass."""


class _Op(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Something that happens at ``at``, seconds from the beginning."""

    at: float = 0.0


class Submit(_Op, frozen=True, kw_only=True, tag="submit"):
    """A user submits and reads. ``request`` is the scenario's name for it; ``id`` the user's id (default the same).

    ``pace_s``: how long the reader thinks after each output. ``leave_after`` outputs it leaves the block, by ``leave``.
    ``inside``: the reader is a task of the block that holds the runtime, and is cancelled with it.
    """

    request: str
    id: str = ""
    prompt: Any = None
    modalities: tuple[str, ...] | None = None
    params: dict[str, Any] | None = None
    timeout_s: float | None = None
    pace_s: float = 0.0
    leave_after: int | None = None
    leave: Literal["break", "raise", "cancel"] = "break"
    inside: bool = True

    @property
    def user_id(self) -> str:
        """What the runtime is given as ``request_id``."""
        return self.id or self.request


class Abort(_Op, frozen=True, kw_only=True, tag="abort"):
    """Somebody calls ``abort(id)``."""

    id: str


class Leave(_Op, frozen=True, kw_only=True, tag="leave"):
    """The reader's task is cancelled: the client disconnects."""

    request: str


class Stall(_Op, frozen=True, kw_only=True, tag="stall"):
    """SIGSTOP: the engine neither hears nor says anything."""

    stage: str
    replica: int = 0


class Resume(_Op, frozen=True, kw_only=True, tag="resume"):
    """SIGCONT."""

    stage: str
    replica: int = 0


class Kill(_Op, frozen=True, kw_only=True, tag="kill"):
    """A signal from outside.

    ``member``: the engine itself; a worker process of it; or the replica's "next" generation, the moment that it is
    spawned. In memory there is only the engine.
    """

    stage: str
    replica: int = 0
    signal: Literal["KILL", "TERM", "INT"] = "KILL"
    member: Literal["engine", "worker", "next"] = "engine"


class Exit(_Op, frozen=True, kw_only=True, tag="exit"):
    """The engine ends by itself."""

    stage: str
    replica: int = 0
    code: int = 3


class Inject(_Op, frozen=True, kw_only=True, tag="inject"):
    """The engine says something that it should not.

    ``garbage``: undecodable bytes; ``truncated``: the first half of a message; ``empty``: no bytes; ``late release``:
    a release of a lease that has ended; ``stranger``: an output for another replica's lease; ``late output``: one for a
    lease that has ended.
    """

    stage: str
    replica: int = 0
    what: Literal["garbage", "truncated", "empty", "late release", "stranger", "late output"] = "garbage"


class Call(_Op, frozen=True, kw_only=True, tag="call"):
    """Somebody calls a method of the stage's engines."""

    stage: str
    method: str = "echo"
    timeout_s: float = 5.0


class Shutdown(_Op, frozen=True, kw_only=True, tag="shutdown"):
    """Somebody calls ``shutdown``; the second time is the second Ctrl-C."""

    drain_s: float | None = None
    abort_s: float | None = None
    stop_s: float | None = None


class Cancel(_Op, frozen=True, kw_only=True, tag="cancel"):
    """The task that holds the runtime is cancelled."""


Op = Submit | Abort | Leave | Stall | Resume | Kill | Exit | Inject | Call | Shutdown | Cancel


class Scenario(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """``seed`` orders the tasks and rules the sites. ``hwm`` and ``queue_limit``: messages per pipe and per queue.

    ``stages`` is empty where the pipeline is given beside the scenario (``check_pipeline``); ``fakes`` is then what its
    stages' fakes do, by stage. ``buggify``: whether the runtime's sites are active.
    """

    ops: tuple[Op, ...] = ()
    stages: tuple[Stage, ...] = ()
    fakes: dict[str, dict[str, Any]] = {}
    seed: int = 0
    buggify: bool = True
    hwm: int = 10_000
    queue_limit: int = 10_000
    max_requests: int = 10_000
    stream_bytes: int = 64 << 20
    drain_s: float = 5.0
    abort_s: float = 2.0

    def pipeline(self) -> PipelineSpec:
        """The pipeline that the stages describe."""
        limits = Limits(max_requests=self.max_requests, stream_bytes=self.stream_bytes)
        stages = [stage.spec() for stage in self.stages]
        return PipelineSpec(name="simulated", stages=stages, limits=limits, drain_s=self.drain_s, abort_s=self.abort_s)

    def without(self, requests: Sequence[str]) -> Scenario:
        """The same, as if these requests had never come."""
        gone = set(requests)
        kept = [op for op in self.ops if not (isinstance(op, Submit | Leave) and op.request in gone)]
        return msgspec.structs.replace(self, ops=tuple(kept))

    def to_json(self) -> str:
        """One line; ``scenario_from_json`` reads it."""
        return msgspec.json.encode(self).decode()


def scenario_from_json(text: str | bytes) -> Scenario:
    """Raises ``msgspec.ValidationError`` for what is no scenario."""
    return msgspec.json.decode(text, type=Scenario)
