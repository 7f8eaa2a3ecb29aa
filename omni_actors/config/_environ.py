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
    """One variable that a stage's process sees differently. ``before`` is None where it is not inherited.

    ``stage`` is ``tts/1`` where the replicas do not see the same.
    """

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


def stage_environment(stage: StageSpec, replica: int = 0) -> dict[str, str]:
    """What a replica's processes get on top of the inherited environment: its devices, then the stage's ``env``."""
    devices = stage.devices_of(replica)
    return {**({} if devices is None else {VISIBLE_DEVICES: devices}), **stage.env}


def environment_changes(spec: PipelineSpec, inherited: Mapping[str, str]) -> list[EnvChange]:
    """Per stage, the variables whose value differs from ``inherited``; secret-looking values hidden."""
    return [
        EnvChange(who, name, None if name not in inherited else masked(name, inherited[name]), masked(name, value))
        for stage in spec.stages
        for who, environment in _environments(stage)
        for name, value in environment.items()
        if inherited.get(name) != value
    ]


def _environments(stage: StageSpec) -> list[tuple[str, dict[str, str]]]:
    """That of the stage; of each replica, where each has devices of its own."""
    if stage.devices_of(0) == stage.devices:
        return [(stage.name, stage_environment(stage))]
    return [(f"{stage.name}/{replica}", stage_environment(stage, replica)) for replica in range(stage.replicas)]
