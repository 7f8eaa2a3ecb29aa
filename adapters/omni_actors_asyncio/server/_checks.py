"""What a JSON body asks for, against the limits: on every route, before its handler sees it.

Only what is there in the right type is counted; what has the wrong type is refused by its route, in its own words.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._body import objects, strict
from ._media import check_data_url, check_encoded
from ._refusals import HttpError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ._limits import HttpLimits

__all__ = ["checked"]

_URLS = ("url", "image_url", "audio_url", "video_url", "file_data")
_EMBEDDINGS = ("image_embeds", "audio_embeds", "prompt_embeds")
_LISTS = ("messages", "prompt", "input", "content", "documents", "queries", "tools")
_STOPS = ("stop", "stop_sequences", "bad_words")


def checked(body: bytes, limits: HttpLimits) -> None:
    """Raises HttpError (400) for a body that is no strict JSON, or asks for more than is allowed."""
    for each in objects(strict(body, limits), limits.json_depth):
        _check_counts(each, limits)
        _check_media(each, limits)


def _check_counts(fields: Mapping[str, Any], limits: HttpLimits) -> None:
    if type(n := fields.get("n")) is int and n > limits.choices:
        raise HttpError(400, f"n is {n}; at most {limits.choices} are allowed", param="n")
    for name in _STOPS:
        _count(fields, name, limits.stop_strings)
    for name in _LISTS:
        _count(fields, name, limits.items)


def _count(fields: Mapping[str, Any], name: str, most: int) -> None:
    """Lists of numbers are token ids: the context bounds them."""
    given = fields.get(name)
    if isinstance(given, list) and len(given) > most and not isinstance(given[0], int | float):
        raise HttpError(400, f"{name} has {len(given)} items; {most} are allowed", param=name)


def _check_media(fields: Mapping[str, Any], limits: HttpLimits) -> None:
    for name in _URLS:
        if isinstance(given := fields.get(name), str):
            check_data_url(given, limits, name)
    for name in _EMBEDDINGS:
        if isinstance(given := fields.get(name), str):
            check_encoded(given, None, limits, name)
    sound = fields.get("input_audio")
    if isinstance(sound, dict) and isinstance(data := sound.get("data"), str):
        check_encoded(data, "audio", limits, "input_audio.data")
    if fields.get("type") == "base64" and isinstance(data := fields.get("data"), str):
        kind = str(fields.get("media_type")).partition("/")[0]
        check_encoded(data, kind if kind in ("image", "audio") else None, limits, "source.data")
