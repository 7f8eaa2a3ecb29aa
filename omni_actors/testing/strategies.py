"""Hypothesis strategies: pipelines of fake engines, and what happens to them.

Everything drawn is data (``Stage``, ``Scenario``) and shrinks towards the plainest: one stage, few operations, round
times, no site active. What is improbable but interesting is drawn on purpose: faults while work is live, ids used
twice, pipes of one message, deadlines too short to hold. Importing this module imports hypothesis.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, TypeVar

import attrs
import msgspec
from hypothesis import strategies as st

from omni_actors.config import PipelineSpec

from ._aim import aimed
from ._behaviours import behaviours, seldom, some
from ._scripted import Wire, denoises, wire_of
from .ops import Abort, Call, Cancel, Exit, Inject, Kill, Leave, Op, Resume, Shutdown, Stall, Submit
from .sim._scenario import Scenario, Stage

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hypothesis.strategies import DrawFn, SearchStrategy

__all__ = ["Place", "behaviours", "moments", "operations", "pipelines", "places", "scenarios", "submits", "with_output"]

T = TypeVar("T")

MAX_STAGES, MAX_REQUESTS, MAX_EVENTS = 5, 7, 7
_NAMES = "abcde"
_SHARED_IDS = ("x", "y")
_NOT_MADE = "video"
"""A modality that no generated pipeline makes."""


@attrs.frozen
class Place:
    """A stage, as operations see it."""

    stage: str
    wire: Wire
    replicas: int
    output: str | None
    companions: bool = False
    steps: bool = False


def places(pipeline: PipelineSpec | Sequence[Stage]) -> tuple[Place, ...]:
    """The stages of a pipeline. An LLM of a spec (``vllm``, ``fake-core``) is on vLLM's wire, all else on the other."""
    if isinstance(pipeline, PipelineSpec):
        return tuple(
            Place(s.name, wire_of(s.engine), s.replicas, s.output, s.companions is not None, denoises(s))
            for s in pipeline.stages
        )
    return tuple(Place(s.name, s.wire, s.replicas, s.output, s.companions, "steps" in s.behaviour) for s in pipeline)


# ---------------------------------------------------------------------- seldom and often


@st.composite
def _slots(draw: DrawFn, item: SearchStrategy[T], count: int, *, filled: int) -> list[T | None]:
    """``count`` places, ``filled`` of ten of them with an item. What shrinks away leaves its neighbours as they are."""
    return [draw(item) if draw(_TEN) >= 10 - filled else None for _ in range(count)]


_TEN = st.integers(0, 9)


@functools.cache
def moments() -> SearchStrategy[float]:
    """Seconds from the beginning, in hundredths: mostly while the first requests are at work, now and then much later.

    The grid is that of the fakes' steps, so that things happen at the same moment.
    """
    busy, later = st.integers(0, 60), st.integers(0, 300)
    return st.one_of(busy, busy, later, st.sampled_from((400, 1000, 3000))).map(lambda hundredths: hundredths / 100)


# ---------------------------------------------------------------------- pipelines


_DEADLINES: dict[str, SearchStrategy[Any]] = {
    "start_s": st.just(1.0),
    "placement_s": st.sampled_from((0.0, 0.2)),
    "edge_s": st.sampled_from((0.02, 0.2)),
    "silence_s": st.just(0.3),
    "hang_s": st.just(1.5),
    "step_s": st.just(0.8),
    "stop_s": st.sampled_from((0.0, 0.2)),
    "stable_s": st.sampled_from((0.01, 1.0)),
    "backoff_first_s": st.sampled_from((0.0, 2.0)),
}


_WIRES: SearchStrategy[Any] = st.sampled_from(("core", "omni"))
_REPLICAS = st.sampled_from((1, 1, 1, 2, 3))
_CHEAP = st.sampled_from((True, True, False))
_BOOLEANS = st.booleans()
_GUIDED: SearchStrategy[dict[str, Any]] = st.sampled_from(
    ({"tokens": 16}, {"tokens": 16}, {"tokens": 24}, {"reject": "long"})
)
"""Of an LLM with companions: the one called long goes on while its main work has ended, or is refused."""
_CUT = some(_DEADLINES, one_in=6)
_HOW = st.sampled_from(("chain", "chain", "any", "several", "root"))
_EDGES = st.sampled_from(("whole", "segments", "chunks"))
_OUTPUTS: Mapping[Wire, SearchStrategy[Any]] = {
    "core": st.sampled_from((None, "text")),
    "omni": st.sampled_from((None, "audio", "image")),
}


