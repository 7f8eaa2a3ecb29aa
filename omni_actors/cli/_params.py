"""Sampling params by stage, from the command line: ``--stage-params thinker.max_tokens=5``, ``--steps 20``."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import attrs

from omni_actors._errors import UsageError
from omni_actors.config import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Sequence

    from omni_actors.config import PipelineSpec

__all__ = ["Painting", "painting_params", "stage_params"]

_SIZE = re.compile(r"([1-9]\d{0,5})[xX]([1-9]\d{0,5})\Z")


@attrs.frozen(kw_only=True)
class Painting:
    """The options of stages that paint; None: the stage's own. ``size``: ``512x768``, the width first."""

    steps: int | None = None
    seed: int | None = None
    size: str | None = None
    n: int | None = None
    negative_prompt: str | None = None
    guidance: float | None = None


def painting_params(asked: Painting, spec: PipelineSpec) -> dict[str, dict[str, Any]]:
    """The same params for every stage of the kind ``diffusion``. Raises UsageError: there is none; the size."""
    given = [f"--{name.replace('_', '-')}" for name, value in attrs.asdict(asked).items() if value is not None]
    stages = [stage.name for stage in spec.stages if stage.engine == "diffusion"]
    if given and not stages:
        raise UsageError(f"{', '.join(given)}: {spec.name} has no stage that paints (engine diffusion)")
    params = {
        "num_inference_steps": asked.steps,
        "seed": asked.seed,
        "n": asked.n,
        "negative_prompt": asked.negative_prompt,
        "guidance_scale": asked.guidance,
        **(_size(asked.size) if asked.size is not None else {}),
    }
    chosen = {name: value for name, value in params.items() if value is not None}
    return {stage: dict(chosen) for stage in stages}


def _size(text: str) -> dict[str, int]:
    if (match := _SIZE.match(text)) is None:
        raise UsageError(f"--size {text}: expected WIDTHxHEIGHT in pixels; write 512x768")
    return {"width": int(match[1]), "height": int(match[2])}


def stage_params(given: Sequence[str], spec: PipelineSpec) -> dict[str, dict[str, Any]]:
    """Params by stage. Values are YAML. Raises UsageError.

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
    return chosen


def _value(value: str, text: str) -> Any:
    import yaml

    try:
        return yaml.safe_load(value)
    except yaml.YAMLError as error:
        raise UsageError(f"--stage-params {text}: the value is not YAML") from error
