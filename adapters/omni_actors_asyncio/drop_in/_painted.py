"""What a diffusion stage has made, as vLLM-Omni's OmniRequestOutput: its pictures came before the rest of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from PIL import Image
from vllm_omni.distributed.omni_connectors.utils.serialization import OmniMsgpackDecoder

from omni_actors import TensorChunk

if TYPE_CHECKING:
    from omni_actors import Output

__all__ = ["Painted"]

_BARE = "omni_output"
"""In the ``meta`` of the chunk that ends one OmniRequestOutput: all of it that is no tensor."""


class Painted:
    """One stage's pictures and sounds that are not yet part of an output. Lives in the reader's thread."""

    def __init__(self) -> None:
        self._images: list[Image.Image] = []

    @staticmethod
    def is_of(output: Output) -> bool:
        """Whether this output is of a diffusion stage's making."""
        payload = output.payload
        return isinstance(payload, TensorChunk) and (_BARE in payload.meta or output.image is not None)

    def take(self, output: Output) -> Any:
        """vLLM-Omni's output, when it is whole; None before."""
        assert isinstance(output.payload, TensorChunk)
        if output.image is not None:
            self._images.append(Image.fromarray(output.image.numpy()))
        if (bare := output.payload.meta.get(_BARE)) is None:
            return None
        made = OmniMsgpackDecoder().decode(bare)
        made.images, self._images = self._images, []
        tensors = {name: torch.from_numpy(tensor.numpy().copy()) for name, tensor in output.payload.tensors.items()}
        made.latents = tensors.pop("latents", None)
        made._multimodal_output = {**made._multimodal_output, **tensors}
        return made
