"""A chat that wants sound or pictures, read: what is said about them. The rest is its renderer's to read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import attrs
import msgspec

from ._door import Rendered
from ._images_asked import ImageWish, painting, read_asked
from ._refusals import HttpError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ._door import Door

__all__ = ["AudioWish", "Chat", "read_chat", "wants_more_than_text"]

_FOR_TEXT_ALONE = ("tools", "functions", "logprobs", "top_logprobs", "prompt_logprobs", "use_beam_search", "echo")
"""vLLM's handler would do something with the text of these; here the text goes out as it comes."""


class AudioWish(msgspec.Struct):
    """OpenAI's ``audio``. ``voice`` is taken as it comes, see ``_routes_speech``."""

    format: Literal["wav", "pcm16", "pcm", "flac", "mp3", "opus"] | None = None
    voice: Any = None


@attrs.frozen(kw_only=True)
class Chat:
    """``form`` is the sound's format, ``image`` how pictures are to be, ``rendered`` what the engines get."""

    model: str
    modalities: tuple[str, ...]
    form: str
    image: ImageWish
    stream: bool
    rendered: Rendered


def wants_more_than_text(document: Any) -> bool:
    """Whether this body is ours to answer."""
    modalities = document.get("modalities") if isinstance(document, dict) else None
    return isinstance(modalities, list) and any(each in modalities for each in ("audio", "image"))


async def read_chat(document: Any, door: Door) -> Chat:
    """Raises HttpError."""
    if not isinstance(document, dict):
        raise HttpError(400, "the body is an object")
    fields = dict(document)
    default = [next((each for each in ("text", "audio") if door.makes(each)), "image")]
    modalities, audio = _modalities(fields.pop("modalities", None) or default), _audio(fields.pop("audio", None))
    image = read_asked(ImageWish, fields.pop("image", None) or {}, door.limits, at="image")
    stream = fields.get("stream") is True
    if stream and audio.format not in (None, "pcm16", "pcm"):
        raise HttpError(400, f"a streamed chat's audio is pcm16, not {audio.format}", param="audio.format")
    _refuse_others(fields)
    name = fields.get("model")
    if not isinstance(name, str | None):
        raise HttpError(400, "model is a name", param="model")
    if door.render is None:
        raise HttpError(400, "this pipeline answers no chats")
    rendered = await door.render(fields)
    if "image" in modalities:
        rendered = _painted(rendered, image, door, progress=stream)
    return Chat(
        model=name or door.models[0],
        modalities=modalities,
        form=(audio.format or ("pcm16" if stream else "wav")).replace("pcm16", "pcm"),
        image=image,
        stream=stream,
        rendered=rendered,
    )


def _painted(rendered: Rendered, wish: ImageWish, door: Door, *, progress: bool) -> Rendered:
    """With params for the stages that paint. One that takes the prompt itself knows texts, no conversations."""
    per_stage = {stage.name: rendered.sampling for stage in door.roots}
    prompt = rendered.prompt
    for stage in door.painters:
        params = painting(wish, stage, progress=progress)
        if not stage.inputs:
            prompt, params = _last_text(prompt), {**(rendered.sampling or {}), **params}
        per_stage[stage.name] = params
    return attrs.evolve(rendered, prompt=prompt, sampling=per_stage)


def _last_text(messages: Any) -> Any:
    """What the user said last."""
    if not isinstance(messages, list):
        return messages
    content = messages[-1].get("content")
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    if not isinstance(parts, list) or not all(isinstance(each, dict) and each.get("type") == "text" for each in parts):
        words = "this pipeline paints what the last message says in text; pictures are edited at /v1/images/edits"
        raise HttpError(400, words, param="messages")
    text = " ".join(str(each.get("text", "")) for each in parts).strip()
    if not text:
        raise HttpError(400, "the last message is empty", param="messages")
    return text


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
    for name in _FOR_TEXT_ALONE:
        if fields.get(name):
            raise HttpError(400, f"{name} cannot be had together with audio or images", param=name)
    if fields.get("n") not in (None, 1):
        raise HttpError(400, "n is 1 where sound or pictures are wanted: one choice is spoken, and painted", param="n")
