"""The keys and values that a thinker hands to its diffusion stage (BAGEL), out of the CPU kernels' own layout.

vLLM's CPU attention keeps the keys and values of a block in tiles whose order depends on the instruction set; vLLM-Omni
sends plain ``[token, head, dim]``. We ask no table for the order: known numbers go through the kernel that fills the
cache, and where they come out is the order.
"""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import torch
from vllm import _custom_ops as ops
from vllm.v1.attention.backends.cpu_attn import _get_attn_isa

__all__ = ["plain_blocks", "send_plain"]


def send_plain(manager: Any) -> None:
    """Make one OmniKVTransferManager extract plain blocks."""
    manager._extract_kv_cache = partial(_extract, manager._extract_kv_cache)


def _extract(
    original: Any, req_id: str, block_ids: list[int], seq_len: int, kv_caches: list[Any], *args: Any, **options: Any
) -> Any:
    """Only the request's blocks are put in order, so from here on they are numbered from 0."""
    blocks = [block for block in block_ids if 0 <= block < kv_caches[0].shape[0]]
    layers = [plain_blocks(layer, blocks) for layer in kv_caches]
    return original(req_id, list(range(len(blocks))), seq_len, layers, *args, **options)


def plain_blocks(layer: torch.Tensor, blocks: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values, each ``[block, token, head, dim]``, of one layer's cache ``[block, head, token, 2 dim]``."""
    _, heads, tokens, width = layer.shape
    dim = width // 2
    halves = layer[blocks].reshape(len(blocks), heads, 2, tokens * dim)
    orders = _orders(layer.dtype, tokens, dim)
    keys, values = (
        halves[:, :, i, order].view(-1, heads, tokens, dim).transpose(1, 2).contiguous()
        for i, order in enumerate(orders)
    )
    return keys, values


@cache
def _orders(dtype: torch.dtype, tokens: int, dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Of the keys and of the values of a block: where in it each element lies, token by token, then dim by dim."""
    assert max(tokens, dim) <= 256, "larger whole numbers are not exact in bfloat16"
    of_token, of_dim = torch.meshgrid(torch.arange(tokens), torch.arange(dim), indexing="ij")
    found = zip(_as_cached(of_token.to(dtype)), _as_cached(of_dim.to(dtype)), strict=True)
    keys, values = ((token * dim + place).argsort() for token, place in found)
    return keys, values


def _as_cached(numbers: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """What the kernel makes of ``[token, dim]`` numbers as the keys and as the values of one head's block, flat."""
    tokens, dim = numbers.shape
    rows = numbers.contiguous().view(tokens, 1, dim)
    keys, values = rows.new_full((1, 1, 2 * tokens, dim), -1).chunk(2, dim=2)
    isa = _get_attn_isa(numbers.dtype, tokens, dim)
    ops.cpu_attn_reshape_and_cache(rows, rows, keys, values, torch.arange(tokens), isa)
    return keys.reshape(-1).long(), values.reshape(-1).long()
