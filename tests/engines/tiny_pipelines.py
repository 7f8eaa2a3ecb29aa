"""Diffusers pipelines small enough for a test: real classes, random weights, saved as folders.

Nothing is downloaded: the tokenizer's vocabulary is made here.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch

__all__ = ["stable_diffusion"]

_LETTERS = [*"abcdefghijklmnopqrstuvwxyz0123456789 ,.!?'"]


def _tokenizer(folder: Path, length: int = 77):
    """CLIP's, with letters for words."""
    from transformers import CLIPTokenizer

    folder.mkdir(parents=True, exist_ok=True)
    words = [*_LETTERS, *(f"{letter}</w>" for letter in _LETTERS), "<|startoftext|>", "<|endoftext|>"]
    (folder / "vocab.json").write_text(json.dumps({word: number for number, word in enumerate(words)}))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    return CLIPTokenizer(
        str(folder / "vocab.json"), str(folder / "merges.txt"), model_max_length=length, pad_token="<|endoftext|>"
    )


def _text_encoder(vocabulary: int):
    from transformers import CLIPTextConfig, CLIPTextModel

    torch.manual_seed(1)
    return CLIPTextModel(
        CLIPTextConfig(
            vocab_size=vocabulary,
            hidden_size=32,
            intermediate_size=37,
            num_hidden_layers=2,
            num_attention_heads=4,
            max_position_embeddings=77,
            bos_token_id=0,
            eos_token_id=vocabulary - 1,
            pad_token_id=vocabulary - 1,
        )
    ).eval()


def _vae():
    from diffusers import AutoencoderKL

    torch.manual_seed(2)
    return AutoencoderKL(
        block_out_channels=(16, 16), in_channels=3, out_channels=3, latent_channels=4, norm_num_groups=8,
        down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2,
    ).eval()  # fmt: skip


def _unet():
    from diffusers import UNet2DConditionModel

    torch.manual_seed(3)
    return UNet2DConditionModel(
        block_out_channels=(16, 32), layers_per_block=1, sample_size=16, in_channels=4, out_channels=4,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"), up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=32, attention_head_dim=8, norm_num_groups=8,
    ).eval()  # fmt: skip


def stable_diffusion(folder: Path) -> Path:
    """A text-to-image pipeline of 32 x 32 pixels, latents of 16 x 16."""
    from diffusers import DDIMScheduler, StableDiffusionPipeline

    tokenizer = _tokenizer(folder / "tokenizer")
    pipeline = StableDiffusionPipeline(
        tokenizer=tokenizer,
        text_encoder=_text_encoder(len(tokenizer)),
        vae=_vae(),
        unet=_unet(),
        scheduler=DDIMScheduler(
            beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear", clip_sample=False, steps_offset=1
        ),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )
    pipeline.save_pretrained(folder)
    return folder
