"""What makes no sense in a PipelineSpec, wherever it came from: the rules of the graph, of names, numbers and paths.

The rules are generators of ``Problem`` values that know only the spec; who has the text (``_load``) adds the place.
Nothing is imported and no process is started: an engine's own rules are ``EngineKind.check``.
"""

from __future__ import annotations

import math
import os
import re
from typing import TYPE_CHECKING, Any, get_args

import attrs

from omni_actors.config._dotted import is_dotted
from omni_actors.config._environ import VISIBLE_DEVICES
from omni_actors.config._hints import did_you_mean
from omni_actors.config._problems import Problems
from omni_actors.config._registry import ENGINES, registered
from omni_actors.config._tree import Path, Place, child_path, short
from omni_actors.config.specs import EdgeMode, InputSpec, Modality, PipelineSpec, StageSpec

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

__all__ = ["Problem", "find_problems", "is_local", "validate"]

_STAGE_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,31}\Z")
_RANGES = {"nice": (0, 19)}
"""Of whole numbers; all others are 1 or more."""
_MAY_BE_ZERO = frozenset({"drain_s", "abort_s", "stop_s", "placement_s", "backoff_first_s", "backoff_max_s"})
"""Durations for which 0 means something: at once, no waiting. The others would make every start or call fail."""

_CHUNKING = frozenset({"vllm-omni", "fake-core"})
"""Engine kinds whose engines hand results to each other."""


@attrs.frozen
class Problem:
    """One thing that is wrong. ``path`` leads to it in the spec, stages by name.

    ``joint``: it is about several fields at once, so it says nothing where another of them could not be read.
    """

    path: Path
    problem: str
    hint: str | None = None
    stage: str | None = None
    joint: bool = False


def validate(spec: PipelineSpec, *, engines: Collection[str] | None = None) -> None:
    """Check a spec. Raises ConfigError: the first problem, the others as its notes; each with path and hint.

    ``engines`` are the engine kinds that exist; None means those installed (entry point group ``omni_actors.engines``).
    Looks at the file system for models and interpreters that are paths. Synchronous; milliseconds.
    """
    problems = Problems()
    for found in find_problems(spec, engines):
        path = "$"
        for step in found.path:
            path = child_path(path, step)
        problems.add(Place(path=path), found.problem, hint=found.hint, stage=found.stage)
    problems.raise_any()


def find_problems(spec: PipelineSpec, engines: Collection[str] | None = None) -> Iterator[Problem]:
    """Everything that is wrong with ``spec``, in its own order."""
    kinds = registered(ENGINES) if engines is None else engines
    yield from _numbers(spec, (), None)
    if not spec.name:
        yield Problem(("name",), "a pipeline needs a name")
    if not spec.stages:
        yield Problem(("stages",), "a pipeline needs at least one stage")
        return
    for stage in spec.stages:
        for problem in _stage(stage, spec, kinds):
            yield attrs.evolve(problem, path=("stages", stage.name, *problem.path), stage=stage.name)
    yield from _graph(spec)


def _numbers(record: Any, path: Path, stage: str | None) -> Iterator[Problem]:
    """Every number of ``record`` (and of the records in it, stages aside) that is out of its range."""
    for field in attrs.fields(type(record)):
        value, here = getattr(record, field.name), (*path, field.name)
        if attrs.has(type(value)):
            yield from _numbers(value, here, stage)
        elif isinstance(value, bool):
            continue
        elif isinstance(value, int) and not field.name.endswith("_s"):
            least, most = _RANGES.get(field.name, (1, math.inf))
            if value < least:
                yield Problem(here, f"{field.name} must be at least {least}, not {value}", stage=stage)
            elif value > most:
                yield Problem(here, f"{field.name} must be at most {most}, not {value}", stage=stage)
        elif isinstance(value, int | float):
            if not math.isfinite(value) or value < 0:
                yield Problem(here, f"{field.name} must be a number of seconds, 0 or more, not {value}", stage=stage)
            elif value == 0 and field.name not in _MAY_BE_ZERO:
                yield Problem(here, f"{field.name} must be more than 0 seconds", stage=stage)


