"""GLM-Image, tiny: a language model that writes the codes of a picture, and the diffusion that paints it. 38 MB.

One folder for each part, as diffusers has them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from diffusers import AutoencoderKL, FlowMatchEulerDiscreteScheduler, GlmImageTransformer2DModel
from transformers import (
    ByT5Tokenizer,
    GlmImageConfig,
    GlmImageForConditionalGeneration,
    PreTrainedTokenizerFast,
    T5Config,
    T5EncoderModel,
)

from ._parts import LAYERS, mrope, numbered_tokenizer, save_pipeline, write_json

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["make"]

VOCABULARY, CODES, CODEBOOK = 168064, 16512, 16384
"""Of text and codes together; of what may be written, codes and their ends; of the codes."""
CHANNELS, READ = 4, 32
"""Of a latent; of what reads the text that is to be in the picture."""
_SPECIAL = {
    16384: "<|dit_token_16384|>",
    16385: "<|dit_token_16385|>",
    167841: "<|endoftext|>",
    167845: "<sop>",
    167846: "<eop>",
    167855: "<|image|>",
}
_NAMES = {"image_token": "<|image|>", "grid_bos_token": "<sop>", "grid_eos_token": "<eop>"}
_TEMPLATE = "{% for m in messages %}{{ m['content'] }}{% endfor %}"


def make(folder: Path) -> None:
    """Write the checkpoint, in bfloat16."""
    tokenizer = _tokenizer()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        parts = {
            "vision_language_encoder": _writer(),
            "text_encoder": T5EncoderModel(T5Config(**_READER)),
            "vae": AutoencoderKL(**_AUTOENCODER),
            "transformer": _painter(),
        }
    parts = {name: part.to(torch.bfloat16) for name, part in parts.items()}
    scheduler = FlowMatchEulerDiscreteScheduler(**_SCHEDULER)
    save_pipeline(folder, "GlmImagePipeline", {**parts, "tokenizer": ByT5Tokenizer(), "scheduler": scheduler})
    for place in ("processor", "vision_language_encoder"):
        tokenizer.save_pretrained(folder / place)
    write_json(folder / "processor" / "preprocessor_config.json", _PREPROCESSOR)


def _tokenizer() -> PreTrainedTokenizerFast:
    """Codes first, text above them: vLLM-Omni has several of the numbers in its code."""
    tokenizer = numbered_tokenizer(VOCABULARY, _SPECIAL, {}, _NAMES, _SPECIAL[16385], _TEMPLATE, first_byte=20000)
    tokenizer.bos_token = _SPECIAL[16384]
    return tokenizer


def _writer() -> GlmImageForConditionalGeneration:
    """The weights of its head are made larger, or every code would be as likely as any other."""
    config = GlmImageConfig(
        text_config={
            "vocab_size": VOCABULARY,
            "vision_vocab_size": CODES,
            **LAYERS,
            **mrope(partial_rotary_factor=1.0),
        },
        vision_config={
            "depth": 1,
            "hidden_size": 64,
            "intermediate_size": 64,
            "num_heads": 2,
            "image_size": 256,
            "patch_size": 16,
        },
        vq_config={"embed_dim": 32, "num_embeddings": CODEBOOK, "latent_channels": 64},
        architectures=["GlmImageForConditionalGeneration"],
    )
    model = GlmImageForConditionalGeneration(config)
    model.lm_head.weight.data.mul_(20)
    return model


def _painter() -> GlmImageTransformer2DModel:
    """What diffusers starts as zeros is filled, and attention counts for more, or text would hardly be seen."""
    model = GlmImageTransformer2DModel(**_TRANSFORMER)
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1 and not parameter.any():
            torch.nn.init.normal_(parameter, std=0.05)
        if "to_v" in name or "to_out" in name:
            parameter.data.mul_(4)
    return model


_PREPROCESSOR: dict[str, Any] = {
    "image_processor_type": "GlmImageImageProcessor",
    "processor_class": "GlmImageProcessor",
    "patch_size": 16,
    "temporal_patch_size": 1,
    "merge_size": 1,
    "size": {"shortest_edge": 1024, "longest_edge": 16384},
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
}
_READER: dict[str, Any] = {
    "vocab_size": 384,
    "d_model": READ,
    "d_kv": 16,
    "d_ff": 64,
    "num_layers": 1,
    "num_heads": 2,
    "feed_forward_proj": "gated-gelu",
    "tie_word_embeddings": False,
}
_AUTOENCODER: dict[str, Any] = {
    "down_block_types": ["DownEncoderBlock2D"] * 4,
    "up_block_types": ["UpDecoderBlock2D"] * 4,
    "block_out_channels": [8] * 4,
    "layers_per_block": 1,
    "norm_num_groups": 4,
    "latent_channels": CHANNELS,
    "latents_mean": [0.0] * CHANNELS,
    "latents_std": [1.0] * CHANNELS,
    "use_quant_conv": False,
    "use_post_quant_conv": False,
    "force_upcast": False,
}
_TRANSFORMER: dict[str, Any] = {
    "patch_size": 2,
    "in_channels": CHANNELS,
    "out_channels": CHANNELS,
    "num_layers": 2,
    "num_attention_heads": 2,
    "attention_head_dim": 32,
    "text_embed_dim": READ,
    "time_embed_dim": 32,
    "condition_dim": 16,
    "prior_vq_quantizer_codebook_size": CODES,
}
_SCHEDULER: dict[str, Any] = {
    "use_dynamic_shifting": True,
    "base_shift": 0.25,
    "max_shift": 0.75,
    "base_image_seq_len": 256,
    "max_image_seq_len": 4096,
    "time_shift_type": "linear",
}
