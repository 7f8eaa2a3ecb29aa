"""While a runtime is open the garbage collector looks seldom; afterwards it is as it was."""

import gc

import pytest

from omni_actors import open_omni
from omni_actors.runtime._collector import NEW_OBJECTS, rare_collections
from omni_actors.testing import MemoryWorld
from omni_actors.testing.rigs import core, pipeline


@pytest.fixture(autouse=True)
def usual():
    before = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    yield
    gc.set_threshold(*before)


async def test_an_open_runtime_is_not_stopped_by_collections(autojump_clock):
    async with open_omni(pipeline(core("llm", output="text")), world=MemoryWorld()):
        assert gc.get_threshold() == (NEW_OBJECTS, 10, 10)
    assert gc.get_threshold() == (700, 10, 10)


def test_the_last_of_several_runtimes_puts_it_back():
    first, second = rare_collections(), rare_collections()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert gc.get_threshold()[0] == NEW_OBJECTS
    second.__exit__(None, None, None)
    assert gc.get_threshold() == (700, 10, 10)


@pytest.mark.parametrize("own", [(0, 10, 10), (50_000, 5, 5)])
def test_who_collects_less_still_is_let_be(own):
    gc.set_threshold(*own)
    with rare_collections():
        assert gc.get_threshold() == own
    assert gc.get_threshold() == own


def test_who_changes_it_meanwhile_keeps_the_change():
    with rare_collections():
        gc.set_threshold(2000, 10, 10)
    assert gc.get_threshold() == (2000, 10, 10)
