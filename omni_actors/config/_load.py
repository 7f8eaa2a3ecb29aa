"""A deploy file becomes a tree on top of its pipeline's, and the tree becomes a spec.

The forms that people may write (stages as a list, an input as a bare name, sampling params beside the stages, paths
relative to the file) are rewritten into one form here; everything after sees only that.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import attrs

from omni_actors._errors import ConfigError
from omni_actors.config._convert import MISSING, convert
from omni_actors.config._hints import did_you_mean, nearest
from omni_actors.config._problems import Problems, error_at
from omni_actors.config._registry import load_pipeline
from omni_actors.config._tree import Node, Place, child_path, find, merge, short, wrap
from omni_actors.config._validate import find_problems, is_local
from omni_actors.config._yaml import MAX_BYTES, parse_yaml
from omni_actors.config.specs import PipelineSpec

if TYPE_CHECKING:
    from collections.abc import Collection

__all__ = ["load_tree", "pipeline_tree", "read_file", "spec_tree", "to_spec"]

_PATHS = ("model", "python")
"""A stage's keys that may be paths relative to the deploy file."""


def read_file(file: str) -> bytes:
    """The bytes of a regular file, at most one more than allowed. Raises ConfigError with the nearest name."""
    if not os.path.isfile(file):
        what = "this is a folder, not a file" if os.path.isdir(file) else "there is no such file"
        raise ConfigError(what, file=file[:200], hint=_nearest_file(file))
    try:
        with open(file, "rb") as stream:
            return stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"the file cannot be read: {error.strerror}", file=file) from error


def _nearest_file(file: str) -> str | None:
    folder, leaf = os.path.split(file)
    try:
        names = os.listdir(folder or ".")
    except (OSError, ValueError):
        return f"there is no folder {short(folder, 200)}"
    close = nearest(leaf, [name for name in names if name.endswith((".yaml", ".yml"))])
    return f"did you mean '{os.path.join(folder, close)}'?" if close else None


def pipeline_tree(name: str) -> Node:
    """The tree of a pipeline's spec: what it sets, at the place ``pipeline NAME``. Raises ConfigError."""
    return spec_tree(load_pipeline(name), Place(f"pipeline {name}"))


def spec_tree(spec: PipelineSpec, place: Place) -> Node:
    """The tree of a spec, all of it at ``place``. Raises ConfigError for two stages of one name."""
    names = [stage.name for stage in spec.stages]
    for index, stage in enumerate(names):
        if stage in names[:index]:
            raise error_at(place, f"two stages are called {short(stage)}", stage=stage)
    return _spec_node(spec, place)


def _spec_node(record: Any, place: Place) -> Node:
    """An attrs object as a mapping of the fields that differ from their defaults, stages by name."""
    items: dict[str, Node] = {}
    for field in attrs.fields(type(record)):
        value = getattr(record, field.name)
        here = attrs.evolve(place, path=child_path(place.path, field.name))
        if not _is_default(field, value):
            items[field.name] = _value_node(value, here)
    return Node(items, place)


def _is_default(field: Any, value: Any) -> bool:
    default = field.default
    if default is attrs.NOTHING:
        return False
    made = default.factory() if isinstance(default, attrs.Factory) else default  # type: ignore[arg-type]
    return bool(value == made)


def _value_node(value: Any, place: Place) -> Node:
    if attrs.has(type(value)):
        return _spec_node(value, place)
    if isinstance(value, tuple) and value and all(attrs.has(type(item)) for item in value):
        if all(hasattr(item, "name") for item in value):
            named = {str(item.name): item for item in value}
            return Node({key: _spec_node(item, _below(place, key)) for key, item in named.items()}, place)
        return Node(tuple(_spec_node(item, _below(place, i)) for i, item in enumerate(value)), place)
    return wrap(value, place)


def _below(place: Place, key: str | int) -> Place:
    return attrs.evolve(place, path=child_path(place.path, key))


def load_tree(file: str, problems: Problems) -> Node:
    """The tree of a deploy file on top of the pipeline that it names. Raises ConfigError where nothing can be read."""
    root = parse_yaml(read_file(file), file, problems)
    problems.settle()
    if not root.is_mapping:
        what = "the file is empty" if root.value is None else "expected a mapping at the top level"
        raise error_at(root.place, what, hint="begin with stages: or pipeline:")
    keys = dict(root.value)
    base = _base(keys.pop("pipeline", None), problems)
    if "stages" in keys:
        keys["stages"] = _stages(keys["stages"], os.path.dirname(file) or ".", problems)
    params = keys.pop("params", None)
    if base is None:
        keys.setdefault("name", Node(os.path.splitext(os.path.basename(file))[0], Place(os.path.basename(file))))
    else:
        _refuse_strangers(base, keys.get("stages"), problems)
    tree = merge(base, attrs.evolve(root, value=keys))
    return tree if params is None else _with_params(tree, params, problems)


