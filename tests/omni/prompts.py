"""What the models are asked, by name: text, and with it a picture, a sound, both; texts to be read aloud."""

from __future__ import annotations

import numpy as np

__all__ = ["PROMPTS"]

IMAGE, AUDIO = "<|vision_bos|><|IMAGE|><|vision_eos|>", "<|audio_bos|><|AUDIO|><|audio_eos|>"


def picture():
    from PIL import Image

    return Image.fromarray((np.arange(84 * 56 * 3).reshape(84, 56, 3) % 255).astype("uint8"))


def sound():
    return 0.1 * np.sin(np.arange(16_000) * 0.05).astype("float32"), 16_000


def turn(text):
    return {"prompt": f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"}


def aloud(text, model):
    """As a front-end of Qwen3-TTS asks: its talker makes the prompt, and wants to know how long that will be."""
    from transformers import AutoTokenizer
    from vllm_omni.model_executor.models.qwen3_tts.prompt_embeds_builder import Qwen3TTSPromptEmbedsBuilder

    tokenizer = AutoTokenizer.from_pretrained(model)
    asked = {
        "task_type": ["CustomVoice"],
        "text": [text],
        "language": ["English"],
        "speaker": ["vivian"],
        "instruct": [""],
    }
    length = Qwen3TTSPromptEmbedsBuilder.estimate_prompt_len_from_additional_information(
        asked,
        task_type="CustomVoice",
        tokenize_prompt=lambda words: tokenizer(words)["input_ids"],
        codec_language_id={"english": 2050},
        spk_is_dialect={},
    )
    return {"prompt_token_ids": [0] * length, "additional_information": asked}


PROMPTS = {
    "text": lambda model: {"prompt": "hello world"},
    "image": lambda model: {"prompt": f"{IMAGE}describe", "multi_modal_data": {"image": picture()}},
    "audio": lambda model: {"prompt": f"{AUDIO}repeat", "multi_modal_data": {"audio": sound()}},
    "both": lambda model: {
        "prompt": f"{IMAGE}{AUDIO}compare", "multi_modal_data": {"image": picture(), "audio": sound()},
    },
    "hello": lambda model: turn("hello world"),
    "story": lambda model: turn("tell me a longer story"),
    "read": lambda model: aloud("hello world", model),
    "read more": lambda model: aloud("please read this longer sentence", model),
}  # fmt: skip
