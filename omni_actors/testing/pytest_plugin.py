"""The pytest plugin: proofs of pipelines as tests, sized and seeded from the command line.

Loaded by its entry point wherever omni_actors is installed, so it imports nothing but pytest until a fixture is used.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from omni_actors.testing import History, MemoryWorld, Proof, Violation

__all__ = ["invariants", "memory_world", "prove_pipeline", "pytest_addoption"]


def pytest_addoption(parser: pytest.Parser) -> None:
    """The two options. Each wins over what a test says itself."""
    group = parser.getgroup("omni_actors", "omni_actors: proofs of pipelines")
    group.addoption("--prove-examples", type=_positive, metavar="N", help="scenarios per proof")
    group.addoption("--prove-seed", type=int, metavar="S", help="the seed of the first of them")


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 1 on")
    return int(text)


@pytest.fixture
def prove_pipeline(pytestconfig: pytest.Config) -> Callable[..., Proof]:
    """``omni_actors.testing.check_pipeline``, with ``--prove-examples`` and ``--prove-seed``."""
    given = {"examples": pytestconfig.getoption("--prove-examples"), "seed": pytestconfig.getoption("--prove-seed")}
    told = {name: value for name, value in given.items() if value is not None}

    def prove(pipeline: Any, outputs: Any = None, **how: Any) -> Proof:
        from omni_actors.testing import check_pipeline

        return check_pipeline(pipeline, outputs, **{**how, **told})

    return prove


@pytest.fixture
def memory_world() -> MemoryWorld:
    """A world of fake engines in memory: ``open_omni(spec, world=memory_world)``.

    With pytest-trio's ``autojump_clock`` beside it, waiting takes no time.
    """
    from omni_actors.testing import MemoryWorld

    return MemoryWorld()


@pytest.fixture
def invariants() -> Callable[[History], list[Violation]]:
    """Every violation of the invariants that a history shows: ``assert not invariants(simulate(scenario))``."""
    from omni_actors.testing.invariants import check

    return check
