"""``POST /v1/images/generations`` and ``/v1/images/edits``: what the stages that paint make of a prompt.

Where a stage stands before the painter, the prompt is that one's question. Whole, the answer has every picture; as a
stream, ``image_generation.partial_image`` and ``….completed`` (``image_edit.…``) are the events, and each step of the
work is a comment in it, which readers of events pass over: ``: progress {"stage": …, "done": 5, "total": 30, …}``. An
error before the first of them has its own status; one after is the last event.
"""

from __future__ import annotations

import asyncio
import base64
import time
from typing import TYPE_CHECKING, Any

import attrs

from omni_actors import Kind, Output
from omni_actors.lifecycle.events import StepChunk

from ._body import plain
from ._door import Door
from ._forms import MultipartForm, read_form
from ._http import SSE
from ._images_asked import EditBody, ImageBody, painting, read_asked, told_quality
from ._media import check_image
from ._pictures import decoded_mask, decoded_picture, encoded_picture
from ._refusals import HttpError

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np

    from omni_actors import Terminal

    from ._http import Exchange

__all__ = ["Edits", "Generations", "note_step"]

_IMAGES = ("image", "image[]")
MAX_IMAGES = 16


@attrs.frozen
class Generations:
    """The route. ``X-Request-Id`` is what an abort takes."""

    door: Door

    async def __call__(self, exchange: Exchange) -> None:
        fields = plain(await exchange.body(self.door.limits.body_bytes))
        asked = read_asked(ImageBody, fields, self.door.limits)
        await exchange.unless_gone(_paint(self.door, asked, asked.prompt, "image_generation", exchange))


@attrs.frozen
class Edits:
    """The route. The pictures go to the stage that paints as ``image`` (a list, if there are several), the mask as
    ``mask_image``: a pipeline that takes none says so.
    """

    door: Door

    async def __call__(self, exchange: Exchange) -> None:
        body = await exchange.body(self.door.limits.body_bytes)
        form = await read_form(body, exchange.headers.get("content-type", ""))
        asked = read_asked(EditBody, dict(form.fields), self.door.limits, strict=False)
        await exchange.unless_gone(self._edit(asked, form, exchange))

    async def _edit(self, asked: EditBody, form: MultipartForm, exchange: Exchange) -> None:
        if between := [stage.name for stage in self.door.painters if stage.inputs]:
            raise HttpError(400, f"stage {between[0]} paints what another stage says: it takes no image", param="image")
        pictures = await asyncio.to_thread(self._pictures, form)
        await _paint(self.door, asked, {"prompt": asked.prompt, **pictures}, "image_edit", exchange)

    def _pictures(self, form: MultipartForm) -> dict[str, Any]:
        if unknown := set(form.files) - {*_IMAGES, "mask"}:
            raise HttpError(400, f"Unknown parameter: '{min(unknown)[:200]}'.", param=min(unknown)[:200])
        raws, masks = [raw for name in _IMAGES for raw in form.files.get(name, ())], form.files.get("mask", ())
        if not 1 <= len(raws) <= MAX_IMAGES:
            raise HttpError(400, f"{len(raws)} images are there; it takes 1 to {MAX_IMAGES}, as files", param="image")
        if len(masks) > 1:
            raise HttpError(400, "there is more than one mask", param="mask")
        limits = self.door.limits
        for name, raw in [*(("image", raw) for raw in raws), *(("mask", raw) for raw in masks)]:
            check_image(raw, limits, name)
        images = [decoded_picture(raw, limits.image_pixels, "image") for raw in raws]
        made: dict[str, Any] = {"image": images if len(images) > 1 else images[0]}
        if masks:
            made["mask_image"] = _fitting(decoded_mask(masks[0], limits.image_pixels, "mask"), images[0])
        return made


