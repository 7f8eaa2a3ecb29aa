"""vLLM-Omni's functions between stages, called under one contract: what they raise is their request's error."""

from __future__ import annotations

import inspect
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from omni_actors._errors import InvalidRequest, TransformFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

__all__ = ["between", "failures", "function_name"]


def between(
    function: Callable[..., Any], stage: str, sources: Sequence[Any], prompt: Any, multimodal: bool, **known: Any
) -> Any:
    """What it makes of the outputs before and the user's prompt. Of ``known`` it is given what it has parameters for.

    Raises InvalidRequest for vLLM-Omni's client errors, TransformFailed for all else.
    """
    wanted = _parameters(function)
    with failures(function, stage):
        return function(list(sources), prompt, multimodal, **{name: known[name] for name in known if name in wanted})


@lru_cache
def _parameters(function: Callable[..., Any]) -> frozenset[str]:
    return frozenset(inspect.signature(function).parameters)


@contextmanager
def failures(function: Callable[..., Any], stage: str) -> Iterator[None]:
    """Whatever ``function`` raises inside becomes InvalidRequest or TransformFailed, as above."""
    from vllm_omni.errors import OmniClientError

    try:
        yield
    except OmniClientError as error:
        raise InvalidRequest(f"stage {stage!r}: {error}", stage=stage) from error
    except Exception as error:
        name = function_name(function)
        words = f"{name} of stage {stage} raised {type(error).__name__}: {error}"
        raise TransformFailed(words, function=name, stage=stage) from error


def function_name(function: Callable[..., Any] | None) -> str:
    """As a person would look for it."""
    return "(default)" if function is None else f"{function.__module__}.{function.__qualname__}"
