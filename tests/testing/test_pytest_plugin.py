"""The pytest plugin, as somebody else's test suite sees it: in a pytest of its own, warnings being errors."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PLUGINS = ("-p", "omni_actors.testing.pytest_plugin", "-p", "pytest_trio.plugin")

FUNCTIONS = """
def careless(upstream, request):
    return upstream["poet"].text.split()[0]

def careful(upstream, request):
    return upstream["poet"].text or "nothing"
"""

SUITE = """
import pytest
from hypothesis import strategies as st
from omni_actors import InputSpec, PipelineSpec, StageSpec, open_omni
from omni_actors.testing import Scenario, Stage, simulate
from omni_actors.testing.ops import Submit

def shouting(transform):
    poet = StageSpec(name="poet", engine="vllm", model="poet", output="text")
    shout = StageSpec(name="shouter", engine="vllm", model="s", inputs=[InputSpec(stage="poet")],
                      transform=f"shouting:{transform}", output="text")
    return PipelineSpec(name="shouting", stages=[poet, shout])

def test_careful(prove_pipeline):
    proof = prove_pipeline(shouting("careful"), {"poet": st.text(max_size=5)}, examples=5)
    print("EXAMPLES", proof.examples, "SEED", proof.seed)

def test_careless(prove_pipeline):
    with pytest.raises(AssertionError, match="shouting:careless of stage shouter raised IndexError"):
        prove_pipeline(shouting("careless"), {"poet": st.just("")}, examples=30, seed=1)

def test_a_history(invariants):
    history = simulate(Scenario(stages=(Stage(name="a", output="text"),), ops=(Submit(at=0.1, request="r"),)))
    assert len(history.events) > 10 and not invariants(history)

async def test_with_a_clock_that_jumps(memory_world, autojump_clock):
    stage = StageSpec(name="a", engine="fake-core", output="text", engine_args={"token_s": 5.0, "tokens": 2})
    async with open_omni(PipelineSpec(name="p", stages=[stage]), world=memory_world) as omni:
        async with omni.generate("hello") as stream:
            assert len([output async for output in stream]) == 2
"""


@pytest.fixture
def suite(tmp_path):
    (tmp_path / "shouting.py").write_text(FUNCTIONS)
    (tmp_path / "test_suite.py").write_text(SUITE)
    (tmp_path / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\ntrio_mode = true\npythonpath = .\n")
    return tmp_path


def pytest_in(folder, *args: str) -> str:
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command = [sys.executable, "-m", "pytest", *PLUGINS, "-s", "-p", "no:cacheprovider", *args]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    return done.stdout + done.stderr


def test_its_fixtures_prove_find_and_run(suite):
    out = pytest_in(suite)
    assert "4 passed" in out, out
    assert "EXAMPLES 5 SEED" in out


def test_the_command_line_wins_over_the_test(suite):
    out = pytest_in(suite, "-k", "careful", "--prove-examples", "3", "--prove-seed", "77")
    assert "EXAMPLES 3 SEED 77" in out, out


def test_no_examples_at_all_are_refused(suite):
    assert "'0' is no number from 1 on" in pytest_in(suite, "--prove-examples", "0")
    assert "'many' is no number from 1 on" in pytest_in(suite, "--prove-examples", "many")


def test_the_options_are_explained(suite):
    out = pytest_in(suite, "--help")
    assert "--prove-examples=N" in out
    assert "--prove-seed=S" in out


def test_it_costs_a_suite_that_does_not_use_it_nothing(tmp_path):
    (tmp_path / "test_other.py").write_text(
        "import sys\ndef test_other():\n"
        "    assert not {'hypothesis', 'trio', 'msgspec', 'zmq'} & {name.split('.')[0] for name in sys.modules}\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", *PLUGINS[:2], "-p", "no:cacheprovider"]
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout
