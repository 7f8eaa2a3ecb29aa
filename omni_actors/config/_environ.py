"""A stage's environment: what its spec changes against the inherited one, and which values must not be shown."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import attrs

if TYPE_CHECKING:
    from omni_actors.config.specs import PipelineSpec, StageSpec

__all__ = [
    "HIDDEN",
    "VISIBLE_DEVICES",
    "EnvChange",
    "environment_changes",
    "looks_secret",
    "masked",
    "stage_environment",
]

VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"
HIDDEN = "***"

_SECRET = re.compile(
    r"secret|passw|passphrase|credential|private_?key|api_?key|access_?key|(^|[._-])(token|key|auth|cookie|pat|pwd)\Z",
    re.IGNORECASE,
)
_USERINFO = re.compile(r"(://)[^/@\s]*@")


@attrs.frozen
class EnvChange:
    """One variable that a stage's process sees differently. ``before`` is None where it is not inherited."""

    stage: str
    name: str
    before: str | None
    after: str


def looks_secret(name: str) -> bool:
    """Whether a variable or argument of this name probably holds a secret (``HF_TOKEN``; not ``stop_token_ids``)."""
    return _SECRET.search(name) is not None


def masked(name: str, value: Any) -> Any:
    """``value`` as it may be shown: text that looks secret by its name, or carries a password in a URL, is hidden."""
    if isinstance(value, Mapping):
        return {key: masked(str(key), item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [masked(name, item) for item in value]
    if not isinstance(value, str) or not value:
        return value
    return HIDDEN if looks_secret(name) else _USERINFO.sub(rf"\1{HIDDEN}@", value)


def stage_environment(stage: StageSpec) -> dict[str, str]:
    """What the stage's processes get on top of the inherited environment: its devices, then its ``env``."""
    devices = {} if stage.devices is None else {VISIBLE_DEVICES: stage.devices}
    return {**devices, **stage.env}


def environment_changes(spec: PipelineSpec, inherited: Mapping[str, str]) -> list[EnvChange]:
    """Per stage, the variables whose value differs from ``inherited``; secret-looking values hidden."""
    return [
        EnvChange(
            stage.name, name, None if name not in inherited else masked(name, inherited[name]), masked(name, value)
        )
        for stage in spec.stages
        for name, value in stage_environment(stage).items()
        if inherited.get(name) != value
    ]
