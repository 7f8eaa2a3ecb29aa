"""AsyncOmni takes every call of every supported vLLM's EngineClient, whichever of them is installed.

The members and their parameters were recorded from each version's own class (``tools/golden/record.py``).
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from omni_actors_asyncio import AsyncOmni

GOLDEN = {path.stem.removeprefix("vllm-"): path for path in Path(__file__).parents[1].glob("golden/vllm-*.json")}
INHERITED = ("get_kv_event_sources", "should_keep_api_server_alive", "get_external_elastic_ep_status")
"""Optional members for which the base class's own answer is ours."""

CASES = [
    pytest.param(name, member, id=f"{version}: {name}")
    for version in sorted(GOLDEN)
    for name, member in json.loads(GOLDEN[version].read_text())["engine_client"].items()
]


def test_four_versions_are_known():
    assert sorted(GOLDEN) == ["0.30.0", "0.31.0", "0.32.0", "0.33.0"]


@pytest.mark.parametrize(("name", "theirs"), CASES)
def test_it_is_there_and_of_the_same_kind(name, theirs):
    ours = inspect.getattr_static(AsyncOmni, name, None)
    if ours is None:
        assert name in INHERITED
        assert not theirs["abstract"]
        return
    kinds = {
        "property": isinstance(ours, property),
        "coroutine function": inspect.iscoroutinefunction(ours),
        "async generator": inspect.isasyncgenfunction(ours),
    }
    of_a_kind = [kind for kind, is_so in kinds.items() if is_so] or ["function"]
    # A base class declares async generators as plain functions that return one.
    assert theirs["is"] in of_a_kind or (theirs["is"], of_a_kind) == ("function", ["async generator"])


@pytest.mark.parametrize(("name", "theirs"), CASES)
def test_every_way_to_call_it_binds(name, theirs):
    ours = inspect.getattr_static(AsyncOmni, name, None)
    if not inspect.isfunction(ours):
        return
    signature = inspect.signature(ours)
    for args, kwargs in calls(theirs["takes"]):
        bound = signature.bind(None, *args, **kwargs)
        assert all(bound.arguments[name] == name for name in (*args, *kwargs)), "each argument is where it belongs"


@pytest.mark.parametrize(("name", "theirs"), CASES)
def test_what_is_left_out_means_the_same(name, theirs):
    ours = inspect.getattr_static(AsyncOmni, name, None)
    if not inspect.isfunction(ours):
        return
    parameters = inspect.signature(ours).parameters
    for parameter, _, default in theirs["takes"]:
        if default is not None and parameter in parameters:
            assert repr(parameters[parameter].default) == default


def calls(takes: list[list[Any]]) -> Iterator[tuple[list[str], dict[str, str]]]:
    """With as few arguments as may be and as many, by position and by keyword; each argument is its own name."""
    by_place = [name for name, kind, _ in takes if kind == "POSITIONAL_OR_KEYWORD"]
    needed = [name for name, _, default in takes if default is None]
    every = [name for name, kind, _ in takes if not kind.startswith("VAR_")]
    yield [], {name: name for name in needed}
    yield [], {name: name for name in every}
    yield by_place, {name: name for name in every if name not in by_place}
    for name in every:
        yield [], {each: each for each in dict.fromkeys([*needed, name])}
