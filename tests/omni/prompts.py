"""What the models are asked, by name: text, and with it a picture, a sound, both; texts to be read aloud; pictures."""

from __future__ import annotations

import numpy as np

__all__ = ["MODALITIES", "PARAMS", "PROMPTS"]

IMAGE, AUDIO = "<|vision_bos|><|IMAGE|><|vision_eos|>", "<|audio_bos|><|AUDIO|><|audio_eos|>"


def picture(height=84, width=56):
    from PIL import Image

    return Image.fromarray((np.arange(height * width * 3).reshape(height, width, 3) % 255).astype("uint8"))


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


def bagel(text, **more):
    return {"prompt": f"<|im_start|>{text}<|im_end|>", "negative_prompt": "blurry", **more}


def glm(text, **more):
    """GLM-Image's processor makes the prompt of the size, and so does what is between its stages."""
    return {"prompt": text, "mm_processor_kwargs": {"target_h": 64, "target_w": 64}, **more}


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
    "cat": lambda model: {"prompt": "a cat"},
    "dog": lambda model: {"prompt": "a dog", "negative_prompt": "blurry"},
    "bagel cat": lambda model: bagel("a cat", modalities=["image"]),
    "bagel red": lambda model: bagel(
        "make it red", modalities=["img2img"], multi_modal_data={"img2img": picture(64, 64)}
    ),
    "glm cat": lambda model: glm('a cat with a sign that says "meow"', modalities=["image"]),
    "glm red": lambda model: glm("make it red", modalities=["img2img"], multi_modal_data={"image": picture(64, 64)}),
}  # fmt: skip

PARAMS = {
    "cat": {0: {"seed": 1}},
    "dog": {0: {"seed": 2, "true_cfg_scale": 4.0}},
    "bagel cat": {1: {"extra_args": {"cfg_text_scale": 4.0, "cfg_img_scale": 1.5}}},
    "bagel red": {1: {"extra_args": {"cfg_text_scale": 4.0, "cfg_img_scale": 1.5}}},
    "glm cat": {1: {"seed": 1}},
    "glm red": {0: {"max_tokens": 5, "min_tokens": 5}},
}
"""By name and number of a stage: in what its sampling params are not the defaults of the model's options."""

MODALITIES = {name: ["image"] for name in PARAMS}
"""By name: what is to come out. Without it: whatever does."""
