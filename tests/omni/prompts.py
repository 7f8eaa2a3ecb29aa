"""What the models are asked, by name: text, and with it a picture, a sound, both."""

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


PROMPTS = {
    "text": lambda: {"prompt": "hello world"},
    "image": lambda: {"prompt": f"{IMAGE}describe", "multi_modal_data": {"image": picture()}},
    "audio": lambda: {"prompt": f"{AUDIO}repeat", "multi_modal_data": {"audio": sound()}},
    "both": lambda: {
        "prompt": f"{IMAGE}{AUDIO}compare", "multi_modal_data": {"image": picture(), "audio": sound()},
    },
    "hello": lambda: turn("hello world"),
    "story": lambda: turn("tell me a longer story"),
}  # fmt: skip
