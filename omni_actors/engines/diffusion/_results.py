"""What a pipeline returned, as chunks: pictures, videos and sounds as plain tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from omni_actors.engines._generator import Chunk

from ._run import NotFinite

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["chunks", "sample_rate", "to_uint8"]

_PIECE = 1 << 18
"""Samples of sound in one chunk."""
_FPS = 8


def chunks(output: Any, meta: Mapping[str, Any], rate: int) -> Iterator[Chunk]:
    """The chunks of one sample. ``rate``: samples per second of its sound, if it makes any.

    Raises NotFinite for results that are no numbers, TypeError for what cannot be shown.
    """
    if (sounds := getattr(output, "audios", None)) is not None:
        yield from _sound(_floats(sounds[0]), {**meta, "sample_rate": rate})
    elif (films := getattr(output, "frames", None)) is not None:
        film = _picture(films[0])
        shape = {"frames": film.shape[0], "height": film.shape[1], "width": film.shape[2], "fps": meta.get("fps", _FPS)}
        yield Chunk(tensors={"video": film}, meta={**meta, **shape}, finished=True)
    else:
        yield from _pictures(output, meta)


def _pictures(output: Any, meta: Mapping[str, Any]) -> Iterator[Chunk]:
    found = getattr(output, "images", None)
    if found is None:
        found = output[0] if isinstance(output, tuple) else None
    if found is None or not len(found):
        raise TypeError(f"the pipeline returned {type(output).__name__}, in which there is no picture, film or sound")
    for number, each in enumerate(found):
        picture = _picture(each)
        size = {"height": picture.shape[0], "width": picture.shape[1]}
        yield Chunk(tensors={"image": picture}, meta={**meta, **size}, finished=number == len(found) - 1)


def _sound(samples: np.ndarray[Any, Any], meta: Mapping[str, Any]) -> Iterator[Chunk]:
    """Mono; channels are mixed down."""
    mono = samples.mean(axis=0) if samples.ndim == 2 else samples
    for begin in range(0, max(1, len(mono)), _PIECE):
        yield Chunk(tensors={"audio": mono[begin : begin + _PIECE]}, meta=meta, finished=begin + _PIECE >= len(mono))


def _picture(value: Any) -> np.ndarray[Any, Any]:
    """uint8, shape (…, height, width, 3), of floats in [0, 1] or of PIL's pictures."""
    if isinstance(value, list):
        return np.stack([_picture(each) for each in value])
    array = np.asarray(value)
    if array.dtype != np.uint8:
        array = to_uint8(_floats(array))
    if array.ndim == 2:
        array = array[..., None]
    return np.repeat(array, 3, axis=-1) if array.shape[-1] == 1 else array[..., :3]


def to_uint8(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Floats in [0, 1] as diffusers makes pictures of them."""
    return (array.clip(0.0, 1.0) * 255).round().astype(np.uint8)


def _floats(value: Any) -> np.ndarray[Any, Any]:
    array = np.asarray(value.float().cpu() if hasattr(value, "cpu") else value, dtype=np.float32)
    if not np.isfinite(array).all():
        raise NotFinite("the result is not finite: the model made no numbers of it")
    return array


def sample_rate(pipeline: Any) -> int:
    """Samples per second of a pipeline's sound, as its parts tell."""
    for name, field in (("vae", "sampling_rate"), ("vocoder", "sampling_rate"), ("vae", "sample_rate")):
        part = getattr(pipeline, name, None)
        rate = getattr(getattr(part, "config", None), field, None) or getattr(part, field, None)
        if isinstance(rate, int):
            return rate
    return 16_000
