"""BAGEL, tiny: a thinker with a second set of weights for pictures, eyes, and a FLUX-like autoencoder. 170 MB.

The autoencoder's size is a constant of vLLM-Omni's, and is nearly all of it. transformers has no such model:
its weights are named here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save_file

from ._parts import LAYERS, byte_tokenizer, write_json

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["make"]

HIDDEN, INNER, DEPTH = LAYERS["hidden_size"], LAYERS["intermediate_size"], LAYERS["num_hidden_layers"]
HEAD_DIM = HIDDEN // LAYERS["num_attention_heads"]
PATCH, SEEN = 14, 70
"""The eyes' patches, and the side of what they see, in pixels."""
LATENTS = 32
"""A side of the largest picture, in patches of 16 pixels: vLLM-Omni's diffusion engine warms up with 512 by 512."""
LATENT = 64
"""Numbers in a patch of latents: 2 by 2 of 16 channels."""
_HEARD = 4.0
"""So much larger are the values of attention and what is made of them, or a prompt would hardly show in the picture."""

_NAMES = {
    "turn_bos_token": "<|im_start|>",
    "turn_eos_token": "<|im_end|>",
    "vision_bos_token": "<|vision_start|>",
    "vision_eos_token": "<|vision_end|>",
    "image_token": "<|image_pad|>",
    "edited_token": "<|fim_middle|>",
}

Weights = Iterator[tuple[str, torch.Tensor]]


def make(folder: Path) -> None:
    """Write the checkpoint, in bfloat16: configurations, model, autoencoder, tokenizer and preprocessor."""
    tokenizer = byte_tokenizer(_NAMES)
    start, end = (tokenizer.convert_tokens_to_ids(_NAMES[name]) for name in ("turn_bos_token", "turn_eos_token"))
    words = {"vocab_size": len(tokenizer), "bos_token_id": start, "eos_token_id": end}
    tokenizer.save_pretrained(folder)
    config = _config(words)
    write_json(folder / "config.json", config)
    write_json(folder / "llm_config.json", config["llm_config"])
    write_json(folder / "vit_config.json", config["vit_config"])
    write_json(folder / "generation_config.json", {"bos_token_id": start, "eos_token_id": end})
    write_json(folder / "preprocessor_config.json", _PREPROCESSOR)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        files = {"ema.safetensors": dict(_model(len(tokenizer))), "ae.safetensors": dict(_autoencoder())}
    for file, weights in files.items():
        save_file(weights, folder / file, metadata={"format": "pt"})
    where = {name: file for file, weights in files.items() for name in weights}
    write_json(folder / "model.safetensors.index.json", {"metadata": {}, "weight_map": where})


_PREPROCESSOR: dict[str, Any] = {
    "image_processor_type": "SiglipImageProcessor",
    "processor_class": "BagelProcessor",
    "size": {"height": SEEN, "width": SEEN},
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
}


