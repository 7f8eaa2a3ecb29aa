"""vLLM-Omni's OmniRequestOutput as chunks of the omni stage wire."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from vllm_omni.distributed.omni_connectors.utils.serialization import OmniMsgpackEncoder

from omni_actors.engines.generation import Chunk

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["chunks"]

_MEDIA = ("images", "latents", "trajectory_latents", "trajectory_decoded", "_multimodal_output", "prompt")
"""What goes as tensors, or was the caller's own; the rest of the output goes with the last chunk."""


def chunks(output: Any, *, finished: bool) -> Iterator[Chunk]:
    """One for each picture, then one for all else; that one ends the item if it is ``finished``."""
    for picture in output.images:
        yield Chunk(tensors={"image": _array(picture)})
    media = dict(output._multimodal_output)
    tensors = {name: _array(value) for name, value in media.items() if _is_tensor(value)}
    if output.latents is not None:
        tensors["latents"] = _array(output.latents)
    meta: dict[str, Any] = {"omni_output": OmniMsgpackEncoder().encode(_bare(output))}
    if (text := media.get("text")) is not None:
        meta["text"] = str(text)
    if (rate := _sample_rate(media)) is not None:
        meta["sample_rate"] = rate
    yield Chunk(tensors=tensors, meta=meta, finished=finished)


def _bare(output: Any) -> Any:
    """The output without what travels beside it."""
    bare = copy.copy(output)
    empty = type(output)()
    for name in _MEDIA:
        setattr(bare, name, getattr(empty, name))
    return bare


def _is_tensor(value: Any) -> bool:
    return isinstance(value, np.ndarray | torch.Tensor)


def _array(value: Any) -> np.ndarray[Any, Any]:
    """A picture (PIL's, or an array) or a tensor. bfloat16 becomes float32."""
    if isinstance(value, torch.Tensor):
        plain = value.detach().cpu()
        value = (plain.float() if plain.dtype == torch.bfloat16 else plain).numpy()
    return np.asarray(value)


def _sample_rate(media: Mapping[str, Any]) -> int | None:
    for name in ("audio_sample_rate", "sample_rate", "sr"):
        if (rate := media.get(name)) is not None:
            return int(rate)
    return None
