"""From what the user names (a pipeline or a deploy file) and overrides to a spec, and where each value came from.

Precedence: a field's default < the pipeline < the deploy file < ``--model`` < ``--set``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import attrs

from omni_actors._errors import ConfigError
from omni_actors.config._dotted import is_dotted
from omni_actors.config._environ import EnvChange, environment_changes, masked
from omni_actors.config._hints import did_you_mean
from omni_actors.config._load import load_tree, pipeline_tree, read_file, to_spec
from omni_actors.config._override import apply_model, apply_override
from omni_actors.config._problems import Problems
from omni_actors.config._registry import PIPELINES, registered
from omni_actors.config._tree import Node, Path, find
from omni_actors.config.specs import PipelineSpec

__all__ = ["Resolved", "Row", "resolve"]


@attrs.frozen
class Row:
    """One effective value: its path as ``--set`` takes it, the value (secrets hidden), and who said so."""

    path: str
    value: Any
    source: str


@attrs.frozen
class Resolved:
    """A valid spec, and the tree that it was made from."""

    spec: PipelineSpec
    _tree: Node = attrs.field(repr=False)

    def rows(self) -> list[Row]:
        """Every effective value with its source: ``default``, ``pipeline tiny-omni``, ``deploy.yaml:12``, ``--set``."""
        return [self._row(path, value) for path, value in _leaves(self.spec, ())]

    def environment(self, inherited: Mapping[str, str] | None = None) -> list[EnvChange]:
        """What each stage's processes see differently from ``inherited`` (ours by default); secrets hidden."""
        return environment_changes(self.spec, os.environ if inherited is None else inherited)

    def _row(self, path: Path, value: Any) -> Row:
        node, taken = find(self._tree, path)
        source = node.place.source if taken == len(path) else "default"
        return Row(_written(path), masked(str(path[-1]), value), source)


def resolve(
    target: str,
    overrides: Sequence[str] = (),
    *,
    model: str | None = None,
    engines: Collection[str] | None = None,
) -> Resolved:
    """The valid spec behind ``target`` with ``overrides`` applied in order.

    ``target`` is a deploy file (it ends in ``.yaml`` or ``.yml``, has a ``/``, or exists), a registered pipeline's
    name, or the dotted path of a pipeline. ``model`` is that of the one stage that has none, or of the only stage; the
    overrides come after it. ``engines`` as in ``validate``. Starts no process and imports no engine.

    Raises ConfigError: the first problem of the file, the others as its notes.
    """
    problems = Problems()
    tree = _target_tree(target, problems)
    changes: list[tuple[Callable[[Node, str], Node], str]] = [] if model is None else [(apply_model, model)]
    changes += [(apply_override, text) for text in overrides]
    for apply, text in changes:
        try:
            tree = apply(tree, text)
        except ConfigError as error:
            problems.append(error)
    return Resolved(to_spec(tree, problems, engines), tree)


def _target_tree(target: str, problems: Problems) -> Node:
    if target.endswith((".yaml", ".yml")) or os.sep in target:
        return load_tree(target, problems)
    known = registered(PIPELINES)
    if target in known or is_dotted(target):
        return pipeline_tree(target)
    if os.path.isfile(target):
        return load_tree(target, problems)
    if os.path.isdir(target):
        read_file(target)
    hint = did_you_mean(target, known, known="installed") + "; a deploy file ends in .yaml"
    raise ConfigError(f"unknown pipeline {target[:80]!r}", hint=hint)


def _leaves(value: Any, path: Path) -> Iterator[tuple[Path, Any]]:
    """Every value of a spec that has no parts of its own, and the way to it; stages by name."""
    if attrs.has(type(value)):
        for field in attrs.fields(type(value)):
            if not (field.name == "name" and path):
                yield from _leaves(getattr(value, field.name), (*path, field.name))
    elif isinstance(value, Mapping) and value:
        for key, item in value.items():
            yield from _leaves(item, (*path, key))
    elif isinstance(value, tuple) and value and all(attrs.has(type(item)) for item in value):
        for index, item in enumerate(value):
            yield from _leaves(item, (*path, getattr(item, "name", index)))
    else:
        yield path, dict(value) if isinstance(value, Mapping) else value


def _written(path: Path) -> str:
    """``thinker.inputs[0].stage``: the stage's name comes first, as in ``--set``."""
    steps = path[1:] if path[0] == "stages" and len(path) > 1 else path
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps).removeprefix(".")
