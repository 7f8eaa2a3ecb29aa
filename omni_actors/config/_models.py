"""Targets that are models, and deploy files of the system that knows them: vLLM-Omni says what their stages are.

It is asked by dotted path, so nothing here imports it. What it answers is a spec and, for its values, who said so.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

import attrs

from omni_actors._errors import ConfigError
from omni_actors.config._dotted import load_object
from omni_actors.config._load import read_file, spec_tree
from omni_actors.config._problems import Problems
from omni_actors.config._tree import Node, Path, Place
from omni_actors.config._yaml import parse_yaml
from omni_actors.config.specs import PipelineSpec

__all__ = ["CONFIGS", "ModelSpec", "deploys_a_model", "is_hub_id", "is_model_folder", "model_tree"]

SOURCE = "omni_actors.vllm_omni:model_spec"
"""``f(model, options) -> ModelSpec``; raises ConfigError."""

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+\Z")
CONFIGS = ("config.json", "model_index.json")
"""A model's folder has one of them."""
_THEIRS = frozenset({
    "async_chunk", "base_config", "connectors", "edges", "model_runner", "platforms", "session_mode",
})  # fmt: skip
"""Keys that only a deploy file of vLLM-Omni has."""


@attrs.frozen
class ModelSpec:
    """A model's pipeline. ``sources``: by the way to a value (stages by name), who said it; ``source``: all others."""

    spec: PipelineSpec
    source: str
    sources: Mapping[Path, str] = attrs.field(factory=dict)


def is_model_folder(target: str) -> bool:
    """Whether ``target`` is a folder with a model's configuration in it."""
    return any(os.path.isfile(os.path.join(target, name)) for name in CONFIGS)


def is_hub_id(target: str) -> bool:
    """Whether ``target`` can only be the name of a model at a hub: ``org/name``, and there is no such file."""
    return _HUB_ID.match(target) is not None and not os.path.exists(target)


def deploys_a_model(file: str) -> bool:
    """Whether ``file`` is a deploy file of vLLM-Omni and not one of ours. A file that cannot be read is none."""
    try:
        root = parse_yaml(read_file(file), file, Problems())
    except ConfigError:
        return False
    if not root.is_mapping:
        return False
    stages = root.value.get("stages")
    listed = stages.value if stages is not None and stages.is_list else ()
    numbered = any("stage_id" in stage.value for stage in listed if stage.is_mapping)
    return numbered or not _THEIRS.isdisjoint(root.value)


def model_tree(model: str, options: Mapping[str, Any]) -> Node:
    """The tree of a model's pipeline. ``options``: vLLM-Omni's, ``deploy_config`` among them. Raises ConfigError."""
    made: ModelSpec = load_object(SOURCE)(model, options)
    return _marked(spec_tree(made.spec, Place(made.source)), (), made.sources)


def _marked(node: Node, path: Path, sources: Mapping[Path, str]) -> Node:
    """``node`` with the places that ``sources`` names; what lies below a named path is from there, too."""
    source = next((sources[path[:end]] for end in range(len(path), 0, -1) if path[:end] in sources), None)
    here = node if source is None else attrs.evolve(node, place=attrs.evolve(node.place, file=source))
    if node.is_mapping:
        return attrs.evolve(here, value={key: _marked(item, (*path, key), sources) for key, item in node.value.items()})
    if node.is_list:
        return attrs.evolve(here, value=tuple(_marked(item, (*path, i), sources) for i, item in enumerate(node.value)))
    return here
