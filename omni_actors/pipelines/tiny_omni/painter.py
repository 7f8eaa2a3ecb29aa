"""The painter: a number becomes a picture of handwritten digits, by a class-conditional diffusion model.

A diffusers pipeline like any other: ``DigitPainter.from_pretrained(folder)`` works without the rest of omni_actors. In
tiny-omni a DiffusionEngine hosts it, and only its process imports this module, for it needs torch and diffusers.
Each digit is a tile of 8 by 8 pixels with noise of its own, so one digit does not depend on its neighbours; all tiles
of a number, and their unguided twins, are one batch of the model. Owns its two components and no other state.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from diffusers import DDIMScheduler, DiffusionPipeline, ImagePipelineOutput
from diffusers.image_processor import VaeImageProcessor
from diffusers.utils.torch_utils import randn_tensor
from torch.nn import functional

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["ANY_DIGIT", "MARGIN", "MAX_DIGITS", "SCALE", "TILE", "DigitPainter"]

ANY_DIGIT = 10
"""The label of a digit of no certain kind: what guidance leads away from, and what an unknown number is painted as."""

TILE, MARGIN, SCALE = 8, 1, 16
"""Pixels of a tile's side, of the paper around it, and how many of the picture's pixels one of those becomes."""

MAX_DIGITS = 4


class DigitPainter(DiffusionPipeline):  # type: ignore[misc]  # diffusers is not followed by mypy
    """Paints numbers of one to four digits, dark on white.

    ``unet``: a UNet2DModel of one channel, 8 by 8, with 11 classes: the digits, and ANY_DIGIT. ``scheduler``: a
    DDIMScheduler, or any other of diffusers' whose steps take no further arguments.
    """

    def __init__(self, unet: Any, scheduler: DDIMScheduler) -> None:
        super().__init__()
        self.register_modules(unet=unet, scheduler=scheduler)

    def __call__(
        self,
        number: int | Sequence[int] | None = None,
        num_inference_steps: int = 10,
        guidance_scale: float = 2.0,
        generator: torch.Generator | None = None,
        output_type: str = "np",
        return_dict: bool = True,
    ) -> Any:
        """One picture of ``number``: its digits side by side, height 160, width 16 + 144 for each digit, RGB.

        ``number``: 0 to 9999, or its digits from the left; None is one digit of no certain kind. ``generator`` fixes
        the noise, each tile's drawn after its left neighbour's. ``guidance_scale``: 1 is none.
        ``output_type``: ``np`` (float32 in [0, 1], shape (1, height, width, 3)), ``pt`` or ``pil``.
        Returns an ImagePipelineOutput, or a tuple with the images in it if ``return_dict`` is false.
        Raises ValueError for a number, a number of steps or a guidance that cannot be.
        """
        labels = self._labels(number)
        if num_inference_steps < 1:
            raise ValueError(f"num_inference_steps is {num_inference_steps}: a picture takes at least one step")
        if not math.isfinite(guidance_scale):
            raise ValueError(f"guidance_scale is {guidance_scale}: it must be a finite number")
        with torch.no_grad():
            tiles = self._denoise(labels, num_inference_steps, guidance_scale, generator)
            image = _picture(tiles)
        images = VaeImageProcessor().postprocess(image, output_type, do_denormalize=[False])
        return ImagePipelineOutput(images=images) if return_dict else (images,)

    def _labels(self, number: int | Sequence[int] | None) -> torch.Tensor:
        """The number's tiles, then as many unlabelled ones: shape (2 digits,)."""
        digits = [ANY_DIGIT] if number is None else _digits(number)
        return torch.tensor([*digits, *[ANY_DIGIT] * len(digits)], device=self._execution_device)

    def _denoise(
        self, labels: torch.Tensor, steps: int, guidance_scale: float, generator: torch.Generator | None
    ) -> torch.Tensor:
        """The tiles, shape (digits, 1, 8, 8), paper -1 and ink 1."""
        noise = [self._noise(generator) for _ in range(len(labels) // 2)]
        self.scheduler.set_timesteps(steps, device=self._execution_device)
        sample = torch.cat(noise) * self.scheduler.init_noise_sigma
        for time in self.scheduler.timesteps:
            both = self.scheduler.scale_model_input(torch.cat([sample, sample]), time)
            guess, unguided = self.unet(both, time, class_labels=labels, return_dict=False)[0].chunk(2)
            guess = unguided + guidance_scale * (guess - unguided)
            sample = self.scheduler.step(guess, time, sample, return_dict=False)[0]
        return sample

    def _noise(self, generator: torch.Generator | None) -> torch.Tensor:
        shape = (1, 1, TILE, TILE)
        return randn_tensor(shape, generator=generator, device=self._execution_device, dtype=self.unet.dtype)


def _digits(number: int | Sequence[int]) -> list[int]:
    digits = [int(digit) for digit in str(number)] if isinstance(number, int) and number >= 0 else number
    if isinstance(digits, int) or not 1 <= len(digits) <= MAX_DIGITS:
        raise ValueError(f"the painter paints numbers of 1 to {MAX_DIGITS} digits, not {number!r}")
    if wrong := [digit for digit in digits if digit not in range(10)]:
        raise ValueError(f"no such digit: {wrong[0]!r}")
    return [int(digit) for digit in digits]


def _picture(tiles: torch.Tensor) -> torch.Tensor:
    """Tiles with paper around and between them, enlarged: shape (1, 3, height, width), in [0, 1], white 1."""
    ink = (tiles.float() / 2 + 0.5).clamp(0, 1)
    row = torch.cat(list(functional.pad(ink, (0, MARGIN, MARGIN, MARGIN))), dim=-1)
    paper = 1 - functional.pad(row, (MARGIN, 0))
    return functional.interpolate(paper[None], scale_factor=SCALE, mode="nearest").expand(1, 3, -1, -1)
