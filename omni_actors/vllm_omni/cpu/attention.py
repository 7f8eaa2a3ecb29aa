"""Attention of diffusion models: vLLM-Omni has a branch for each vendor, and none for a platform of somebody else's."""

from __future__ import annotations

from typing import Any

from vllm_omni.diffusion.attention.backends.abstract import AttentionImpl

__all__ = ["send_to_sdpa"]


def send_to_sdpa() -> None:
    """From now on every attention of this process runs its CUDA branch; that of SDPA is plain torch.

    Changed on the base class: beside the platform's choice, models make SDPA implementations by themselves.
    """
    AttentionImpl.forward = _forward


def _forward(self: Any, query: Any, key: Any, value: Any, attn_metadata: Any = None) -> Any:
    return self.forward_cuda(query, key, value, attn_metadata)
