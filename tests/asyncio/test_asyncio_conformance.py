"""AsyncOmni is an EngineClient of the installed vLLM: every member, and every parameter of every member."""

from __future__ import annotations

import inspect

import pytest
from omni_actors_asyncio import AsyncOmni
from vllm.engine.protocol import EngineClient
from vllm.v1.engine.async_llm import AsyncLLM

MEMBERS = sorted(
    name for name, member in vars(EngineClient).items() if not name.startswith("_") and (callable(member) or name)
)
BESIDE = ("remove_lora", "list_loras", "pin_lora", "get_num_unfinished_requests")
"""AsyncLLM's own, which apps use."""


def test_nothing_abstract_is_left():
    assert AsyncOmni.__abstractmethods__ == frozenset()
    assert issubclass(AsyncOmni, EngineClient)


@pytest.mark.parametrize("name", sorted(EngineClient.__abstractmethods__))
def test_an_abstract_member_is_of_the_same_kind(name):
    theirs, ours = inspect.getattr_static(AsyncLLM, name), inspect.getattr_static(AsyncOmni, name)
    assert type(ours) is type(theirs)
    assert inspect.iscoroutinefunction(ours) == inspect.iscoroutinefunction(theirs)
    assert inspect.isasyncgenfunction(ours) == inspect.isasyncgenfunction(theirs)


@pytest.mark.parametrize("name", [*MEMBERS, *BESIDE])
def test_a_member_takes_what_vllms_takes(name):
    theirs = inspect.getattr_static(EngineClient, name, None) or inspect.getattr_static(AsyncLLM, name)
    if not inspect.isfunction(theirs):
        return
    ours = inspect.signature(getattr(AsyncOmni, name)).parameters
    for parameter in inspect.signature(theirs).parameters.values():
        assert parameter.name in ours, f"vLLM's {name} takes {parameter.name}"
        assert ours[parameter.name].default == parameter.default
        assert ours[parameter.name].kind == parameter.kind
    more = [p for p in ours.values() if p.name not in inspect.signature(theirs).parameters]
    assert all(p.default is not p.empty for p in more), "what we take beside must be optional"


def test_every_member_is_ours():
    missing = [name for name in MEMBERS if getattr(AsyncOmni, name) is getattr(EngineClient, name)]
    assert missing == ["get_kv_event_sources"], "the base class's own will do for these only"
