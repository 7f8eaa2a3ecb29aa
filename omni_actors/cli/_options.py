"""What the command line says to vLLM-Omni: its options as data."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from omni_actors._errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["omni_options_of"]


def omni_options_of(deploy_config: str | None, stage_overrides: str | None, others: Iterable[str]) -> dict[str, Any]:
    """By name. Values of ``others`` (``NAME=VALUE``) are YAML, as those of ``--set``. Raises UsageError."""
    options: dict[str, Any] = {}
    if deploy_config is not None:
        options["deploy_config"] = deploy_config
    if stage_overrides is not None:
        options["stage_overrides"] = _by_stage(stage_overrides)
    for text in others:
        name, equals, value = text.partition("=")
        if not equals or not name.strip().isidentifier():
            raise UsageError(f"--omni-option {text[:80]!r}: expected NAME=VALUE, as in trust_remote_code=true")
        options[name.strip()] = _value(value, text)
    return options


def _by_stage(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise UsageError(f"--stage-overrides {text[:80]!r} is not JSON: {error}") from error


def _value(text: str, whole: str) -> Any:
    from omni_actors.config._tree import Place, plain
    from omni_actors.config._yaml import parse_value

    return plain(parse_value(text, Place("--omni-option", path=whole[:80])))
