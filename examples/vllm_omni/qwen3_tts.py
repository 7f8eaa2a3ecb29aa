"""Qwen3-TTS, in a script: ``python qwen3_tts.py "Hello there." "And again." --speaker Vivian``."""

from __future__ import annotations

import argparse

import numpy as np
import soundfile
from omni_actors_asyncio import Omni
from transformers import AutoTokenizer
from vllm_omni.model_executor.models.qwen3_tts.prompt_embeds_builder import Qwen3TTSPromptEmbedsBuilder

from omni_actors import OmniError


def aloud(model: str, text: str, speaker: str) -> dict:
    """The talker makes its prompt itself, of this information; the engine must know how long that will be."""
    tokenizer = AutoTokenizer.from_pretrained(model)
    asked = {
        "task_type": ["CustomVoice"], "text": [text], "language": ["English"], "speaker": [speaker.lower()],
        "instruct": [""],
    }  # fmt: skip
    length = Qwen3TTSPromptEmbedsBuilder.estimate_prompt_len_from_additional_information(
        asked,
        task_type="CustomVoice",
        tokenize_prompt=lambda words: tokenizer(words)["input_ids"],
        codec_language_id={"english": 2050},
        spk_is_dialect={},
    )
    return {"prompt_token_ids": [0] * length, "additional_information": asked}


def main(asked: argparse.Namespace) -> None:
    options = {"deploy_config": asked.deploy_config} if asked.deploy_config else {}
    speech: dict[str, list[np.ndarray]] = {}
    with Omni(model=asked.model, **options) as omni:
        prompts = [aloud(asked.model, text, asked.speaker) for text in asked.texts]
        for output in omni.generate(prompts, py_generator=True):
            audio = output.multimodal_output.get("audio")
            pieces = [] if audio is None else audio if isinstance(audio, list) else [audio]
            speech.setdefault(output.request_id, []).extend(piece.float().numpy().reshape(-1) for piece in pieces)
    for number, pieces in enumerate(speech.values()):
        soundfile.write(file := asked.out.format(number), np.concatenate(pieces), 24_000)
        print(f"{file}: {sum(map(len, pieces)) / 24_000:.2f} s of speech")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("texts", nargs="+")
    parser.add_argument("--model", default="Qwen/Qwen3-TTS-12Hz-1.7B-CustomVoice", help="a hub id or a folder")
    parser.add_argument("--deploy-config", help="vLLM-Omni's deploy file; default: the model's own")
    parser.add_argument("--speaker", default="Vivian")
    parser.add_argument("--out", default="spoken-{}.wav")
    try:
        main(parser.parse_args())
    except OmniError as error:
        raise SystemExit(str(error)) from None
