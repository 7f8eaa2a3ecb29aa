"""``--stage-params thinker.max_tokens=5``: sampling params by stage, from the command line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from omni_actors._errors import UsageError
from omni_actors.config import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from omni_actors.config import PipelineSpec

__all__ = ["stage_params"]


def stage_params(given: Sequence[str], spec: PipelineSpec) -> Mapping[str, Mapping[str, Any]] | None:
    """Params by stage; None if nothing was given. Values are YAML. Raises UsageError.

    A caller's params stand beside the stage's own defaults: those not named here keep them.
    """
    chosen: dict[str, dict[str, Any]] = {}
    for text in given:
        name, equals, value = text.partition("=")
        stage, _, param = name.strip().partition(".")
        if not equals or not param:
            raise UsageError(f"--stage-params {text}: expected stage.param=value; write thinker.max_tokens=5")
        known = [s.name for s in spec.stages]
        if stage not in known:
            hint = did_you_mean(stage, known, known="stages")
            raise UsageError(f"--stage-params {text}: unknown stage {stage!r}; {hint}")
        chosen.setdefault(stage, {})[param] = _value(value, text)
    return chosen or None


def _value(value: str, text: str) -> Any:
    import yaml

    try:
        return yaml.safe_load(value)
    except yaml.YAMLError as error:
        raise UsageError(f"--stage-params {text}: the value is not YAML") from error