@st.composite
def pipelines(draw: DrawFn, max_stages: int = MAX_STAGES) -> tuple[Stage, ...]:
    """One to five stages: a DAG with fan-out and fan-in, both wires, edges in segments where they are legal. Now and
    then one that answers, speaks and paints at once, or one whose LLMs hand chunks to each other.
    """
    shape = draw(_TEN) if max_stages >= MAX_STAGES else 0
    if shape == 9:
        return draw(_branching())
    if shape == 8:
        return draw(_chain())
    made: list[Stage] = []
    parts: set[str] = set()
    for name in _NAMES[:max_stages]:
        # One chance for each, right before it, and not a number of stages: so that each can shrink away by itself.
        if made and draw(_TEN) < 5:
            continue
        stage = draw(_stage(name, tuple(made), frozenset(parts)))
        if stage.segments or (len(stage.inputs) == 1 and stage.inputs[0] in parts):
            parts.add(stage.name)
        made.append(stage)
    read = {name for stage in made for name in stage.inputs}
    whole = {name for stage in made if not (stage.segments or stage.chunks) for name in stage.inputs}
    ended = (stage if stage.output or stage.name in read else with_output(stage) for stage in made)
    # Companions that nobody gets to see would be refused.
    return tuple(msgspec.structs.replace(stage, companions=stage.companions and stage.name in whole) for stage in ended)


@st.composite
def _branching(draw: DrawFn) -> tuple[Stage, ...]:
    """A thinker whose text goes to a speaker, sentence by sentence, and to a painter, which may see companions."""
    guided = draw(_TEN) >= 3
    thinks = {**draw(behaviours("core")), **(draw(_GUIDED) if guided else {})}
    core, omni, painter = behaviours("core"), behaviours("omni"), behaviours("omni", steps=True)
    return (
        Stage(name="a", output="text", companions=guided, replicas=draw(_REPLICAS), behaviour=thinks),
        Stage(name="b", inputs=("a",), segments=draw(_BOOLEANS), cheap=draw(_CHEAP), behaviour=draw(core)),
        Stage(name="c", wire="omni", inputs=("b",), output="audio", replicas=draw(_REPLICAS), behaviour=draw(omni)),
        Stage(
            name="d", wire="omni", inputs=("a",), segments=not guided and draw(_BOOLEANS), output="image",
            replicas=draw(_REPLICAS), behaviour=draw(painter), deadlines=draw(_CUT),
        ),
    )  # fmt: skip


@st.composite
def _chain(draw: DrawFn) -> tuple[Stage, ...]:
    """A thinker and a talker that work at the same time, and a vocoder that waits for the talker's end."""
    core, omni = behaviours("core"), behaviours("omni")
    return (
        Stage(name="a", output="text", replicas=draw(_REPLICAS), behaviour=draw(core)),
        Stage(name="b", inputs=("a",), chunks=True, cheap=draw(_CHEAP), replicas=draw(_REPLICAS), behaviour=draw(core)),
        Stage(name="c", wire="omni", inputs=("b",), output="audio", behaviour=draw(omni), deadlines=draw(_CUT)),
    )


def with_output(stage: Stage) -> Stage:
    """Whoever has no consumer has an output, or would never get work."""
    return msgspec.structs.replace(stage, output="text" if stage.wire == "core" else "audio")


@st.composite
def _stage(draw: DrawFn, name: str, before: tuple[Stage, ...], parts: frozenset[str]) -> Stage:
    wire: Wire = draw(_WIRES)
    inputs = draw(_inputs([stage.name for stage in before]))
    cores = {stage.name for stage in before if stage.wire == "core"}
    companions = draw(_TEN) >= 6
    steps = wire == "omni" and draw(_BOOLEANS)
    guided = draw(_GUIDED) if companions and wire == "core" else {}
    edge = draw(_EDGES) if len(inputs) == 1 and inputs[0] in cores - parts else "whole"
    chunks = edge == "chunks" and wire == "core"
    return Stage(
        name=name,
        wire=wire,
        inputs=inputs,
        segments=edge == "segments",
        chunks=chunks,
        plain=wire == "core" and len(inputs) == 1 and inputs[0] in cores and not chunks and draw(_BOOLEANS),
        output=draw(_OUTPUTS[wire]),
        replicas=draw(_REPLICAS),
        cheap=draw(_CHEAP),
        companions=companions,
        behaviour={**draw(behaviours(wire, steps=steps)), **guided},
        deadlines=draw(_CUT),
    )


