"""``--set thinker.engine_args.max_model_len=256``: one value, put on top of a tree.

The path begins with a stage's name or with a key of the top level; ``[0]`` is an item of a list; the value is YAML.
Errors name ``--set`` and the override's own text.
``--model PATH`` is an override too, of the one stage that it can be meant for.
"""

from __future__ import annotations

import re

from omni_actors._errors import ConfigError
from omni_actors.config._environ import HIDDEN, looks_secret
from omni_actors.config._hints import did_you_mean, field_types
from omni_actors.config._tree import Node, Path, Place, assign, find, short
from omni_actors.config._yaml import MAX_DEPTH, parse_value
from omni_actors.config.specs import PipelineSpec

__all__ = ["MODEL_SOURCE", "SOURCE", "apply_model", "apply_override"]

SOURCE = "--set"
MODEL_SOURCE = "--model"

_STEP = re.compile(r"(?:^|\.)([^.\[\]=\s]+)|\[(\d{1,6})\]")


def apply_override(tree: Node, text: str) -> Node:
    """``tree`` with one override applied. Raises ConfigError: no ``=``, a bad path or value, an unknown stage."""
    name, equals, value = text.partition("=")
    place = Place(SOURCE, path=_shown(name, value) if equals else short(text))
    if not equals or not name.strip():
        raise ConfigError("expected path=value", file=SOURCE, path=place.path, hint="write thinker.replicas=2")
    path = _resolve(tree, _steps(name.strip(), place), place)
    leaf = parse_value(value, place)
    return assign(tree, path, Node(leaf.value, place, key=place, text=leaf.text))


def apply_model(tree: Node, model: str) -> Node:
    """``tree`` with the model of the one stage that has none, or of its only stage. Raises ConfigError otherwise."""
    place = Place(MODEL_SOURCE, path=short(model))
    node, taken = find(tree, ("stages",))
    stages = node.value if taken and node.is_mapping else {}
    bare = [name for name, stage in stages.items() if stage.is_mapping and not _has_model(stage)]
    meant = list(stages) if len(stages) == 1 else bare
    if len(meant) != 1:
        what = f"{', '.join(bare)} have no model" if bare else f"the stages have theirs: {', '.join(stages)}"
        hint = f"write --set {next(iter(bare or stages), 'STAGE')}.model=PATH"
        words = f"it is for one stage without a model, and {what}"
        raise ConfigError(words, file=MODEL_SOURCE, path=place.path, hint=hint)
    return assign(tree, ("stages", meant[0], "model"), Node(model, place, key=place, text=model))


def _has_model(stage: Node) -> bool:
    given = stage.value.get("model")
    return given is not None and bool(given.value)


def _shown(name: str, value: str) -> str:
    """The override as messages may show it: cut, and without what looks secret."""
    return f"{name[:80]}={HIDDEN if looks_secret(name.strip()) else value[:80]}"


def _steps(name: str, place: Place) -> list[str | int]:
    steps: list[str | int] = []
    end = 0
    while match := _STEP.match(name, end):
        steps.append(int(match[2]) if match[2] else match[1])
        end = match.end()
    if end < len(name) or not steps or not isinstance(steps[0], str):
        raise ConfigError(
            "not a path", file=SOURCE, path=place.path, hint="write stage.key=value or stage.inputs[0].key=value"
        )
    if len(steps) > MAX_DEPTH:
        raise ConfigError(f"the path has more than {MAX_DEPTH} steps", file=SOURCE, path=place.path)
    return steps


def _resolve(tree: Node, steps: list[str | int], place: Place) -> Path:
    """The way from the tree's root: a stage's name stands for ``stages.NAME``."""
    node, taken = find(tree, ("stages",))
    stages = node.value if taken and node.is_mapping else {}
    top = field_types(PipelineSpec)
    first = steps[0]
    if first in stages:
        return ("stages", *steps)
    if first == "stages" and len(steps) > 1:
        return _known_stage(steps, steps[1], stages, place)
    if first not in top or first == "stages":
        known = [*stages, *(name for name in top if name != "stages")] if len(steps) == 1 else [*stages, "limits"]
        hint = did_you_mean(str(first), known)
        what = "unknown stage" if len(steps) > 1 else "unknown stage or key"
        raise ConfigError(f"{what} {short(first)}", file=SOURCE, path=place.path, hint=hint)
    return tuple(steps)


def _known_stage(steps: list[str | int], name: str | int, stages: object, place: Place) -> Path:
    assert isinstance(stages, dict)
    if name not in stages:
        hint = did_you_mean(str(name), stages, known="stages")
        raise ConfigError(f"unknown stage {short(name)}", file=SOURCE, path=place.path, hint=hint)
    return tuple(steps)