def _stage(stage: StageSpec, spec: PipelineSpec, kinds: Collection[str]) -> Iterator[Problem]:
    """Everything about one stage; paths begin below it."""
    yield from _numbers(stage, (), None)
    yield from _words(stage, kinds)
    producers = len({edge.stage for edge in stage.inputs})
    if stage.companions is not None and not _read_whole(stage.name, spec):
        hint = "give another stage this one as an input, in mode whole"
        yield Problem(("companions",), "companions that no stage gets to see", hint, joint=True)
    if stage.transform is None and producers > 1:
        hint = "a stage with several inputs needs one"
        yield Problem((), f"{producers} inputs and no transform", hint, joint=True)
    for index, edge in enumerate(stage.inputs):
        for problem in _edge(stage, index, spec):
            yield attrs.evolve(problem, path=("inputs", index, *problem.path))
        yield from _numbers(edge, ("inputs", index), None)
    yield from _files(stage)
    yield from _environment(stage)


def _words(stage: StageSpec, kinds: Collection[str]) -> Iterator[Problem]:
    """The stage's name, engine kind, modality and functions, each on its own."""
    if not _STAGE_NAME.match(stage.name):
        hint = "a letter, then up to 31 letters, digits, - or _"
        yield Problem((), f"{short(stage.name)} is no name for a stage", hint)
    if stage.engine not in kinds:
        hint = did_you_mean(stage.engine, kinds, known="installed")
        yield Problem(("engine",), f"unknown engine kind {short(stage.engine)}", hint)
    if stage.output is not None and stage.output not in get_args(Modality):
        hint = did_you_mean(stage.output, get_args(Modality))
        yield Problem(("output",), f"unknown modality {short(stage.output)}", hint)
    for field in ("transform", "companions"):
        path = getattr(stage, field)
        if path is not None and not is_dotted(path):
            yield Problem((field,), f"{short(path)} is not a dotted path", "write package.module:name")


def _read_whole(name: str, spec: PipelineSpec) -> bool:
    return any(edge.stage == name and edge.mode == "whole" for stage in spec.stages for edge in stage.inputs)


def _edge(stage: StageSpec, index: int, spec: PipelineSpec) -> Iterator[Problem]:
    edge: InputSpec = stage.inputs[index]
    names = [each.name for each in spec.stages]
    if edge.stage == stage.name:
        yield Problem(("stage",), f"stage '{stage.name}' is its own input")
    elif edge.stage not in names:
        others = [name for name in names if name != stage.name]
        yield Problem(
            ("stage",), f"unknown stage {short(edge.stage)}", did_you_mean(edge.stage, others, known="stages")
        )
    if any(edge.stage == earlier.stage for earlier in stage.inputs[:index]):
        yield Problem(("stage",), f"'{edge.stage}' is an input twice")
    if edge.mode not in get_args(EdgeMode):
        yield Problem(("mode",), f"unknown mode {short(edge.mode)}", did_you_mean(edge.mode, get_args(EdgeMode)))
    if edge.mode == "segments" and edge.split is None:
        yield Problem((), "mode 'segments' needs a split", "write split: package.module:name", joint=True)
    if edge.mode in ("segments", "chunks") and len(stage.inputs) > 1:
        hint = "cut in the producer's other consumer, or use mode: whole"
        yield Problem(("mode",), f"mode '{edge.mode}' into a stage with several inputs", hint, joint=True)
    if edge.mode == "chunks":
        yield from _chunks(stage, edge, spec)
    if edge.mode != "segments" and edge.split is not None:
        yield Problem(("split",), f"mode '{edge.mode}' has no split", "write mode: segments", joint=True)
    if edge.split is not None and not is_dotted(edge.split):
        yield Problem(("split",), f"{short(edge.split)} is not a dotted path", "write package.module:name")


