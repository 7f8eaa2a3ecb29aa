"""Whether a stage's input processing is worth a thread: nobody knows what a model's functions do, but it can be timed.

A thread costs 50 µs and more, several times what the input of a small stage costs, so what is quick is done at once, as
vLLM-Omni does with all of it. CPU time counts, not time in which the thread had no processor: a busy host would never
find anything quick. One call that suddenly takes long delays the host once.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from omni_actors.stages.vllm._prompts import MOST_CHARS, MOST_TOKENS

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

__all__ = ["Cost", "is_long"]

_LIGHT_S = 0.001


class Cost:
    """What the latest calls took. Any thread may time one: the last to end is the one that counts."""

    def __init__(self) -> None:
        self._recent_s: float | None = None

    @property
    def light(self) -> bool:
        """Whether they were quick. What was not is forgotten by halves; before the first call nothing is known."""
        return self._recent_s is not None and self._recent_s <= _LIGHT_S

    def timed(self) -> AbstractContextManager[None]:
        """Time one call, that succeeds or not."""
        return _Call(self)

    def took(self, seconds: float) -> None:
        """One call's CPU time."""
        self._recent_s = seconds if self._recent_s is None else max(seconds, self._recent_s / 2)


class _Call:
    """One call: a generator in its place would cost as much as the rest of what is ours in it."""

    __slots__ = ("_began_s", "_cost")

    def __init__(self, cost: Cost) -> None:
        self._cost = cost

    def __enter__(self) -> None:
        self._began_s = time.thread_time()

    def __exit__(self, *_: object) -> None:
        self._cost.took(time.thread_time() - self._began_s)


def is_long(prompt: Any) -> bool:
    """Whether a user's prompt has to be looked at in a thread: sound, pictures, long texts, and what is no prompt."""
    if isinstance(prompt, str):
        return len(prompt) > MOST_CHARS
    if not isinstance(prompt, Mapping) or prompt.get("multi_modal_data"):
        return True
    tokens = prompt.get("prompt_token_ids")
    return is_long(prompt.get("prompt")) if tokens is None else len(tokens) > MOST_TOKENS
