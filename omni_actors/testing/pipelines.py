"""Transforms and splitters for pipelines of fake engines, where a token id is a character."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from omni_actors.runtime import StageInput

if TYPE_CHECKING:
    from collections.abc import Mapping

    from omni_actors.lifecycle import RequestView, StageResult

__all__ = [
    "blend", "blend_bytes", "broken", "broken_split", "echo", "fours", "guides", "in_a_thread", "join", "join_bytes",
    "repeat_prompt", "speak", "voice", "words",
]  # fmt: skip


def voice(upstream: Mapping[str, StageResult], request: RequestView) -> dict[str, Any]:
    """The producer's tokens as the inputs of an omni-wire stage."""
    (source,) = upstream.values()
    return {"inputs": [token % 256 for token in source.token_ids]}


def speak(upstream: Mapping[str, StageResult], request: RequestView) -> str:
    """The producer's text as an LLM's prompt."""
    (source,) = upstream.values()
    return source.text


def repeat_prompt(upstream: Mapping[str, StageResult], request: RequestView) -> Any:
    """The user's own prompt once more, whatever the producer said."""
    return request.prompt


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


def blend(upstream: Mapping[str, StageResult], request: RequestView) -> str:
    """Any producers, on any wire, as an LLM's prompt: what each made, and its companions, in stage order."""
    results = [upstream[name] for name in sorted(upstream)]
    return "+".join(_words(each) for result in results for each in (result, *result.companions.values()))


def blend_bytes(upstream: Mapping[str, StageResult], request: RequestView) -> dict[str, Any]:
    """The same for an omni-wire stage."""
    return {"inputs": list(blend(upstream, request).encode())}


def guides(upstream: Mapping[str, StageResult], request: RequestView) -> dict[str, StageInput]:
    """Companions of a stage on any wire: a short one, which an LLM ends before its main work, and a long one."""
    said = blend(upstream, request)
    return {name: StageInput(f"{name} {request.request_id} {said}", {"max_tokens": n}) for name, n in _GUIDES.items()}


_GUIDES = {"short": 1, "long": 64}


def _words(result: StageResult) -> str:
    if result.text or not result.tensors:
        return result.text or "".join(map(chr, result.token_ids)) or "nothing"
    return "".join(bytes(piece.data).hex() for name in sorted(result.tensors) for piece in result.tensors[name])


def fours(text: str, finished: bool) -> tuple[list[str], str]:
    """A splitter: four characters at a time."""
    pieces = [text[start : start + 4] for start in range(0, len(text), 4)]
    if finished or not pieces or len(pieces[-1]) == 4:
        return pieces, ""
    return pieces[:-1], pieces[-1]


def in_a_thread(upstream: Mapping[str, StageResult], request: RequestView) -> Any:
    """Raises if it runs in the main thread, or if there is nothing to say; else it hands on what it got."""
    if threading.current_thread() is threading.main_thread():
        raise RuntimeError("not in a thread")
    if not request.prompt:
        raise ValueError("nothing to say")
    return echo(upstream, request) if upstream else request.prompt