def _config(words: dict[str, int]) -> dict[str, Any]:
    thinker = {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        **LAYERS,
        **words,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 1e6,
        "tie_word_embeddings": False,
        "qk_norm": True,
        "is_causal": True,
    }
    eyes = {
        "model_type": "siglip_vision_model",
        "hidden_size": HIDDEN,
        "intermediate_size": HIDDEN,
        "num_hidden_layers": DEPTH,
        "num_attention_heads": 2,
        "num_channels": 3,
        "image_size": SEEN,
        "patch_size": PATCH,
    }
    return {
        "architectures": ["BagelForConditionalGeneration"],
        "model_type": "bagel",
        "visual_gen": True,
        "visual_und": True,
        "connector_act": "gelu_pytorch_tanh",
        "interpolate_pos": False,
        "latent_patch_size": 2,
        "max_latent_size": LATENTS,
        "vit_max_num_patch_per_side": SEEN // PATCH,
        "timestep_shift": 1.0,
        "llm_config": thinker,
        "vit_config": eyes,
        "vae_config": {"z_channels": LATENT // 4, "downsample": 8},
    }


def _model(vocabulary: int) -> Weights:
    thinker = "language_model.model"
    yield f"{thinker}.embed_tokens.weight", _random(vocabulary, HIDDEN)
    yield "language_model.lm_head.weight", _random(vocabulary, HIDDEN)
    for kind in ("", "_moe_gen"):
        yield f"{thinker}.norm{kind}.weight", _ones(HIDDEN)
        for layer in range(DEPTH):
            yield from _thinker_layer(f"{thinker}.layers.{layer}", kind)
    yield from _eyes("vit_model.vision_model")
    for name, sizes in {
        "connector.fc1": (HIDDEN, HIDDEN),
        "connector.fc2": (HIDDEN, HIDDEN),
        "time_embedder.mlp.0": (HIDDEN, 256),
        "time_embedder.mlp.2": (HIDDEN, HIDDEN),
        "vae2llm": (HIDDEN, LATENT),
        "llm2vae": (LATENT, HIDDEN),
    }.items():
        yield from _linear(name, *sizes)
    yield "vit_pos_embed.pos_embed", _random((SEEN // PATCH) ** 2, HIDDEN)
    yield "latent_pos_embed.pos_embed", _random(LATENTS**2, HIDDEN)


def _thinker_layer(layer: str, kind: str) -> Weights:
    """``kind``: for words, or for the latents of pictures."""
    keys = LAYERS["num_key_value_heads"] * HEAD_DIM
    for name, size in {"q": HIDDEN, "k": keys}.items():
        yield from _linear(f"{layer}.self_attn.{name}_proj{kind}", size, HIDDEN)
    yield f"{layer}.self_attn.v_proj{kind}.weight", _HEARD * _random(keys, HIDDEN)
    yield f"{layer}.self_attn.v_proj{kind}.bias", _random(keys)
    yield f"{layer}.self_attn.o_proj{kind}.weight", _HEARD * _random(HIDDEN, HIDDEN)
    for name in ("q_norm", "k_norm"):
        yield f"{layer}.self_attn.{name}{kind}.weight", _ones(HEAD_DIM)
    for name, sizes in {"gate": (INNER, HIDDEN), "up": (INNER, HIDDEN), "down": (HIDDEN, INNER)}.items():
        yield f"{layer}.mlp{kind}.{name}_proj.weight", _random(*sizes)
    for name in ("input_layernorm", "post_attention_layernorm"):
        yield f"{layer}.{name}{kind}.weight", _ones(HIDDEN)


def _eyes(eyes: str) -> Weights:
    yield from _linear(f"{eyes}.embeddings.patch_embedding", HIDDEN, 3 * PATCH**2)
    yield f"{eyes}.embeddings.position_embedding.weight", _random((SEEN // PATCH) ** 2, HIDDEN)
    for layer in (f"{eyes}.encoder.layers.{number}" for number in range(DEPTH)):
        for name in ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.out_proj"):
            yield from _linear(f"{layer}.{name}", HIDDEN, HIDDEN)
        for name in ("mlp.fc1", "mlp.fc2"):
            yield from _linear(f"{layer}.{name}", HIDDEN, HIDDEN)
        for name in ("layer_norm1", "layer_norm2"):
            yield from _norm(f"{layer}.{name}")
    yield from _norm(f"{eyes}.post_layernorm")


def _autoencoder() -> Weights:
    from vllm_omni.diffusion.models.bagel.autoencoder import AutoEncoder
    from vllm_omni.diffusion.models.bagel.pipeline_bagel import default_ae_params

    for name, tensor in AutoEncoder(default_ae_params()).state_dict().items():
        yield name, tensor.to(torch.bfloat16).contiguous()


def _linear(name: str, outputs: int, inputs: int) -> Weights:
    yield f"{name}.weight", _random(outputs, inputs)
    yield f"{name}.bias", _random(outputs)


def _norm(name: str) -> Weights:
    yield f"{name}.weight", _ones(HIDDEN)
    yield f"{name}.bias", _random(HIDDEN)


def _random(*shape: int) -> torch.Tensor:
    return (0.05 * torch.randn(shape)).to(torch.bfloat16)


def _ones(size: int) -> torch.Tensor:
    return torch.ones(size, dtype=torch.bfloat16)
