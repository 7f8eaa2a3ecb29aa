"""What several of the models are made of."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

if TYPE_CHECKING:
    from pathlib import Path

__all__ = [
    "LAYERS",
    "byte_tokenizer",
    "mrope",
    "numbered_tokenizer",
    "preprocessor",
    "save_pipeline",
    "tame_decoder",
    "write_json",
]

LAYERS: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 4096,
}
"""A language model's size; its heads are of 32, for which ``mrope`` has the right parts."""


def mrope(**more: Any) -> dict[str, Any]:
    """Rotary positions in three parts (time, height, width) of a head of 32, under both names that are read."""
    rope = {"rope_type": "default", "mrope_section": [4, 6, 6], "rope_theta": 1e6, **more}
    return {"rope_parameters": dict(rope), "rope_scaling": dict(rope)}


def byte_tokenizer(names: dict[str, str], chat_template: str | None = None) -> PreTrainedTokenizerFast:
    """One token for each byte, one that ends a text, then those of ``names``: what a processor calls it, its text."""
    words = {letter: number for number, letter in enumerate(_bytes())}
    tokenizer = _bpe({**words, "<|endoftext|>": len(words)})
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in names.values()])
    return _wrapped(tokenizer, "<|endoftext|>", names, chat_template)


def numbered_tokenizer(
    size: int,
    special: dict[int, str],
    words: dict[int, str],
    names: dict[str, str],
    end: str,
    chat_template: str,
    first_byte: int = 0,
) -> PreTrainedTokenizerFast:
    """As ``byte_tokenizer``, with tokens at given numbers; what lies between is filled with names never written."""
    given = {**dict(enumerate(_bytes(), first_byte)), **special, **words}
    tokenizer = _bpe({given.get(number, f"[unused {number}]"): number for number in range(size)})
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in special.values()])
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in words.values()])
    return _wrapped(tokenizer, end, names, chat_template)


def _bytes() -> list[str]:
    return sorted(pre_tokenizers.ByteLevel.alphabet())


def _bpe(vocabulary: dict[str, int]) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _wrapped(
    tokenizer: Tokenizer, end: str, names: dict[str, str], chat_template: str | None
) -> PreTrainedTokenizerFast:
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=end, pad_token="<|endoftext|>", extra_special_tokens=names
    )
    wrapped.chat_template = chat_template
    return wrapped


def preprocessor(processor: str, **changed: Any) -> dict[str, Any]:
    """A ``preprocessor_config.json`` of Qwen's images and Whisper's audio, as the real checkpoints have it."""
    images = {
        "image_processor_type": "Qwen2VLImageProcessor",
        "patch_size": 14,
        "temporal_patch_size": 2,
        "merge_size": 2,
        "min_pixels": 56 * 56,
        "max_pixels": 12845056,
        "image_mean": [0.48145466, 0.4578275, 0.40821073],
        "image_std": [0.26862954, 0.26130258, 0.27577711],
    }
    audio = {
        "feature_extractor_type": "WhisperFeatureExtractor",
        "feature_size": 128,
        "sampling_rate": 16000,
        "hop_length": 160,
        "chunk_length": 300,
        "n_fft": 400,
        "n_samples": 300 * 16000,
        "nb_max_frames": 30000,
        "padding_side": "right",
        "padding_value": 0.0,
        "return_attention_mask": True,
        "dither": 0.0,
    }
    return {"processor_class": processor, **images, **audio, **changed}


def tame_decoder(decoder: torch.nn.Module, layers: torch.nn.Sequential, codebook: int, groups: int) -> None:
    """Make a codec decoder's random weights give a signal of 0.2 on average: as initialised, it is all but silent."""
    for module in decoder.modules():
        if isinstance(module, torch.nn.Conv1d | torch.nn.ConvTranspose1d | torch.nn.Linear):
            module.reset_parameters()
        if isinstance(module, torch.nn.Conv1d):
            module.weight.data.mul_(1.7)
    heard: list[torch.Tensor] = []
    hook = layers[-1].register_forward_hook(lambda _module, _inputs, output: heard.append(output))
    with torch.no_grad():
        decoder.eval()(torch.randint(0, codebook, (1, groups, 20)))
    hook.remove()
    for parameter in layers[-1].parameters():
        parameter.data.mul_(0.2 / heard[0].std())


def save_pipeline(folder: Path, pipeline: str, parts: dict[str, Any]) -> None:
    """Each part in its folder, and beside them the index by which diffusers knows the class of each."""
    index: dict[str, Any] = {"_class_name": pipeline, "_diffusers_version": "0.40.0"}
    for name, part in parts.items():
        part.save_pretrained(folder / name)
        index[name] = [type(part).__module__.partition(".")[0], type(part).__name__]
    write_json(folder / "model_index.json", index)


def write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=1))
