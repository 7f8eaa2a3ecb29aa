"""What a picture looks like before it is done: of latents, by the pipeline's own VAE, or of pixels as they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from omni_actors._errors import InvalidRequest

from ._results import to_uint8

if TYPE_CHECKING:
    import torch

    from ._run import Run

__all__ = ["Previews"]


class Previews:
    """Of one pipeline. A preview by a VAE costs one decoding of it."""

    def __init__(self, pipeline: Any) -> None:
        self._pipeline = pipeline
        self._vae: Any = getattr(pipeline, "vae", None)

    def check(self) -> None:
        """Raises InvalidRequest if this pipeline's latents cannot be shown."""
        if self._vae is not None and type(self._vae).__name__ != "AutoencoderKL":
            raise InvalidRequest(
                f"the latents of {type(self._pipeline).__name__} cannot be shown before the end: no previews"
            )

    def of(self, run: Run) -> Any:
        """uint8, shape (height, width, 3); None if the latents are no plane of colours (those of a film)."""
        latents = self._plane(run)
        if latents is None or latents.ndim != 4:
            return None
        image = latents[:1] if self._vae is None else self._decoded(latents[:1])
        if image is None or image.shape[1] not in (1, 3):
            return None
        array = to_uint8(((image[0] + 1) / 2).permute(1, 2, 0).float().cpu().numpy())
        return np.repeat(array, 3, axis=2) if array.shape[2] == 1 else array

    def _plane(self, run: Run) -> torch.Tensor | None:
        """The latents; those of Flux and its kin are a row of patches of 2 x 2, which their pipelines can unpack."""
        latents, unpack = run.latents, getattr(self._pipeline, "_unpack_latents", None)
        if latents is None or latents.ndim != 3 or unpack is None:
            return latents
        factor = self._pipeline.vae_scale_factor
        usual = self._pipeline.default_sample_size * factor
        height, width = (run.arguments.get(name) or usual for name in ("height", "width"))
        if (height // factor // 2) * (width // factor // 2) != latents.shape[1]:
            return None
        unpacked: torch.Tensor = unpack(latents[:1], height, width, factor)
        return unpacked

    def _decoded(self, latents: torch.Tensor) -> torch.Tensor | None:
        config = self._vae.config
        if latents.shape[1] != config.latent_channels:
            return None
        latents = latents / config.scaling_factor + (getattr(config, "shift_factor", None) or 0.0)
        image: torch.Tensor = self._vae.decode(latents.to(self._vae.dtype), return_dict=False)[0]
        return image
