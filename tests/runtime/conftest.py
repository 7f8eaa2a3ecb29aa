from __future__ import annotations

import pytest

from omni_actors.testing import MemoryWorld


@pytest.fixture
def world() -> MemoryWorld:
    return MemoryWorld()
