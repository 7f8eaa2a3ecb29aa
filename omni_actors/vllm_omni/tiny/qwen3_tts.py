"""Qwen3-TTS with custom voices, tiny: a talker with its predictor of residual codes, and a 12 Hz speech tokenizer.

vLLM-Omni has model code of its own for both, and transformers none for the talker: its weights are named here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save_file

from ._parts import LAYERS, tame_decoder, write_json
from .qwen3_omni import VOCABULARY, tokenizer

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["make"]

HIDDEN, INNER, DEPTH = LAYERS["hidden_size"], LAYERS["intermediate_size"], LAYERS["num_hidden_layers"]
HEADS, KV_HEADS, HEAD_DIM = LAYERS["num_attention_heads"], LAYERS["num_key_value_heads"], 32
CODES, CODEBOOK, GROUPS = 3072, 2048, 16
SAMPLES = 1920
"""Of 24 kHz a codec frame stands for: 12.5 frames a second."""
_LOUD = 20.0
"""So much larger are the weights of the heads, or every code would be as likely as any other."""

Weights = Iterator[tuple[str, torch.Tensor]]


def make(folder: Path) -> None:
    """Write the checkpoint: configurations, the talker in bfloat16, the speech tokenizer in float32, tokenizer."""
    speech = folder / "speech_tokenizer"
    speech.mkdir(parents=True, exist_ok=True)
    tokenizer().save_pretrained(folder)
    write_json(folder / "config.json", _config())
    write_json(speech / "config.json", _speech_config())
    for place in (folder, speech):
        write_json(place / "preprocessor_config.json", _PREPROCESSOR)
    write_json(folder / "generation_config.json", {"do_sample": True, "temperature": 0.9, "top_k": 50, "top_p": 1.0})
    with torch.random.fork_rng():
        torch.manual_seed(0)
        save_file(dict(_talker_weights()), folder / "model.safetensors", metadata={"format": "pt"})
        save_file(dict(_speech_weights(folder)), speech / "model.safetensors", metadata={"format": "pt"})


_PREPROCESSOR: dict[str, Any] = {
    "feature_extractor_type": "EncodecFeatureExtractor",
    "processor_class": "Qwen3TTSProcessor",
    "feature_size": 1,
    "sampling_rate": 24000,
    "padding_side": "left",
    "padding_value": 0.0,
    "return_attention_mask": True,
}


def _config() -> dict[str, Any]:
    """Token ids are those of the real model."""
    return {
        "architectures": ["Qwen3TTSForConditionalGeneration"],
        "model_type": "qwen3_tts",
        "tokenizer_type": "qwen3_tts_tokenizer_12hz",
        "tts_model_size": "0b6",
        "tts_model_type": "custom_voice",
        "im_start_token_id": 151644,
        "im_end_token_id": 151645,
        "assistant_token_id": 77091,
        "tts_pad_token_id": 151671,
        "tts_bos_token_id": 151672,
        "tts_eos_token_id": 151673,
        "speaker_encoder_config": {
            "enc_dim": HIDDEN,
            "sample_rate": 24000,
            "enc_channels": [32, 32, 32, 32, 96],
            "enc_attention_channels": 16,
            "enc_se_channels": 16,
        },
        "talker_config": _talker_config(),
    }


def _talker_config() -> dict[str, Any]:
    layers = {
        **LAYERS,
        "head_dim": HEAD_DIM,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000,
        "attention_bias": False,
        "num_code_groups": GROUPS,
    }
    rope = {"rope_type": "default", "type": "default", "mrope_section": [4, 6, 6], "interleaved": True}
    predictor = {
        **layers,
        "model_type": "qwen3_tts_talker_code_predictor",
        "vocab_size": CODEBOOK,
        "rope_scaling": None,
    }
    return {
        **layers,
        "architectures": ["Qwen3TTSTalkerForConditionalGeneration"],
        "model_type": "qwen3_tts_talker",
        "vocab_size": CODES,
        "text_vocab_size": VOCABULARY,
        "text_hidden_size": HIDDEN,
        "max_position_embeddings": 32768,
        "position_id_per_seconds": 13,
        "rope_scaling": rope,
        "codec_pad_id": 2148,
        "codec_bos_id": 2149,
        "codec_eos_token_id": 2150,
        "codec_think_id": 2154,
        "codec_nothink_id": 2155,
        "codec_think_bos_id": 2156,
        "codec_think_eos_id": 2157,
        "codec_language_id": {"chinese": 2055, "english": 2050},
        "spk_id": {"vivian": 3065, "ryan": 3061},
        "spk_is_dialect": {"vivian": False, "ryan": False},
        "code_predictor_config": predictor,
    }


def _talker_weights() -> Weights:
    talker, predictor = "talker.model", "talker.code_predictor.model"
    yield from _layers(talker)
    yield from _layers(predictor)
    yield f"{talker}.text_embedding.weight", _random(VOCABULARY, HIDDEN)
    yield f"{talker}.codec_embedding.weight", _random(CODES, HIDDEN)
    yield "talker.codec_head.weight", _LOUD * _random(CODES, HIDDEN)
    for name in ("linear_fc1", "linear_fc2"):
        yield f"talker.text_projection.{name}.weight", _random(HIDDEN, HIDDEN)
        yield f"talker.text_projection.{name}.bias", _random(HIDDEN)
    for group in range(GROUPS - 1):
        yield f"{predictor}.codec_embedding.{group}.weight", _random(CODEBOOK, HIDDEN)
        yield f"talker.code_predictor.lm_head.{group}.weight", _LOUD * _random(CODEBOOK, HIDDEN)


def _layers(model: str) -> Weights:
    """A Qwen3 decoder's, but for its embeddings."""
    queries, keys = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    linear = {
        "self_attn.q_proj": (queries, HIDDEN),
        "self_attn.k_proj": (keys, HIDDEN),
        "self_attn.v_proj": (keys, HIDDEN),
        "self_attn.o_proj": (HIDDEN, queries),
        "mlp.gate_proj": (INNER, HIDDEN),
        "mlp.up_proj": (INNER, HIDDEN),
        "mlp.down_proj": (HIDDEN, INNER),
    }
    norms = {
        "self_attn.q_norm": HEAD_DIM,
        "self_attn.k_norm": HEAD_DIM,
        "input_layernorm": HIDDEN,
        "post_attention_layernorm": HIDDEN,
    }
    for layer in range(DEPTH):
        for name, shape in linear.items():
            yield f"{model}.layers.{layer}.{name}.weight", _random(*shape)
        for name, size in norms.items():
            yield f"{model}.layers.{layer}.{name}.weight", torch.ones(size, dtype=torch.bfloat16)
    yield f"{model}.norm.weight", torch.ones(HIDDEN, dtype=torch.bfloat16)


