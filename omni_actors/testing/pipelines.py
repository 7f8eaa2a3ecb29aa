"""Transforms and splitters for pipelines of fake engines, where a token id is a character."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from omni_actors.lifecycle import RequestView, StageResult

__all__ = ["broken", "broken_split", "echo", "in_a_thread", "join", "join_bytes", "speak", "voice", "words"]


def voice(upstream: Mapping[str, StageResult], request: RequestView) -> dict[str, Any]:
    """The producer's tokens as the inputs of an omni-wire stage."""
    (source,) = upstream.values()
    return {"inputs": [token % 256 for token in source.token_ids]}


def speak(upstream: Mapping[str, StageResult], request: RequestView) -> str:
    """The producer's text as an LLM's prompt."""
    (source,) = upstream.values()
    return source.text


def echo(upstream: Mapping[str, StageResult], request: RequestView) -> dict[str, Any]:
    """The producer's text as bytes."""
    (source,) = upstream.values()
    return {"inputs": list(source.text.encode())}


def join(upstream: Mapping[str, StageResult], request: RequestView) -> str:
    """Fan-in: every producer's text, in stage order."""
    return "+".join(upstream[name].text for name in sorted(upstream))


def broken(upstream: Mapping[str, StageResult], request: RequestView) -> Any:
    """A user's bug: raises for prompts that begin with an exclamation mark."""
    if isinstance(request.prompt, str) and request.prompt.startswith("!"):
        raise ValueError("a bug in the user's transform")
    return voice(upstream, request)


def words(text: str, finished: bool) -> tuple[list[str], str]:
    """A splitter: words, cut at spaces."""
    *complete, rest = text.split(" ")
    if finished and rest:
        complete, rest = [*complete, rest], ""
    return [word for word in complete if word], rest


def broken_split(text: str, finished: bool) -> tuple[list[str], str]:
    """A splitter with a bug."""
    raise ValueError("a bug in the user's splitter")


def join_bytes(upstream: Mapping[str, StageResult], request: RequestView) -> dict[str, Any]:
    """Fan-in for an omni-wire stage: the joined texts as bytes."""
    return {"inputs": list(join(upstream, request).encode())}


def in_a_thread(upstream: Mapping[str, StageResult], request: RequestView) -> Any:
    """Raises if it runs in the main thread, or if there is nothing to say; else it hands on what it got."""
    if threading.current_thread() is threading.main_thread():
        raise RuntimeError("not in a thread")
    if not request.prompt:
        raise ValueError("nothing to say")
    return echo(upstream, request) if upstream else request.prompt
