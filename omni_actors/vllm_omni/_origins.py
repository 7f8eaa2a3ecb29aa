"""Where vLLM-Omni found a stage's values: an option, a line of the deploy file or of one that it is based on.

The merging itself is vLLM-Omni's; here the layers are only looked through, the highest first: options, the block of the
platform, the file, the file that it is based on.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from omni_actors.config._load import read_file
from omni_actors.config._problems import Problems
from omni_actors.config._tree import Node, Path, find
from omni_actors.config._yaml import parse_yaml

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["Origins"]

_OURS: Mapping[str, Path] = {
    "devices": ("devices",), "num_replicas": ("replicas",), "env": ("env",), "default_sampling_params": ("params",),
}  # fmt: skip
"""Of the keys of a stage: what they are called in a StageSpec. The rest stays with vLLM-Omni."""


class Origins:
    """The layers of one resolution. Reads the files once."""

    def __init__(self, options: Mapping[str, Any], deploy_file: str | None) -> None:
        from vllm_omni.platforms import current_omni_platform

        self._options = options
        self._files = list(_files(deploy_file))
        self._platform = str(current_omni_platform.device_name or "").lower()

    def of_stage(self, number: int) -> dict[Path, str]:
        """By the way to a value in our StageSpec: who said it."""
        found: dict[Path, str] = {("engine_args", name): f"option {name}" for name in self._options}
        found["model",] = "the target"
        for entry in reversed([*self._entries(number)]):
            for key, ours in _OURS.items():
                for start in ((), ("runtime",)):
                    found.update(_places(entry, (*start, key), ours))
        for key, ours in _OURS.items():
            for option in self._overriding(number, key):
                found[ours] = option
        if "stage_init_timeout" in self._options:
            found["deadlines", "start_s"] = "option stage_init_timeout"
        return found

    def _entries(self, number: int) -> Iterator[Node]:
        """What the layers say about a stage, the highest layer first."""
        for way in (("platforms", self._platform, "stages"), ("stages",)):
            for file in self._files:
                stages, taken = find(file, way)
                for stage in stages.value if taken == len(way) and stages.is_list else ():
                    if find(stage, ("stage_id",))[0].value == number:
                        yield stage

    def _overriding(self, number: int, key: str) -> Iterator[str]:
        for name in (key, f"stage_{number}_{key}"):
            if self._options.get(name) is not None:
                yield f"option {name}"
        overrides = self._options.get("stage_overrides")
        if isinstance(overrides, dict) and key in (overrides.get(str(number)) or {}):
            yield "option stage_overrides"


def _files(name: str | None) -> Iterator[Node]:
    """The deploy file, then those that it is based on. That they can be read, vLLM-Omni has seen to."""
    while name is not None:
        root = parse_yaml(read_file(name), name, Problems())
        yield root
        base, taken = find(root, ("base_config",))
        name = os.path.join(os.path.dirname(name), str(base.value)) if taken else None


def _places(entry: Node, theirs: Path, ours: Path) -> dict[Path, str]:
    """The place of a value; of a mapping, of each of its keys."""
    node, taken = find(entry, theirs)
    if taken < len(theirs):
        return {}
    if node.is_mapping:
        return {(*ours, key): item.place.source for key, item in node.value.items()}
    return {ours: node.place.source}
