from __future__ import annotations

import sys
from pathlib import Path

import pytest

from omni_actors.testing import MemoryWorld

sys.path.insert(0, str(Path(__file__).parent))  # importlib mode: lets the tests here share rigs.py


@pytest.fixture
def world() -> MemoryWorld:
    return MemoryWorld()