def _base(node: Node | None, problems: Problems) -> Node | None:
    """The tree of the pipeline that the file names, if it names one that exists."""
    if node is None:
        return None
    if not isinstance(node.value, str):
        problems.add(node.place, "expected the name of a pipeline")
        problems.raise_any()
        return None
    try:
        return pipeline_tree(node.value)
    except ConfigError as error:
        raise error_at(node.place, error.problem, hint=error.hint) from error


def _refuse_strangers(base: Node, stages: Node | None, problems: Problems) -> None:
    """A stage that the pipeline lacks and that names no engine is a misspelt one, not a new one."""
    known = find(base, ("stages",))[0].value
    for name, stage in stages.value.items() if stages is not None and stages.is_mapping else ():
        if name not in known and stage.is_mapping and "engine" not in stage.value:
            hint = did_you_mean(name, known, known="stages")
            problems.add(stage.key or stage.place, f"unknown stage {short(name)}", hint=hint, stage=name)


def _stages(node: Node, folder: str, problems: Problems) -> Node:
    """Stages as a mapping by name, each in its one form. What has no such form is left for the converter to refuse."""
    if node.is_list:
        node = _by_name(node, problems)
    if not node.is_mapping:
        return node
    return attrs.evolve(node, value={name: _stage(stage, folder) for name, stage in node.value.items()})


def _by_name(node: Node, problems: Problems) -> Node:
    named: dict[str, Node] = {}
    for stage in node.value:
        name = stage.value.get("name") if stage.is_mapping else None
        if name is None or not isinstance(name.value, str):
            problems.add(stage.place, "expected a mapping with a name", hint="write - name: thinker")
        elif name.value in named:
            first = named[name.value].place.line
            problems.add(
                name.place,
                f"duplicate stage {short(name.value)}",
                hint=f"first given on line {first}",
                stage=name.value,
            )
        else:
            named[name.value] = attrs.evolve(stage, key=name.key)
    return attrs.evolve(node, value=named)


def _stage(stage: Node, folder: str) -> Node:
    if not stage.is_mapping:
        return stage
    keys = dict(stage.value)
    inputs = keys.get("inputs")
    if inputs is not None and inputs.is_list:
        keys["inputs"] = attrs.evolve(inputs, value=tuple(_input(item) for item in inputs.value))
    for key in _PATHS:
        if key in keys and isinstance(keys[key].value, str):
            keys[key] = attrs.evolve(keys[key], value=_beside(folder, keys[key].value))
    return attrs.evolve(stage, value=keys)


def _input(item: Node) -> Node:
    """The short form of an edge, a stage's name, in its long form."""
    return Node({"stage": item}, item.place, key=item.key) if isinstance(item.value, str) else item


def _beside(folder: str, path: str) -> str:
    """``path`` as seen from the deploy file: what is written as a path, or exists there. Hub ids stay as they are."""
    if path.startswith(("/", "~")) or not path:
        return path
    beside = os.path.abspath(os.path.join(folder, path))
    return beside if is_local(path) or os.path.exists(beside) else path


def _with_params(tree: Node, params: Node, problems: Problems) -> Node:
    """The file's ``params`` (sampling defaults by stage), put into the stages."""
    stages = tree.value.get("stages")
    if stages is None or not stages.is_mapping:
        return tree
    if not params.is_mapping:
        count = f"; got {len(params.value)} entries for {len(stages.value)} stages" if params.is_list else ""
        hint = "write thinker: {temperature: 0}"
        problems.add(params.place, f"expected sampling params by stage name{count}", hint=hint)
        return tree
    made = dict(stages.value)
    for name, values in params.value.items():
        if name not in made:
            hint = did_you_mean(name, stages.value, known="stages")
            problems.add(values.key or values.place, f"sampling params for an unknown stage {short(name)}", hint=hint)
        elif made[name].is_mapping:
            merged = merge(made[name].value.get("params"), values)
            made[name] = attrs.evolve(made[name], value={**made[name].value, "params": merged})
    return attrs.evolve(tree, value={**tree.value, "stages": attrs.evolve(stages, value=made)})


def to_spec(tree: Node, problems: Problems, engines: Collection[str] | None = None) -> PipelineSpec:
    """The spec that ``tree`` says, valid. Raises ConfigError with every problem, each at its place."""
    spec = convert(tree, PipelineSpec, problems)
    if spec is not MISSING:
        broken = problems.stages
        for found in find_problems(spec, engines):
            if not (found.joint and broken and (found.stage is None or found.stage in broken)):
                node, taken = find(tree, found.path)
                whole = taken < len(found.path) or node.is_mapping or node.is_list
                place = node.key if whole and node.key else node.place
                problems.add(place, found.problem, hint=found.hint, stage=found.stage)
    problems.raise_any()
    assert isinstance(spec, PipelineSpec)
    return spec
