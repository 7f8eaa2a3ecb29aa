"""Qwen2.5-Omni from end to end: ``python qwen2_5_omni.py --query-type use_mixed_modalities --out answer.wav``."""

from __future__ import annotations

import argparse

import numpy as np
import soundfile
import trio
from PIL import Image

from omni_actors import OmniError, open_omni
from omni_actors.vllm_omni import pipeline

SYSTEM = (
    "You are Qwen, a virtual human developed by the Qwen Team, Alibaba Group, capable of perceiving auditory and "
    "visual inputs, as well as generating text and speech."
)
TURNS = "<|im_start|>system\n{}<|im_end|>\n<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
MARKS = {
    "image": "<|vision_bos|><|IMAGE|><|vision_eos|>",
    "audio": "<|audio_bos|><|AUDIO|><|audio_eos|>",
    "video": "<|vision_bos|><|VIDEO|><|vision_eos|>",
}
QUERIES = {
    "text": ((), "Explain in two sentences what an actor is."),
    "use_image": (("image",), "What do you see?"),
    "use_audio": (("audio",), "What do you hear?"),
    "use_video": (("video",), "What happens?"),
    "use_mixed_modalities": (("audio", "image", "video"), "What do you hear, what do you see, and what happens?"),
}


def media(name: str):
    """Something to look at and to hear: a pattern, a tone, the pattern on the move."""
    ramp = np.add.outer(np.arange(112), np.arange(112))
    frame = np.stack([ramp, ramp[::-1], ramp[:, ::-1]], axis=-1).astype(np.uint8)
    if name == "audio":
        return 0.1 * np.sin(2 * np.pi * 440 * np.arange(16_000) / 16_000).astype(np.float32), 16_000
    return Image.fromarray(frame) if name == "image" else np.stack([np.roll(frame, 8 * n, axis=1) for n in range(8)])


async def main(model: str, deploy_config: str | None, query_type: str, out: str) -> None:
    kinds, question = QUERIES[query_type]
    prompt = {"prompt": TURNS.format(SYSTEM, "".join(MARKS[kind] for kind in kinds) + question)}
    if kinds:
        prompt["multi_modal_data"] = {kind: media(kind) for kind in kinds}
    speech: list[np.ndarray] = []
    rate = 0
    spec = pipeline(model, deploy_config=deploy_config)
    # Leaving the second of these blocks early is the abort, in all three stages.
    async with open_omni(spec) as omni, omni.generate(prompt, modalities=["text", "audio"]) as stream:
        async for output in stream:
            print(output.text, end="", flush=True)
            if output.audio is not None:
                speech, rate = [*speech, output.audio], output.sample_rate
    soundfile.write(out, np.concatenate(speech), rate)
    print(f"\n{out}: {sum(map(len, speech)) / rate:.2f} s of speech")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="Qwen/Qwen2.5-Omni-7B", help="a hub id or a folder")
    parser.add_argument("--deploy-config", help="vLLM-Omni's deploy file; default: the model's own")
    parser.add_argument("--query-type", choices=QUERIES, default="use_mixed_modalities")
    parser.add_argument("--out", default="answer.wav")
    asked = parser.parse_args()
    try:
        trio.run(main, asked.model, asked.deploy_config, asked.query_type, asked.out)
    except OmniError as error:
        raise SystemExit(str(error)) from None
