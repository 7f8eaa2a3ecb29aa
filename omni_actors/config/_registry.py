"""What is installed: engine kinds and pipelines, found by entry point. Reads metadata only; imports on request."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from omni_actors._errors import ConfigError
from omni_actors.config._dotted import is_dotted, load_object
from omni_actors.config._hints import did_you_mean
from omni_actors.config.specs import PipelineSpec

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["ENGINES", "PIPELINES", "load_pipeline", "registered"]

ENGINES = "omni_actors.engines"
PIPELINES = "omni_actors.pipelines"


@cache
def registered(group: str) -> Mapping[str, str]:
    """The names in an entry point group and the dotted paths behind them. Read once per process."""
    from importlib.metadata import entry_points

    return {entry.name: entry.value for entry in entry_points(group=group)}


def load_pipeline(name: str) -> PipelineSpec:
    """The spec of a registered pipeline, or of the dotted path of one: an object, or a callable without arguments.

    Raises ConfigError: unknown name (the hint is the nearest), a module that fails, something that is no PipelineSpec.
    """
    known = registered(PIPELINES)
    if name not in known and not is_dotted(name):
        raise ConfigError(f"unknown pipeline {name[:80]!r}", hint=did_you_mean(name, known))
    found = load_object(known.get(name, name))
    if not isinstance(found, PipelineSpec) and callable(found):
        try:
            found = found()
        except ConfigError:
            raise
        except Exception as error:
            raise ConfigError(f"pipeline '{name}' failed: {type(error).__name__}: {error}") from error
    if not isinstance(found, PipelineSpec):
        raise ConfigError(f"pipeline '{name}' is a {type(found).__name__}, not a PipelineSpec")
    return found
