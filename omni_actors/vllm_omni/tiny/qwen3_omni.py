"""Qwen3-Omni, tiny: a thinker and a talker of mixed experts, a predictor of residual codes, a vocoder. 57 MB."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from transformers import Qwen3OmniMoeConfig, Qwen3OmniMoeForConditionalGeneration

from ._parts import LAYERS, mrope, numbered_tokenizer, preprocessor, tame_decoder, write_json

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["VOCABULARY", "make", "tokenizer"]

VOCABULARY = 152064
_HEAD = {"head_dim": 32}
_ROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "decoder_sparse_step": 1}
_SPECIAL = {
    151643: "<|endoftext|>",
    151644: "<|im_start|>",
    151645: "<|im_end|>",
    151652: "<|vision_start|>",
    151653: "<|vision_end|>",
    151655: "<|image_pad|>",
    151656: "<|video_pad|>",
    151669: "<|audio_start|>",
    151670: "<|audio_end|>",
    151671: "<tts_pad>",
    151672: "<tts_text_bos>",
    151673: "<tts_text_eod>",
    151674: "<tts_text_bos_single>",
    151675: "<|audio_pad|>",
}
_WORDS = {872: "user", 8948: "system", 77091: "assistant"}
_NAMES = {
    "image_token": "<|image_pad|>",
    "audio_token": "<|audio_pad|>",
    "video_token": "<|video_pad|>",
    "vision_bos_token": "<|vision_start|>",
    "vision_eos_token": "<|vision_end|>",
    "audio_bos_token": "<|audio_start|>",
    "audio_eos_token": "<|audio_end|>",
}
_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "<|im_start|>assistant\n"
)


def make(folder: Path) -> None:
    """Write the checkpoint, in bfloat16: configuration, weights, tokenizer and preprocessor."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Qwen3OmniMoeForConditionalGeneration(_config())
        _fill(model)
        vocoder = model.code2wav
        tame_decoder(vocoder, vocoder.decoder, codebook=2048, groups=16)
    model.to(torch.bfloat16).save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    write_json(folder / "preprocessor_config.json", _preprocessor())


def _fill(model: torch.nn.Module) -> None:
    """The talker's experts, which transformers leaves unset, and larger embeddings, or all codes would sound alike."""
    for name, parameter in model.talker.named_parameters():
        if ".experts." in name:
            torch.nn.init.normal_(parameter, std=0.02)
    for module in model.code2wav.modules():
        if isinstance(module, torch.nn.Embedding):
            torch.nn.init.normal_(module.weight)


def tokenizer() -> Any:
    """Bytes, and the real model's numbers of what its chat template writes: vLLM-Omni has several as plain numbers."""
    return numbered_tokenizer(VOCABULARY, _SPECIAL, _WORDS, _NAMES, "<|im_end|>", _TEMPLATE)


def _preprocessor() -> dict[str, Any]:
    return preprocessor(
        "Qwen3OmniMoeProcessor",
        image_processor_type="Qwen2VLImageProcessorFast",
        patch_size=16,
        size={"shortest_edge": 56 * 56, "longest_edge": 12845056},
        image_mean=[0.5, 0.5, 0.5],
        image_std=[0.5, 0.5, 0.5],
    )


def _config() -> Qwen3OmniMoeConfig:
    return Qwen3OmniMoeConfig(
        thinker_config=_thinker(),
        talker_config=_talker(),
        code2wav_config={
            "hidden_size": 64,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
            "decoder_dim": 64,
            "sliding_window": 72,
            "max_position_embeddings": 8000,
            **_ROPE,
        },
    )


def _positions() -> dict[str, Any]:
    """Interleaved, under both names again."""
    return mrope(mrope_interleaved=True, interleaved=True)


def _thinker() -> dict[str, Any]:
    return {
        "image_token_id": 151655,
        "video_token_id": 151656,
        "audio_token_id": 151675,
        "vision_start_token_id": 151652,
        "vision_end_token_id": 151653,
        "audio_start_token_id": 151669,
        "audio_end_token_id": 151670,
        "text_config": {"vocab_size": VOCABULARY, **LAYERS, **_HEAD, **_positions(), **_EXPERTS},
        "vision_config": {
            "depth": 2,
            "hidden_size": 64,
            "intermediate_size": 64,
            "num_heads": 2,
            "out_hidden_size": 64,
            "deepstack_visual_indexes": [0],
            "image_size": 768,
            "num_position_embeddings": (768 // 16) ** 2,
            "apply_vit_abs_pos_embed": True,
            "tokens_per_second": 2,
        },
        "audio_config": {
            "encoder_layers": 1,
            "encoder_attention_heads": 2,
            "encoder_ffn_dim": 64,
            "d_model": 64,
            "output_dim": 64,
            "downsample_hidden_size": 32,
        },
    }


def _talker() -> dict[str, Any]:
    return {
        "num_code_groups": 16,
        "spatial_merge_size": 2,
        "thinker_hidden_size": 64,
        "accept_hidden_layer": 1,
        "audio_token_id": 151675,
        "audio_start_token_id": 151669,
        "speaker_id": {"chelsie": 2301, "ethan": 2302, "aiden": 2303},
        "code_predictor_config": {"vocab_size": 2048, "num_code_groups": 16, **LAYERS, **_HEAD, **_ROPE},
        "text_config": {
            "vocab_size": 4224,
            "shared_expert_intermediate_size": 64,
            **LAYERS,
            **_HEAD,
            **_positions(),
            **_EXPERTS,
        },
    }
