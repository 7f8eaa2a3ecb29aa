"""Qwen2.5-Omni, tiny: a thinker that sees and hears, a talker, and a vocoder (DiT and BigVGAN). 87 MB."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from transformers import Qwen2_5OmniConfig, Qwen2_5OmniForConditionalGeneration

from ._parts import LAYERS, byte_tokenizer, mrope, preprocessor, write_json

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["make"]

VOICES = ("Chelsie", "Ethan", "m02")
_NAMES = {
    "image_token": "<|IMAGE|>",
    "audio_token": "<|AUDIO|>",
    "video_token": "<|VIDEO|>",
    "vision_bos_token": "<|vision_bos|>",
    "vision_eos_token": "<|vision_eos|>",
    "audio_bos_token": "<|audio_bos|>",
    "audio_eos_token": "<|audio_eos|>",
}
_TEMPLATE = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant: "


def make(folder: Path) -> None:
    """Write the checkpoint: configuration, weights, tokenizer, preprocessor and voices."""
    tokenizer = byte_tokenizer(_NAMES, _TEMPLATE)
    numbers = {name: tokenizer.convert_tokens_to_ids(text) for name, text in _NAMES.items()}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Qwen2_5OmniForConditionalGeneration(_config(numbers)).to(torch.float32)
        voices = {voice: _voice() for voice in VOICES}
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    torch.save(voices, folder / "spk_dict.pt")
    write_json(folder / "preprocessor_config.json", preprocessor("Qwen2_5OmniProcessor"))


def _voice() -> dict[str, Any]:
    """A speaker as the vocoder takes one: an embedding, 60 frames of a mel spectrogram, the talker's first token."""
    return {"cond": torch.randn(1, 32), "ref_mel": torch.randn(1, 60, 80), "bos_token": 151870}


def _config(numbers: dict[str, int]) -> Qwen2_5OmniConfig:
    """Thinker and talker keep the vocabularies of the real model: vLLM-Omni has tokens of both as plain numbers."""
    tokens = {
        "image_token_index": numbers["image_token"],
        "audio_token_index": numbers["audio_token"],
        "video_token_index": numbers["video_token"],
        "vision_start_token_id": numbers["vision_bos_token"],
        "vision_end_token_id": numbers["vision_eos_token"],
        "audio_start_token_id": numbers["audio_bos_token"],
        "audio_end_token_id": numbers["audio_eos_token"],
    }
    return Qwen2_5OmniConfig(
        thinker_config={**_thinker(), **tokens},
        talker_config={"vocab_size": 8448, "embedding_size": 64, "head_dim": 32, **LAYERS, **mrope(), **tokens},
        token2wav_config={"dit_config": _dit(), "bigvgan_config": {"upsample_initial_channel": 64}},
    )


def _thinker() -> dict[str, Any]:
    return {
        "text_config": {"vocab_size": 152064, "tie_word_embeddings": False, **LAYERS, **mrope()},
        "vision_config": {
            "depth": 1,
            "hidden_size": 64,
            "intermediate_size": 64,
            "num_heads": 2,
            "out_hidden_size": 64,
            "fullatt_block_indexes": [0],
        },
        "audio_config": {
            "encoder_layers": 1,
            "encoder_attention_heads": 2,
            "encoder_ffn_dim": 64,
            "d_model": 64,
            "output_dim": 64,
        },
    }


def _dit() -> dict[str, Any]:
    return {
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "head_dim": 32,
        "emb_dim": 32,
        "ff_mult": 2,
        "look_ahead_layers": [0],
        "look_backward_layers": [1],
        "enc_emb_dim": 32,
        "enc_dim": 32,
        "enc_channels": [32, 32, 32, 32, 96],
        "enc_attention_channels": 16,
        "enc_se_channels": 16,
    }
