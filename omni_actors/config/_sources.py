"""From what the user names (pipeline, deploy file, model) and overrides to a spec, and where each value came from.

Precedence: a field's default < the pipeline < the deploy file < ``--model`` < ``--set``. A model's pipeline is made by
vLLM-Omni, of its own deploy file and options; ``--set`` comes after it.
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
from omni_actors.config._models import deploys_a_model, is_hub_id, is_model_folder, model_tree
from omni_actors.config._override import MODEL_SOURCE, apply_model, apply_override
from omni_actors.config._problems import Problems
from omni_actors.config._registry import PIPELINES, registered
from omni_actors.config._tree import Node, Path, find
from omni_actors.config.specs import PipelineSpec

__all__ = ["Resolved", "Row", "is_model", "resolve"]

_YAML = (".yaml", ".yml")


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
    options: Mapping[str, Any] | None = None,
    engines: Collection[str] | None = None,
) -> Resolved:
    """The valid spec behind ``target`` with ``overrides`` applied in order.

    ``target`` is a deploy file (it ends in ``.yaml`` or ``.yml``, has a ``/``, or exists), a registered pipeline's
    name, the dotted path of a pipeline, or a model that vLLM-Omni runs: a folder with a ``config.json`` or
    ``model_index.json``, a hub id (``org/name``), or a deploy file of vLLM-Omni. ``model`` is that of the one stage
    that has none, of the only stage, or of a deploy file of vLLM-Omni; the overrides come after it. ``options`` are
    vLLM-Omni's own, for models only. ``engines`` as in ``validate``. Starts no process; imports no engine but, for a
    model, vLLM-Omni: seconds.

    Raises ConfigError: the first problem of the file, the others as its notes.
    """
    problems = Problems()
    tree = _model_tree(target, model, options or {})
    changes: list[tuple[Callable[[Node, str], Node], str]] = []
    if tree is None:
        _refuse_options(target, options or {})
        tree = _target_tree(target, problems)
        changes += [] if model is None else [(apply_model, model)]
    changes += [(apply_override, text) for text in overrides]
    for apply, text in changes:
        try:
            tree = apply(tree, text)
        except ConfigError as error:
            problems.append(error)
    return Resolved(to_spec(tree, problems, engines), tree)


def is_model(target: str) -> bool:
    """Whether ``target`` names a model, by a folder or a hub id, and no file and no pipeline that is registered."""
    if target.endswith(_YAML) or target in registered(PIPELINES):
        return False
    return is_model_folder(target) or is_hub_id(target)


def _model_tree(target: str, model: str | None, options: Mapping[str, Any]) -> Node | None:
    """The tree of ``target`` if it is a model or a deploy file of vLLM-Omni, else None."""
    if target.endswith(_YAML):
        return _deployed(target, model, options) if deploys_a_model(target) else None
    if not is_model(target):
        return None
    if model is not None:
        raise ConfigError(f"{target[:80]!r} is the model already", file=MODEL_SOURCE, path=model[:80])
    return model_tree(target, options)


def _deployed(file: str, model: str | None, options: Mapping[str, Any]) -> Node:
    if "deploy_config" in options:
        raise ConfigError("a deploy file already", path=file, hint=f"TARGET --deploy-config {options['deploy_config']}")
    return model_tree(model or "", {**options, "deploy_config": file})


def _refuse_options(target: str, options: Mapping[str, Any]) -> None:
    if options:
        words = f"an option of vLLM-Omni, and {target[:80]!r} is not a model that vLLM-Omni runs"
        raise ConfigError(words, path=next(iter(options)), hint="for a pipeline of ours: --set STAGE.KEY=VALUE")


def _target_tree(target: str, problems: Problems) -> Node:
    if target.endswith(_YAML) or os.sep in target:
        return load_tree(target, problems)
    known = registered(PIPELINES)
    if target in known or is_dotted(target):
        return pipeline_tree(target)
    if os.path.isfile(target):
        return load_tree(target, problems)
    if os.path.isdir(target):
        read_file(target)
    hint = did_you_mean(target, known, known="installed") + "; a deploy file ends in .yaml, a hub id is org/name"
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