def _random(*shape: int) -> torch.Tensor:
    return (0.05 * torch.randn(shape)).to(torch.bfloat16)


def _speech_config() -> dict[str, Any]:
    return {
        "architectures": ["Qwen3TTSTokenizerV2Model"],
        "model_type": "qwen3_tts_tokenizer_12hz",
        "encoder_config": _encoder_config(),
        "decoder_config": _decoder_config(),
        "encoder_valid_num_quantizers": GROUPS,
        "input_sample_rate": 24000,
        "output_sample_rate": 24000,
        "decode_upsample_rate": SAMPLES,
        "encode_downsample_rate": SAMPLES,
    }


_TRANSFORMER: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "num_quantizers": GROUPS,
    "num_semantic_quantizers": 1,
    "codebook_size": CODEBOOK,
    "codebook_dim": 64,
}


def _encoder_config() -> dict[str, Any]:
    """Mimi's: 960 of the samples by convolutions, twice that by the frame rate."""
    return {
        **_TRANSFORMER,
        "num_hidden_layers": 1,
        "num_filters": 8,
        "vector_quantization_hidden_dimension": 64,
        "upsampling_ratios": [8, 6, 5, 4],
        "upsample_groups": 64,
        "frame_rate": 12.5,
        "sampling_rate": 24000,
        "sliding_window": 250,
        "use_causal_conv": True,
    }


def _decoder_config() -> dict[str, Any]:
    """The two products of rates make the samples of a frame."""
    return {
        **_TRANSFORMER,
        "num_hidden_layers": 2,
        "latent_dim": 64,
        "decoder_dim": 64,
        "semantic_codebook_size": 4096,
        "vector_quantization_hidden_dimension": 32,
        "upsample_rates": [8, 5, 4, 3],
        "upsampling_ratios": [2, 2],
        "sliding_window": 72,
        "max_position_embeddings": 8000,
        "rope_theta": 10000,
    }


def _speech_weights(folder: Path) -> Weights:
    """Of vLLM-Omni's own modules, after its reading of the configuration just written."""
    from vllm_omni.model_executor.models.qwen3_tts.tokenizer_12hz import configuration_qwen3_tts_tokenizer_v2 as configs
    from vllm_omni.model_executor.models.qwen3_tts.tokenizer_12hz import modeling_qwen3_tts_tokenizer_v2 as models

    config = configs.Qwen3TTSTokenizerV2Config.from_pretrained(folder, subfolder="speech_tokenizer")
    decoder = models.Qwen3TTSTokenizerV2Decoder._from_config(config.decoder_config)
    encoder = models.Qwen3TTSTokenizerV2Encoder._from_config(config.encoder_config)
    for module in (decoder, encoder):
        _fill_codebooks(module)
    tame_decoder(decoder, decoder.decoder, CODEBOOK, GROUPS)
    for prefix, module in (("decoder", decoder), ("encoder", encoder)):
        for name, tensor in module.state_dict().items():
            yield f"{prefix}.{name}", tensor.clone().contiguous()


def _fill_codebooks(module: torch.nn.Module) -> None:
    """They are kept as sums and counts, which start as zeros."""
    for name, tensor in module.state_dict().items():
        if name.endswith("cluster_usage"):
            tensor.fill_(1)
        elif name.endswith(("embedding_sum", "embed_sum")):
            tensor.normal_()
