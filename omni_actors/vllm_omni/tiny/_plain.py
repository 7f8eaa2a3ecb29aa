"""vLLM's Qwen3 as a model of vLLM-Omni, whose runners give every model more arguments than vLLM's models take."""

from __future__ import annotations

from typing import Any

from vllm.model_executor.models.qwen3 import Qwen3ForCausalLM

__all__ = ["PlainQwen3"]


class PlainQwen3(Qwen3ForCausalLM):  # type: ignore[misc]  # vLLM is not followed by mypy
    """Qwen3 that ignores what it does not know."""

    def forward(
        self,
        input_ids: Any,
        positions: Any,
        intermediate_tensors: Any = None,
        inputs_embeds: Any = None,
        **_unknown: Any,
    ) -> Any:
        return super().forward(input_ids, positions, intermediate_tensors, inputs_embeds)