@st.composite
def _inputs(draw: DrawFn, before: list[str]) -> tuple[str, ...]:
    """The stage before, mostly; or any one (fan-out), or several (fan-in), or none: another root."""
    how = draw(_HOW) if before else "root"
    if how == "root":
        return ()
    if how == "chain" or len(before) == 1:
        return (before[-1],)
    if how == "any":
        return (draw(st.sampled_from(before)),)
    chosen = draw(st.sets(st.sampled_from(before), min_size=2))
    return tuple(name for name in before if name in chosen)


# ---------------------------------------------------------------------- operations


def submits(where: Sequence[Place], prompts: SearchStrategy[Any] | None = None) -> SearchStrategy[Submit]:
    """One request, still without a name. Most readers read to the end; some are slow, leave, or want little time."""
    outputs = list(dict.fromkeys(place.output for place in where if place.output))
    more = some({**_READERS, "modalities": _modalities(outputs), "params": _params(where)})
    watched = seldom(_params([place for place in where if place.steps] or where), one_in=2)

    @st.composite
    def submit(draw: DrawFn) -> Submit:
        fields = draw(more)
        if "leave_after" in fields:
            fields["leave"] = draw(_LEAVES)
        if any(place.steps for place in where) and (params := draw(watched)) is not None:
            fields["params"] = params
            if draw(_BOOLEANS):  # whoever is slow has news that he has not read when the end comes
                fields.setdefault("pace_s", 0.1)
        if prompts is not None:
            fields["prompt"] = draw(prompts)
        return Submit(at=draw(moments()), request="", **fields)

    return submit()


_READERS: Mapping[str, SearchStrategy[Any]] = {
    "id": st.sampled_from(_SHARED_IDS),
    "timeout_s": st.sampled_from((0.01, 0.1, 1.0)),
    "pace_s": st.sampled_from((0.1, 1.0)),
    "leave_after": st.integers(0, 4),
    "inside": st.just(False),
}
_LEAVES = st.sampled_from(("break", "raise", "cancel"))


def _modalities(outputs: list[str]) -> SearchStrategy[tuple[str, ...]]:
    some = st.lists(st.sampled_from(outputs), min_size=1, unique=True).map(tuple)
    return st.one_of(some, some, some, st.just((_NOT_MADE,)))


def _params(where: Sequence[Place]) -> SearchStrategy[dict[str, Any]]:
    """Of one stage: two samples, few tokens, a stop string that some texts have; where it denoises to be told of each
    step, few steps, or none, which is refused.
    """
    two = st.just({"n": 2})
    few = st.one_of(two, st.just({"max_tokens": 2}), st.just({"stop": ["a", "e"]}))
    shown = st.sampled_from(_STEPS)

    def own(place: Place) -> SearchStrategy[dict[str, Any]]:
        params = shown if place.steps else few if place.wire == "core" else two
        return params.map(lambda params: {place.stage: params})

    return st.sampled_from(where).flatmap(own)


_STEPS: tuple[dict[str, Any], ...] = (
    {"progress": True},
    {"progress": True, "preview_every": 1},
    {"progress": True, "n": 2},
    {"progress": True, "preview_every": 2, "num_inference_steps": 3},
    {"num_inference_steps": 0},
)


def operations(where: Sequence[Place]) -> SearchStrategy[Op]:
    """Anything but a submit. Aborts and faults mostly; a shutdown or a cancellation seldom, since all ends then."""
    stages = st.sampled_from(where)

    @st.composite
    def operation(draw: DrawFn) -> Op:
        at, kind = draw(moments()), draw(_KINDS)
        match kind:
            case "abort":
                return Abort(at=at, id=draw(_ids()))
            case "leave":
                return Leave(at=at, request=draw(_requests()))
            case "shutdown":
                return Shutdown(at=at, **draw(_HURRIES))
            case "cancel":
                return Cancel(at=at)
            case "call":
                return Call(at=at, stage=draw(stages).stage, method=draw(_methods()), timeout_s=draw(_PATIENCE))
        return draw(_fault(kind, at, draw(stages)))

    return operation()


_HURRIES = some(dict.fromkeys(("drain_s", "abort_s", "stop_s"), st.sampled_from((0.0, 0.2, 1.0))))
_PATIENCE = st.sampled_from((5.0, 0.5, 0.5, 0.0))
_KINDS = st.sampled_from(
    ["abort"] * 3 + ["kill"] * 2 + ["leave"] * 2 + ["stall"] * 2 + ["resume"] * 2 + ["exit"] + ["inject"] * 3
    + ["call"] * 2 + ["shutdown", "cancel"]
)  # fmt: skip


@st.composite
def _fault(draw: DrawFn, kind: str, at: float, place: Place) -> Op:
    replica = draw(st.integers(0, place.replicas - 1)) if place.replicas > 1 else 0
    where: dict[str, Any] = {"at": at, "stage": place.stage, "replica": replica}
    match kind:
        case "kill":
            return Kill(signal=draw(_SIGNALS), **where)
        case "exit":
            return Exit(code=draw(_CODES), **where)
        case "inject":
            return Inject(what=draw(_WHAT), **where)
        case "stall":
            return Stall(**where)
    return Resume(**where)


_SIGNALS: SearchStrategy[Any] = st.sampled_from(("KILL", "TERM"))
_CODES = st.sampled_from((3, 0))
INJECTED: tuple[Any, ...] = ("garbage", "truncated", "empty", "late release", "stranger", "late output")
_WHAT = st.sampled_from(INJECTED)


@functools.cache
def _requests() -> SearchStrategy[str]:
    return st.integers(0, MAX_REQUESTS - 1).map(lambda number: f"r{number}")


@functools.cache
def _ids() -> SearchStrategy[str]:
    return st.one_of(_requests(), _requests(), st.sampled_from((*_SHARED_IDS, "nobody")))


@functools.cache
def _methods() -> SearchStrategy[str]:
    return st.sampled_from(("echo", "hang", "hang", "no such method"))


# ---------------------------------------------------------------------- scenarios


@st.composite
def scenarios(
    draw: DrawFn,
    stages: Sequence[Stage] | PipelineSpec | None = None,
    *,
    ops: SearchStrategy[Op] | None = None,
    prompts: SearchStrategy[Any] | None = None,
    fakes: SearchStrategy[dict[str, dict[str, Any]]] | None = None,
) -> Scenario:
    """Up to seven requests and seven other operations, to a generated pipeline or to ``stages``.

    A PipelineSpec as ``stages`` stays outside of the scenario, as its limits do; ``fakes`` draws what its stages' fakes
    do. ``ops`` draws the operations that are no submits, ``prompts`` what is asked (values that JSON can hold).
    """
    known = draw(pipelines()) if stages is None else stages
    where = places(known)
    asked = enumerate(draw(_slots(submits(where, prompts), MAX_REQUESTS, filled=6)))
    others = draw(_slots(operations(where) if ops is None else ops, MAX_EVENTS, filled=5))
    named = [msgspec.structs.replace(op, request=f"r{number}") for number, op in asked if op is not None]
    limits = {} if isinstance(known, PipelineSpec) else draw(_TIGHT)
    return Scenario(
        ops=(*named, *(aimed(draw, op, named, where) for op in others if op is not None)),
        stages=() if isinstance(known, PipelineSpec) else tuple(known),
        fakes={} if fakes is None else draw(fakes),
        seed=draw(_SEEDS),
        buggify=draw(_BOOLEANS),
        **draw(_PIPES),
        **limits,
    )


_LIMITS: dict[str, SearchStrategy[Any]] = {
    "max_requests": st.integers(1, 3),
    "stream_bytes": st.sampled_from((1, 40)),
    "drain_s": st.sampled_from((0.0, 0.3)),
    "abort_s": st.sampled_from((0.05, 0.5)),
}
_TIGHT = some(_LIMITS, one_in=3)
_SEEDS = st.integers(0, 2**32 - 1)
_PIPES = some(dict.fromkeys(("hwm", "queue_limit"), st.sampled_from((3, 1))))
