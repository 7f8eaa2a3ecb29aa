"""Qwen-Image, tiny: a language model that reads the prompt, a transformer that takes the noise away, a decoder. 3 MB.

One folder for each part, as diffusers has them; there is no stage but the diffusion itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from diffusers import AutoencoderKLQwenImage, FlowMatchEulerDiscreteScheduler, QwenImageTransformer2DModel
from transformers import PreTrainedTokenizerFast, Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

from ._parts import LAYERS, byte_tokenizer, mrope, save_pipeline

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["make"]

CHANNELS = 4
"""Of a latent; the transformer takes patches of 2 by 2."""
_NAMES = {
    "image_token": "<|image_pad|>",
    "video_token": "<|video_pad|>",
    "vision_bos_token": "<|vision_start|>",
    "vision_eos_token": "<|vision_end|>",
    "turn_bos_token": "<|im_start|>",
    "turn_eos_token": "<|im_end|>",
}


def make(folder: Path) -> None:
    """Write the checkpoint, in float32."""
    tokenizer = byte_tokenizer(_NAMES)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        parts = {
            "text_encoder": Qwen2_5_VLForConditionalGeneration(_reader(tokenizer)).to(torch.float32),
            "vae": AutoencoderKLQwenImage(**_AUTOENCODER),
            "transformer": _painter(),
        }
    scheduler = FlowMatchEulerDiscreteScheduler(**_SCHEDULER)
    save_pipeline(folder, "QwenImagePipeline", {**parts, "tokenizer": tokenizer, "scheduler": scheduler})


def _reader(tokenizer: PreTrainedTokenizerFast) -> Qwen2_5_VLConfig:
    numbers = {name: tokenizer.convert_tokens_to_ids(text) for name, text in _NAMES.items()}
    return Qwen2_5_VLConfig(
        text_config={"vocab_size": len(tokenizer), **LAYERS, **mrope()},
        vision_config={
            "depth": 1,
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_heads": 2,
            "out_hidden_size": LAYERS["hidden_size"],
            "fullatt_block_indexes": [0],
        },
        image_token_id=numbers["image_token"],
        video_token_id=numbers["video_token"],
        vision_start_token_id=numbers["vision_bos_token"],
        vision_end_token_id=numbers["vision_eos_token"],
    )


def _painter() -> QwenImageTransformer2DModel:
    """Its attention looks sharply and counts for more: as initialised, no word would move a pixel by more than 1."""
    model = QwenImageTransformer2DModel(**_TRANSFORMER)
    for name, parameter in model.named_parameters():
        if any(part in name for part in ("norm_q", "norm_k", "norm_added", "add_v_proj", "to_out", "to_add_out")):
            parameter.data.mul_(4)
    return model


_AUTOENCODER: dict[str, Any] = {
    "base_dim": 8,
    "z_dim": CHANNELS,
    "dim_mult": [1, 2, 2, 2],
    "num_res_blocks": 1,
    "attn_scales": [],
    "temperal_downsample": [False, True, True],
    "latents_mean": [0.0] * CHANNELS,
    "latents_std": [1.0] * CHANNELS,
}
_TRANSFORMER: dict[str, Any] = {
    "patch_size": 2,
    "in_channels": 4 * CHANNELS,
    "out_channels": CHANNELS,
    "num_layers": 2,
    "attention_head_dim": 32,
    "num_attention_heads": 2,
    "joint_attention_dim": LAYERS["hidden_size"],
    "axes_dims_rope": (8, 12, 12),
}
_SCHEDULER: dict[str, Any] = {
    "shift": 1.0,
    "use_dynamic_shifting": True,
    "base_shift": 0.5,
    "max_shift": 0.9,
    "base_image_seq_len": 256,
    "max_image_seq_len": 8192,
    "shift_terminal": 0.02,
    "time_shift_type": "exponential",
}
