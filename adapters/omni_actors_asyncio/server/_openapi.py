"""The omni routes in the app's ``/openapi.json``: vLLM's app describes its own, this adds ours."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import msgspec

from ._chat_asked import AudioWish
from ._images_asked import EditBody, ImageBody, ImageWish
from ._routes_omni import AbortBody
from ._routes_speech import SpeechBody

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["describe"]

CHAT = "/v1/chat/completions"
_REFUSED = ("400", "404", "408", "413", "429", "503")
_SOUNDS = ("audio/mpeg", "audio/ogg", "audio/flac", "audio/wav", "audio/pcm", "text/event-stream")


class OmniErrorInfo(msgspec.Struct):
    """OpenAI's error."""

    message: str
    type: str
    code: int
    param: str | None = None


class OmniErrorBody(msgspec.Struct):
    """Every error's body."""

    error: OmniErrorInfo


class OmniStage(msgspec.Struct):
    """A stage: how many of its replicas are ready, and why not all."""

    stage: str
    state: str
    ready: int
    replicas: int
    reason: str | None


class OmniReady(msgspec.Struct):
    """Whether every stage can serve, and why not."""

    ready: bool
    reason: str | None
    stages: list[OmniStage]


class OmniPicture(msgspec.Struct):
    """One picture: base64 of a file."""

    b64_json: str
    seed: int | None


class OmniPictures(msgspec.Struct):
    """OpenAI's ImagesResponse. A stream has events with these fields instead."""

    created: int
    background: str
    data: list[OmniPicture]
    output_format: str
    quality: str | None
    size: str
    usage: dict[str, Any]


class OmniEnded(msgspec.Struct):
    """A request's end, with what it had made."""

    request_id: str
    kind: Literal["finished", "aborted", "failed", "timed_out"]
    text: str
    tokens: dict[str, int]


class OmniAborted(msgspec.Struct):
    """What an abort ended; the stages that did not confirm it in time."""

    request_id: str
    known: bool
    ended: list[OmniEnded]
    unconfirmed: list[str]


_OURS = (
    AbortBody, AudioWish, EditBody, ImageBody, ImageWish, OmniAborted, OmniErrorBody, OmniPictures, OmniReady,
    SpeechBody,
)  # fmt: skip
_MODALITIES = {
    "type": ["array", "null"],
    "items": {"type": "string"},
    "description": "What is wanted of the answer: the outputs of the pipeline's stages, as in text, audio and image.",
}


def describe(app: Any) -> None:
    """Put them in. Nothing happens until somebody asks; then it is done once."""
    theirs: Callable[[], dict[str, Any]] = app.openapi
    made: list[dict[str, Any]] = []

    def openapi() -> Any:
        if not made:
            made.append(_merged(theirs()))
        return made[0]

    app.openapi = openapi


def _merged(document: dict[str, Any]) -> dict[str, Any]:
    references, components = msgspec.json.schema_components(_OURS, ref_template="#/components/schemas/{name}")
    refs = {kind.__name__: reference for kind, reference in zip(_OURS, references, strict=True)}
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    schemas |= components
    paths = document.setdefault("paths", {})
    paths |= {
        "/ready": {"get": _operation("omni_ready", {"200": refs["OmniReady"], "503": refs["OmniReady"]})},
        "/v1/omni/abort": {
            "post": _operation("omni_abort", {"200": refs["OmniAborted"]}, refs["AbortBody"], refs["OmniErrorBody"])
        },
        "/v1/audio/speech": {
            "post": _operation("omni_speech", {"200": None}, refs["SpeechBody"], refs["OmniErrorBody"])
        },
        "/v1/images/generations": {"post": _pictures("omni_images", refs["ImageBody"], refs)},
        "/v1/images/edits": {"post": _pictures("omni_image_edits", _form(schemas["EditBody"]), refs)},
    }
    if CHAT not in paths:
        paths[CHAT] = {"post": _operation("omni_chat", {"200": {}}, {"type": "object"}, refs["OmniErrorBody"])}
    if (chat := schemas.get("ChatCompletionRequest")) is not None:
        chat["properties"] |= {
            "modalities": _MODALITIES,
            "audio": _or_null(refs["AudioWish"]),
            "image": _or_null(refs["ImageWish"]),
        }
    return document


def _or_null(schema: Any) -> dict[str, Any]:
    return {"anyOf": [schema, {"type": "null"}]}


def _pictures(name: str, body: Any, refs: dict[str, Any]) -> dict[str, Any]:
    """A form is one with files."""
    operation = _operation(name, {"200": refs["OmniPictures"]}, body, refs["OmniErrorBody"])
    operation["responses"]["200"]["content"]["text/event-stream"] = {}
    if "$ref" not in body:
        operation["requestBody"]["content"] = _content(["multipart/form-data"], body)
    return operation


def _form(texts: dict[str, Any]) -> dict[str, Any]:
    """The edit's fields, and its files."""
    file = {"type": "string", "format": "binary"}
    files = {"image": {"type": "array", "items": file, "minItems": 1}, "mask": file}
    return {**texts, "properties": {**texts["properties"], **files}, "required": [*texts["required"], "image"]}


def _operation(name: str, answers: dict[str, Any], body: Any = None, error: Any = None) -> dict[str, Any]:
    """``answers``: schemas by status; None is sound."""
    responses = {status: _response(f"{name}: {status}", schema) for status, schema in answers.items()}
    responses |= {status: _response("OpenAI's error", error) for status in _REFUSED if error is not None}
    operation: dict[str, Any] = {"operationId": name, "tags": ["omni"], "responses": responses}
    if body is not None:
        operation["requestBody"] = {"required": True, "content": _content(["application/json"], body)}
    return operation


def _response(words: str, schema: Any) -> dict[str, Any]:
    kinds = _SOUNDS if schema is None else ("application/json",)
    return {"description": words, "content": _content(kinds, schema)}


def _content(kinds: Sequence[str], schema: Any) -> dict[str, Any]:
    return {kind: {} if schema is None else {"schema": schema} for kind in kinds}
