"""CPUDiffusionWorker: vLLM-Omni's diffusion worker, with what its models leave to CUDA."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from vllm_omni.diffusion.worker.diffusion_worker import DiffusionWorker

from .attention import send_to_sdpa
from .deterministic import deterministic, take_means

__all__ = ["CPUDiffusionWorker"]

_BAGEL_METHODS = (
    "forward",
    "forward_cache_update_text",
    "forward_cache_update_vae",
    "forward_cache_update_vit",
    "generate_image",
    "generate_text",
)


class CPUDiffusionWorker(DiffusionWorker):  # type: ignore[misc]  # vLLM-Omni is not followed by mypy
    """See DiffusionWorker, which loads its model as it is made."""

    def __init__(self, *args: Any, **options: Any) -> None:
        send_to_sdpa()
        super().__init__(*args, **options)

    def load_model(self, *args: Any, **options: Any) -> None:
        if self.od_config.model_class_name == "BagelPipeline":
            _autocast_bagel()
        super().load_model(*args, **options)
        if deterministic():
            take_means(self.model_runner.pipeline)


@cache
def _autocast_bagel() -> None:
    """BAGEL mixes float32 and bfloat16 and leaves the casts to autocast, which its pipeline turns off on a CPU."""
    from vllm_omni.diffusion.models.bagel.bagel_transformer import Bagel

    for name in _BAGEL_METHODS:
        setattr(Bagel, name, torch.autocast("cpu", dtype=torch.bfloat16)(getattr(Bagel, name)))
