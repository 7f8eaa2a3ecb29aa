"""A chat that wants sound, read: what OpenAI says about audio. The rest is its renderer's to read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import attrs
import msgspec

from ._door import Rendered
from ._refusals import HttpError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ._door import Door

__all__ = ["AudioWish", "Chat", "read_chat", "wants_audio"]

_NOT_WITH_AUDIO = ("tools", "functions", "logprobs", "top_logprobs", "prompt_logprobs", "use_beam_search", "echo")
"""vLLM's handler would do something with the text of these; here the text goes out as it comes."""


class AudioWish(msgspec.Struct):
    """OpenAI's ``audio``. ``voice`` is taken as it comes, see ``_routes_speech``."""

    format: Literal["wav", "pcm16", "pcm", "flac", "mp3", "opus"] | None = None
    voice: Any = None


@attrs.frozen(kw_only=True)
class Chat:
    """``form`` is the sound's format, ``rendered`` what the engines get."""

    model: str
    modalities: tuple[str, ...]
    form: str
    stream: bool
    rendered: Rendered


def wants_audio(document: Any) -> bool:
    """Whether this body is ours to answer."""
    modalities = document.get("modalities") if isinstance(document, dict) else None
    return isinstance(modalities, list) and "audio" in modalities


async def read_chat(document: Any, door: Door) -> Chat:
    """Raises HttpError."""
    if not isinstance(document, dict):
        raise HttpError(400, "the body is an object")
    fields = dict(document)
    default = ["text" if door.makes_text else "audio"]
    modalities, audio = _modalities(fields.pop("modalities", None) or default), _audio(fields.pop("audio", None))
    stream = fields.get("stream") is True
    if stream and audio.format not in (None, "pcm16", "pcm"):
        raise HttpError(400, f"a streamed chat's audio is pcm16, not {audio.format}", param="audio.format")
    _refuse_others(fields)
    name = fields.get("model")
    if not isinstance(name, str | None):
        raise HttpError(400, "model is a name", param="model")
    if door.render is None:
        raise HttpError(400, "this pipeline answers no chats")
    return Chat(
        model=name or door.models[0],
        modalities=modalities,
        form=(audio.format or ("pcm16" if stream else "wav")).replace("pcm16", "pcm"),
        stream=stream,
        rendered=await door.render(fields),
    )


def _modalities(given: Any) -> tuple[str, ...]:
    if not isinstance(given, list) or not all(isinstance(each, str) for each in given):
        raise HttpError(400, "modalities are names, as in text and audio", param="modalities")
    return tuple(dict.fromkeys(given))


def _audio(given: Any) -> AudioWish:
    try:
        return AudioWish() if given is None else msgspec.convert(given, AudioWish)
    except msgspec.ValidationError as error:
        raise HttpError(400, str(error), param="audio") from error


def _refuse_others(fields: Mapping[str, Any]) -> None:
    for name in _NOT_WITH_AUDIO:
        if fields.get(name):
            raise HttpError(400, f"{name} cannot be had together with audio", param=name)
    if fields.get("n") not in (None, 1):
        raise HttpError(400, "n is 1 where sound is wanted: one choice is spoken", param="n")
