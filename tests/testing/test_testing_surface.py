"""The public names of the testing package, and what importing them costs."""

from __future__ import annotations

import subprocess
import sys

import pytest

from omni_actors import testing
from omni_actors.config import registered
from omni_actors.testing import ops
from omni_actors.testing.sim._scenario import Op

NAMES = """
Engine Exit FAKE FAKE_CORE FakeBehaviour FakeChunk FakeCore FakeCoreBehaviour FakeCoreCodec FakeCoreKind FakeFrontend
FakeOmni FakeOmniKind FakeParams FakeTensor History MemoryLauncher MemoryProcess MemoryWorld Proof Scenario Stage
Violation check_pipeline current_process fake_tokens invariants open_memory_launcher ops prove replay
scenario_from_json simulate strategies timeline
"""


def test_the_public_names():
    assert set(testing.__all__) == set(NAMES.split())
    assert set(testing.__all__) <= set(dir(testing))


@pytest.mark.parametrize("name", NAMES.split())
def test_each_can_be_had(name):
    assert getattr(testing, name) is not None


def test_any_other_name_is_missing_as_from_every_module():
    with pytest.raises(AttributeError, match="no attribute 'simulated'"):
        testing.simulated  # noqa: B018


def test_every_operation_of_the_language_is_there():
    assert {getattr(ops, name) for name in ops.__all__} - {Op} == set(Op.__args__)


def test_the_engine_kinds_are_found_by_their_entry_points():
    kinds = registered("omni_actors.engines")
    assert {kinds["fake"], kinds["fake-core"]} == {"omni_actors.testing:FAKE", "omni_actors.testing:FAKE_CORE"}


def loaded_by(statement: str) -> set[str]:
    code = f"import sys; {statement}; print(*{{name.split('.')[0] for name in sys.modules}})"
    return set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split())


def test_importing_the_package_imports_nothing_that_a_fake_engine_does_not_need():
    assert not loaded_by("import omni_actors.testing") & {"hypothesis", "pytest", "vllm", "torch", "numpy", "trio"}


def test_simulating_needs_no_hypothesis_and_no_engine():
    names = "from omni_actors.testing import Scenario, Stage, simulate"
    run = f"{names}; simulate(Scenario(stages=(Stage(name='a', output='text'),)))"
    assert not loaded_by(run) & {"hypothesis", "vllm", "torch"}