def _fitting(mask: np.ndarray[Any, Any], image: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    if mask.shape != image.shape[:2]:
        height, width = mask.shape
        words = f"the mask is {width}x{height}, the first image {image.shape[1]}x{image.shape[0]}"
        raise HttpError(400, words, param="mask")
    return mask


async def _paint(door: Door, asked: ImageBody, prompt: Any, kind: str, exchange: Exchange) -> None:
    door.model(asked.model)
    if not door.painters:
        raise HttpError(400, "this pipeline makes no pictures")
    streamed, previews = bool(asked.stream), asked.partial_images or 0
    stream = door.omni.generate_omni(
        prompt,
        {
            stage.name: painting(asked, stage, n=asked.n or 1, progress=streamed, partial=previews)
            for stage in door.painters
        },
        request_id=exchange.request_id,
        modalities=["image"],
        timeout_s=door.limits.request_s,
    )
    canvas = _Events(asked, kind, exchange) if streamed else _Whole(asked, exchange)
    async with stream:
        async for output in stream:
            await canvas.take(output)
    if stream.terminal is None or stream.terminal.kind is not Kind.FINISHED:
        raise HttpError(409, "the request was aborted")
    await canvas.end(stream.terminal)


async def note_step(output: Output, exchange: Exchange) -> None:
    """A step, as a comment among the events."""
    step = output.payload
    assert isinstance(step, StepChunk)
    news = {"stage": output.stage, "part": output.part, "index": output.index}
    await exchange.comment("progress", news | {"done": step.done, "total": step.total, "eta_s": step.eta_s})


@attrs.frozen(order=False)
class _Picture:
    """One, encoded. ``place``: by part, then by sample."""

    place: tuple[int, int]
    data: str
    size: str
    seed: int | None


class _Canvas:
    """What both kinds of answer share."""

    def __init__(self, asked: ImageBody, exchange: Exchange) -> None:
        self._asked, self._exchange = asked, exchange
        self._created = int(time.time())

    async def _encoded(self, image: Any) -> str:
        data = await asyncio.to_thread(encoded_picture, image, self._asked.form, self._asked.output_compression)
        return base64.b64encode(data).decode()

    async def _picture(self, output: Output) -> _Picture:
        meta: Mapping[str, Any] = output.payload.meta  # type: ignore[union-attr]  # it has an image
        data = await self._encoded(output.image)
        return _Picture((output.part, output.index), data, _size_of(output.image), meta.get("seed"))


class _Whole(_Canvas):
    def __init__(self, asked: ImageBody, exchange: Exchange) -> None:
        super().__init__(asked, exchange)
        self._made: list[_Picture] = []

    async def take(self, output: Output) -> None:
        if output.image is not None:
            self._made.append(await self._picture(output))

    async def end(self, terminal: Terminal) -> None:
        made = sorted(self._made, key=lambda picture: picture.place)
        if not made:
            raise _nothing()
        answer = {
            "created": self._created,
            "background": "opaque",
            "data": [{"b64_json": picture.data, "seed": picture.seed} for picture in made],
            "output_format": self._asked.form,
            "quality": told_quality(self._asked),
            "size": made[0].size,
            "usage": _usage(terminal),
        }
        await self._exchange.json(answer, headers={"cache-control": "no-store"})


class _Events(_Canvas):
    """The first n - 1 pictures leave at once. One that may be the last waits for the next, or for the request's end,
    which mostly follows at once: its event says the usage.
    """

    def __init__(self, asked: ImageBody, kind: str, exchange: Exchange) -> None:
        super().__init__(asked, exchange)
        self._kind = kind
        self._shown: dict[tuple[int, int], int] = {}
        self._count = 0
        self._made: _Picture | None = None

    async def take(self, output: Output) -> None:
        if not self._exchange.started:
            await self._exchange.begin(SSE, headers={"cache-control": "no-store", "x-accel-buffering": "no"})
        if isinstance(output.payload, StepChunk):
            await note_step(output, self._exchange)
            if output.payload.preview is not None:
                await self._preview(output, output.payload.preview)
        elif output.image is not None:
            await self._completed(None)
            self._made, self._count = await self._picture(output), self._count + 1
            if self._count < (self._asked.n or 1):
                await self._completed(None)

    async def _preview(self, output: Output, preview: Any) -> None:
        """At most as many as were asked for: how many steps there are is the model's to know."""
        place = (output.part, output.index)
        number = self._shown.get(place, 0)
        if number >= (self._asked.partial_images or 0):
            return
        self._shown[place] = number + 1
        body = {"partial_image_index": number, "b64_json": await self._encoded(preview), "size": _size_of(preview)}
        await self._event("partial_image", place, body)

    async def _completed(self, terminal: Terminal | None) -> None:
        made, self._made = self._made, None
        if made is None:
            return
        body = {"b64_json": made.data, "size": made.size, "seed": made.seed, "usage": _usage(terminal)}
        await self._event("completed", made.place, body)

    async def _event(self, name: str, place: tuple[int, int], body: dict[str, Any]) -> None:
        common = {
            "type": f"{self._kind}.{name}",
            "created_at": self._created,
            "background": "opaque",
            "output_format": self._asked.form,
            "quality": told_quality(self._asked) or "auto",
            "part": place[0],
            "index": place[1],
        }
        await self._exchange.event(common | body)

    async def end(self, terminal: Terminal) -> None:
        if not self._count:
            raise _nothing()
        await self._completed(terminal)
        await self._exchange.end()


def _size_of(image: Any) -> str:
    height, width = image.shape[:2]
    return f"{width}x{height}"


def _usage(terminal: Terminal | None) -> dict[str, Any]:
    """Tokens of the language models on the way, once they are all counted. A painter has none."""
    if terminal is None:
        asked = made = 0
    else:
        asked, made = terminal.prompt_tokens, sum(len(r.token_ids) for rs in terminal.results.values() for r in rs)
    return {
        "input_tokens": asked,
        "input_tokens_details": {"text_tokens": asked, "image_tokens": 0},
        "output_tokens": made,
        "output_tokens_details": {"text_tokens": made, "image_tokens": 0},
        "total_tokens": asked + made,
    }


def _nothing() -> HttpError:
    return HttpError(400, "the pipeline has painted nothing for this prompt", param="prompt")
