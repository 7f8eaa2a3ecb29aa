"""Deploy YAML, overrides and pipelines become frozen specs, with the place of every error.

``resolve`` is the way in for whoever has a name or a file, ``validate`` for whoever has a spec. Imports neither trio
nor an engine; YAML and the metadata of packages are read only when asked for.
"""

from __future__ import annotations

from omni_actors.config._dotted import load_object
from omni_actors.config._environ import EnvChange, environment_changes, stage_environment
from omni_actors.config._hints import did_you_mean
from omni_actors.config._models import ModelSpec
from omni_actors.config._problems import problem_lines
from omni_actors.config._registry import load_pipeline, registered
from omni_actors.config._sources import Resolved, Row, is_model, resolve
from omni_actors.config._validate import validate
from omni_actors.config.specs import Deadlines, EdgeMode, InputSpec, Limits, Modality, PipelineSpec, StageSpec

__all__ = [
    "Deadlines", "EdgeMode", "EnvChange", "InputSpec", "Limits", "Modality", "ModelSpec", "PipelineSpec", "Resolved",
    "Row", "StageSpec", "did_you_mean", "environment_changes", "is_model", "load_object", "load_pipeline",
    "problem_lines", "registered", "resolve", "stage_environment", "validate",
]  # fmt: skip
