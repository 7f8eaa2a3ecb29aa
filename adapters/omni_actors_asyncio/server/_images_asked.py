"""What is asked of a picture, in OpenAI's words and a few of ours, and what that is in a painter's params.

Values that only the model can judge (steps, guidance, a seed) go to its stage as they come; it answers in words. All of
it is frozen data.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import msgspec

from ._pictures import Form
from ._refusals import HttpError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from omni_actors.config import StageSpec

    from ._limits import HttpLimits

__all__ = ["EditBody", "ImageBody", "ImageWish", "painting", "read_asked", "told_quality"]

Asked = TypeVar("Asked", bound="ImageWish")
Quality = Literal["low", "medium", "high", "xhigh", "max", "auto", "standard", "hd"]

_STEPS: Mapping[str, float] = {
    "low": 0.5, "medium": 1.0, "standard": 1.0, "high": 1.5, "hd": 1.5, "xhigh": 2.0, "max": 3.0,
}  # fmt: skip
"""How many times the steps of the stage's own ``params``, rounded up: a distilled model's 4 are another one's 50."""
_USUAL_STEPS = 30
"""Of a stage whose params do not say."""
_TOLD = {"standard": "medium", "hd": "high", "auto": None}
_SIZE = re.compile(r"([1-9]\d{0,5})x([1-9]\d{0,5})", re.ASCII)
_ENGINES_OWN = (
    "seed", "negative_prompt", "num_inference_steps", "guidance_scale", "true_cfg_scale", "strength", "scheduler",
    "lora", "truncate_prompt", "max_sequence_length",
)  # fmt: skip


class ImageWish(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """How a picture is to be. From ``seed`` on these are ours, most of them vLLM-Omni's too; what is null is not said.

    ``num_inference_steps`` wins over ``quality``. Picture i of ``n`` has ``seed`` + i.
    """

    size: str | None = None
    quality: Quality | None = None
    output_format: Form | None = None
    output_compression: Annotated[int, msgspec.Meta(ge=0, le=100)] | None = None
    seed: int | None = None
    negative_prompt: str | None = None
    num_inference_steps: int | None = None
    guidance_scale: float | None = None
    true_cfg_scale: float | None = None
    strength: float | None = None
    scheduler: str | None = None
    lora: str | dict[str, float] | None = None
    truncate_prompt: bool | None = None
    max_sequence_length: int | None = None

    @property
    def form(self) -> Form:
        """What the pictures are sent as."""
        return self.output_format or "png"


class ImageBody(ImageWish, kw_only=True, forbid_unknown_fields=True):
    """``/v1/images/generations``. ``moderation``, ``style``, ``user`` and ``safety_identifier`` have no effect."""

    prompt: str
    model: str | None = None
    n: int | None = None
    response_format: Literal["b64_json", "url"] | None = None
    background: Literal["auto", "opaque", "transparent"] | None = None
    stream: bool | None = None
    partial_images: Annotated[int, msgspec.Meta(ge=0, le=3)] | None = None
    moderation: Any = None
    style: Any = None
    user: Any = None
    safety_identifier: Any = None


class EditBody(ImageBody, kw_only=True, forbid_unknown_fields=True):
    """The texts of the form of ``/v1/images/edits``. ``input_fidelity`` has no effect."""

    input_fidelity: Any = None


def read_asked(kind: type[Asked], fields: Any, limits: HttpLimits, *, strict: bool = True, at: str = "") -> Asked:
    """``strict=False``: numbers are texts, as in forms. ``at``: where it stands. Raises HttpError (400)."""
    if not isinstance(fields, dict):
        raise HttpError(400, "this is an object", param=at or None)
    for name in fields:
        if name not in kind.__struct_fields__:
            raise HttpError(400, f"Unknown parameter: '{str(name)[:200]}'.", param=_place(at, str(name)[:200]))
    try:
        asked = msgspec.convert(fields, kind, strict=strict)
    except msgspec.ValidationError as error:
        name = str(error).rpartition("`$.")[2].rstrip("`") if "`$." in str(error) else ""
        raise HttpError(400, str(error), param=_place(at, name)) from error
    _check(asked, limits, at)
    return asked


def _place(at: str, name: str) -> str | None:
    return ".".join(part for part in (at, name) if part) or None


def _check(asked: ImageWish, limits: HttpLimits, at: str) -> None:
    if asked.output_compression is not None and asked.form == "png":
        words = "output_compression is for jpeg and webp: a png is always whole"
        raise HttpError(400, words, param=_place(at, "output_compression"))
    if isinstance(asked, ImageBody):
        _check_body(asked, limits)
    width, height = _size(asked.size, at) or (1, 1)
    pixels = width * height * (getattr(asked, "n", None) or 1)
    if pixels > limits.image_pixels:
        words = f"these pictures have {pixels} pixels; {limits.image_pixels} are allowed"
        raise HttpError(400, words, param=_place(at, "size"))


def _check_body(asked: ImageBody, limits: HttpLimits) -> None:
    if not asked.prompt.strip():
        raise HttpError(400, "the prompt is empty", param="prompt")
    if len(asked.prompt) > limits.input_chars:
        words = f"the prompt has {len(asked.prompt)} characters; {limits.input_chars} are allowed"
        raise HttpError(400, words, param="prompt")
    if asked.n is not None and not 1 <= asked.n <= limits.choices:
        raise HttpError(400, f"n is {asked.n}; it can be 1 to {limits.choices}", param="n")
    if asked.response_format == "url":
        words = "pictures are not kept here, so they have no url: response_format is b64_json"
        raise HttpError(400, words, param="response_format")
    if asked.background == "transparent":
        raise HttpError(400, "this pipeline paints opaque pictures only", param="background")
    if asked.partial_images and not asked.stream:
        raise HttpError(400, "partial images come in a stream: stream is true", param="partial_images")


def _size(size: str | None, at: str = "") -> tuple[int, int] | None:
    """Width and height; None where the model's own are meant."""
    if size is None or size == "auto":
        return None
    match = _SIZE.fullmatch(size)
    if match is None:
        raise HttpError(400, f"size is auto, or <width>x<height>, not {size[:50]!r}", param=_place(at, "size"))
    return int(match[1]), int(match[2])


def painting(
    asked: ImageWish, stage: StageSpec, *, n: int = 1, progress: bool = False, partial: int = 0
) -> dict[str, Any]:
    """The params for a stage that paints. ``partial``: as many previews of each picture are wanted."""
    params = {name: value for name in _ENGINES_OWN if (value := getattr(asked, name)) is not None}
    usual = {**stage.params, **stage.fixed_params}.get("num_inference_steps")
    steps = usual if isinstance(usual, int) else _USUAL_STEPS
    if asked.num_inference_steps is None and (factor := _STEPS.get(asked.quality or "auto")) is not None:
        params["num_inference_steps"] = max(1, math.ceil(steps * factor))
    if (size := _size(asked.size)) is not None:
        params["width"], params["height"] = size
    if n != 1:
        params["n"] = n
    if progress:
        params["progress"] = True
    if partial:
        params["preview_every"] = max(1, math.ceil(params.get("num_inference_steps", steps) / (partial + 1)))
    return params


def told_quality(asked: ImageWish) -> str | None:
    """As an answer names it; None where it was left to the model."""
    return _TOLD.get(asked.quality or "auto", asked.quality)
