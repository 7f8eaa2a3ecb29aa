"""The public names, and what importing them costs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import omni_actors

ROOT = Path(__file__).parents[1]

NAMES = """
AbortReport ConfigError Deadlines EdgeTimeout EngineDead EngineRejected Health InputSpec InvalidRequest Kind Limits
OmniError OmniRuntime Output Overloaded PipelineSpec ProtocolError Refused RequestFailed RequestTimeout
RequestView RuntimeClosed ShutdownReport ShuttingDown SlowConsumer StageEvent StageFailed StageInput StageResult
StageSpec StageState Statistics StepChunk
StageUnavailable StartupFailed Stream Terminal TensorChunk TextChunk TransformFailed UsageError open_omni
"""


def test_the_public_names():
    assert set(omni_actors.__all__) == set(NAMES.split())
    for name in omni_actors.__all__:
        assert getattr(omni_actors, name).__module__.startswith("omni_actors.")


def loaded_by(statement: str) -> set[str]:
    code = f"import sys; {statement}; print(*{{name.split('.')[0] for name in sys.modules}})"
    return set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split())


def test_importing_the_package_imports_nothing_heavy():
    assert not loaded_by("import omni_actors") & {"vllm", "torch", "numpy", "zmq", "trio", "rich", "typer", "yaml"}
    assert not loaded_by("from omni_actors import open_omni") & {
        "vllm",
        "torch",
        "numpy",
        "transformers",
        "rich",
        "typer",
    }


def test_the_actor_library_can_be_read_in_ten_minutes():
    lines = [line for path in (ROOT / "omni_actors/actors").glob("*.py") for line in path.read_text().splitlines()]
    assert sum(bool(line.strip()) for line in lines) <= 600


def test_nothing_of_the_runtime_names_a_machine():
    for path in [*ROOT.glob("omni_actors/**/*.py"), *ROOT.glob("docs/*.md"), ROOT / "README.md"]:
        assert "/" + "work/" not in path.read_text(), path