def _chunks(stage: StageSpec, edge: InputSpec, spec: PipelineSpec) -> Iterator[Problem]:
    """The engines themselves hand the chunks over, so both must be of a kind that does."""
    engines = {each.engine for each in spec.stages if each.name in (stage.name, edge.stage)}
    if len(engines) > 1 or not engines <= _CHUNKING:
        problem = "mode 'chunks' between engines that hand nothing to each other"
        yield Problem(("mode",), problem, "use mode: whole or mode: segments", joint=True)
    if stage.transform is None:
        hint = "name the function that makes this stage's prompt of what its producer has said first"
        yield Problem(("mode",), "mode 'chunks' needs a transform", hint, joint=True)


def is_local(model: str) -> bool:
    """Whether ``model`` is written as a path (``/…``, ``./…``, ``../…``, ``~/…``) and not as a hub id."""
    return model.startswith(("/", "./", "../", "~")) or model in (".", "..")


def _files(stage: StageSpec) -> Iterator[Problem]:
    if is_local(stage.model) and not os.path.exists(os.path.expanduser(stage.model)):
        yield Problem(("model",), f"there is no model at {short(stage.model, 200)}", _neighbour(stage.model))
    python = stage.python
    if python is not None and os.sep in python and not os.path.isfile(os.path.expanduser(python)):
        yield Problem(("python",), f"there is no interpreter at {short(python, 200)}")


def _neighbour(missing: str) -> str | None:
    """The nearest name beside a missing file or folder, or the part of its path that is missing already."""
    folder, leaf = os.path.split(os.path.expanduser(missing.rstrip("/")))
    try:
        with os.scandir(folder or ".") as entries:
            names = [entry.name for _, entry in zip(range(1000), entries, strict=False)]
    except (OSError, ValueError):
        return f"the folder {short(folder, 200)} cannot be read"
    hint = did_you_mean(leaf, names)
    return hint if hint.startswith("did") else None


def _environment(stage: StageSpec) -> Iterator[Problem]:
    for name, value in stage.env.items():
        if not name or "=" in name or "\0" in name:
            yield Problem(("env",), f"{short(name)} is no name for an environment variable")
        elif not isinstance(value, str) or "\0" in value:
            yield Problem(("env", name), "the value of an environment variable is text without NUL")
    count = 1 if stage.devices is None else stage.devices.count(",") + 1
    if count > 1 and stage.replicas > 1 and count % stage.replicas:
        words = f"{count} devices cannot be shared out among {stage.replicas} replicas"
        yield Problem(("devices",), words, "name as many for each, or one for all", joint=True)
    if stage.devices is not None and VISIBLE_DEVICES in stage.env:
        yield Problem(
            ("env", VISIBLE_DEVICES), f"{VISIBLE_DEVICES} is set by devices already", "give one of the two", joint=True
        )


def _graph(spec: PipelineSpec) -> Iterator[Problem]:
    """Rules over all stages: unique names, no cycle, something to ask for."""
    names = [stage.name for stage in spec.stages]
    for index, name in enumerate(names):
        if name in names[:index]:
            yield Problem(("stages", index, "name"), f"two stages are called {short(name)}", stage=name)
    if cycle := _cycle(spec):
        yield Problem(("stages", cycle[0], "inputs"), f"the stages form a cycle: {' → '.join(cycle)}", stage=cycle[0])
    if all(stage.output is None for stage in spec.stages):
        yield Problem(
            ("stages",),
            "no stage has an output, so nothing can be asked for",
            "set output on the last stage",
            joint=True,
        )


def _cycle(spec: PipelineSpec) -> list[str]:
    """One cycle, in the order of the data's flow, its first stage repeated at the end. Self-inputs are told apart."""
    from graphlib import CycleError, TopologicalSorter

    graph = {stage.name: [edge.stage for edge in stage.inputs if edge.stage != stage.name] for stage in spec.stages}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []
