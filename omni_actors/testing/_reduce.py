"""A scenario that fails, made small: what can go, goes, as long as it still fails in the same way.

Hypothesis shrinks what it has drawn, choice by choice; this takes away what a person would: an operation, a stage and
the edges through it, a replica, a field. Deterministic: bounded by a number of runs, not by time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from omni_actors._errors import ConfigError
from omni_actors.runtime._open import _graph

from .sim._scenario import Abort, Leave, Scenario, Stage, Submit
from .strategies import with_output

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .sim._scenario import Op

__all__ = ["RUNS", "smallest"]

S = TypeVar("S", bound=msgspec.Struct)

RUNS = 600
"""Runs that the search may take: seconds, at 10 to 20 ms each."""

_NEEDED = frozenset(
    {"name", "wire", "at", "request", "stage", "id", "output", "stages", "ops", "inputs", "fakes", "buggify"}
)
"""Fields that have no plainer value, or are dealt with one by one."""


def smallest(scenario: Scenario, fails: Callable[[Scenario], bool], *, runs: int = RUNS) -> Scenario:
    """The scenario without all that it does not need to fail. ``fails`` is called at most ``runs`` times."""
    tried = {scenario.to_json()}
    position = 0
    while True:
        candidates = list(_smaller(scenario))
        # Goes on behind what has just gone: what stood before it was tried, and seldom depends on it.
        for number in [*range(position, len(candidates)), *range(min(position, len(candidates)))]:
            smaller = candidates[number]
            if (text := smaller.to_json()) in tried or not _works(smaller):
                continue
            if not runs:
                return scenario
            runs -= 1
            tried.add(text)
            if fails(smaller):
                scenario, position = smaller, number
                break
        else:
            return scenario


def _works(scenario: Scenario) -> bool:
    """Whether its pipeline is one."""
    try:
        if scenario.stages:
            _graph(scenario.pipeline())
    except ConfigError:
        return False
    return True


def _smaller(scenario: Scenario) -> Iterator[Scenario]:
    """Everything that is one step smaller, large steps first."""
    yield from _fewer_ops(scenario)
    for stage in reversed(scenario.stages):
        if len(scenario.stages) > 1:
            yield _without_stage(scenario, stage)
    yield from _plainer(scenario)
    for number, stage in enumerate(scenario.stages):
        for plainer in _plainer_stage(stage):
            yield msgspec.structs.replace(scenario, stages=_with(scenario.stages, number, plainer))
    for number, op in enumerate(scenario.ops):
        for quieter in (*_plainer(op), *_sooner(op)):
            yield msgspec.structs.replace(scenario, ops=_with(scenario.ops, number, quieter))
    yield from _plainer_fakes(scenario)
    yield _renamed(scenario)


def _with(items: tuple[Any, ...], number: int, item: Any) -> tuple[Any, ...]:
    return (*items[:number], item, *items[number + 1 :])


def _fewer_ops(scenario: Scenario) -> Iterator[Scenario]:
    """Without half of them, a quarter, …, each one."""
    size = len(scenario.ops)
    while size:
        for start in range(0, len(scenario.ops), size):
            kept = scenario.ops[:start] + scenario.ops[start + size :]
            yield msgspec.structs.replace(scenario, ops=kept)
        size //= 2


def _without_stage(scenario: Scenario, gone: Stage) -> Scenario:
    """Its consumers get what it got; where nobody takes up what a stage makes any more, the user does."""
    kept = [_bridged(stage, gone) for stage in scenario.stages if stage is not gone]
    read = {name for stage in kept for name in stage.inputs}
    stages = tuple(stage if stage.output or stage.name in read else with_output(stage) for stage in kept)
    made = {stage.output for stage in stages}
    ops = [_elsewhere(op, gone.name, made) for op in scenario.ops if getattr(op, "stage", None) != gone.name]
    return msgspec.structs.replace(scenario, stages=stages, ops=tuple(ops))


def _bridged(stage: Stage, gone: Stage) -> Stage:
    if gone.name not in stage.inputs:
        return stage
    inputs = tuple(dict.fromkeys(n for name in stage.inputs for n in (gone.inputs if name == gone.name else (name,))))
    return msgspec.structs.replace(stage, inputs=inputs, segments=False, chunks=False)


def _elsewhere(op: Op, gone: str, made: set[Any]) -> Op:
    if not isinstance(op, Submit):
        return op
    params = {name: value for name, value in (op.params or {}).items() if name != gone}
    wanted = op.modalities if set(op.modalities or ()) <= made else None
    return msgspec.structs.replace(op, params=params or None, modalities=wanted)


def _plainer(item: S) -> Iterator[S]:
    """With one field as it is by default."""
    for field in msgspec.structs.fields(item):
        default = field.default
        if default is msgspec.NODEFAULT and field.default_factory is not msgspec.NODEFAULT:
            default = field.default_factory()
        if field.name not in _NEEDED and getattr(item, field.name) != default:
            yield msgspec.structs.replace(item, **{field.name: default})
    if isinstance(item, Scenario) and item.buggify:
        yield msgspec.structs.replace(item, buggify=False)


def _sooner(op: Op) -> Iterator[Op]:
    """At the time at which most pipelines are open, or at a rounder one."""
    for at in (0.1, float(round(op.at)), round(op.at, 1)):
        if 0.1 <= at < op.at:
            yield msgspec.structs.replace(op, at=at)


def _plainer_stage(stage: Stage) -> Iterator[Stage]:
    yield from _plainer(stage)
    if len(stage.inputs) > 1:
        for name in stage.inputs:
            yield msgspec.structs.replace(stage, inputs=tuple(other for other in stage.inputs if other != name))
    for field in ("behaviour", "deadlines"):
        told: dict[str, Any] = getattr(stage, field)
        for name, value in told.items():
            yield msgspec.structs.replace(stage, **{field: {key: told[key] for key in told if key != name}})
            if type(value) is int and value > 1:
                yield msgspec.structs.replace(stage, **{field: {**told, name: 1}})
                yield msgspec.structs.replace(stage, **{field: {**told, name: value - 1}})


def _plainer_fakes(scenario: Scenario) -> Iterator[Scenario]:
    """Of a user's pipeline: no misbehaviour, and fewer outputs to choose from, each as it was drawn."""
    for stage, told in scenario.fakes.items():
        script = told.get("script", ())
        fewer = [{**told, "script": [*script[:n], *script[n + 1 :]]} for n in range(len(script)) if len(script) > 1]
        quiet = [{key: told[key] for key in told if key != name} for name in told if name != "script"]
        for behaviour in (*quiet, *fewer):
            yield msgspec.structs.replace(scenario, fakes={**scenario.fakes, stage: behaviour})


def _renamed(scenario: Scenario) -> Scenario:
    """Requests called r0, r1, … in order."""
    asked = [op.request for op in scenario.ops if isinstance(op, Submit)]
    names = {name: f"r{number}" for number, name in enumerate(asked)}
    ops: list[Op] = []
    for op in scenario.ops:
        match op:
            case Submit(request=name) | Leave(request=name):
                ops.append(msgspec.structs.replace(op, request=names.get(name, name)))
            case Abort(id=name):
                ops.append(msgspec.structs.replace(op, id=names.get(name, name)))
            case _:
                ops.append(op)
    return msgspec.structs.replace(scenario, ops=tuple(ops))
