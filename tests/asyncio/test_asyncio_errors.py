"""Ours as vLLM's: whose fault it is decides what AsyncLLM's users catch, and what its server answers."""

from __future__ import annotations

import pytest
from omni_actors_asyncio._errors import as_vllm
from vllm.exceptions import VLLMValidationError
from vllm.v1.engine.exceptions import EngineGenerateError

from omni_actors import InvalidRequest

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize("cause", [None, ValueError("too long"), VLLMValidationError("too long")])
def test_what_is_wrong_with_a_request_is_its_senders_fault(cause):
    error = InvalidRequest("too long")
    error.__cause__ = cause
    seen = as_vllm(error)
    assert isinstance(seen, VLLMValidationError)
    assert not isinstance(seen, EngineGenerateError)
    assert seen.__cause__ is error


def test_an_input_that_broke_vllms_processing_is_also_an_engines_failure_as_with_async_llm():
    error = InvalidRequest("cannot pass this")
    error.__cause__ = TypeError("cannot pass this")
    seen = as_vllm(error)
    assert isinstance(seen, VLLMValidationError)
    assert isinstance(seen, EngineGenerateError)
