"""Qwen3-Omni with vLLM-Omni's arguments, in asyncio: ``python qwen3_omni.py --async-chunk --enable-stats``."""

from __future__ import annotations

import argparse
import asyncio
import json
import time

import numpy as np
import soundfile
from omni_actors_asyncio import AsyncOmni

from omni_actors import OmniError

TURNS = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"


async def ask(omni: AsyncOmni, question: str, out: str, stats: bool) -> None:
    speech: list[np.ndarray] = []
    begun, first, rate = time.monotonic(), None, 24_000
    prompt = {"prompt": TURNS.format(question)}
    async for output in omni.generate(prompt, request_id="hello", output_modalities=["text", "audio"]):
        if output.final_output_type == "text":
            print(output.outputs[0].text, end="", flush=True)
        elif (audio := output.multimodal_output.get("audio")) is not None:
            pieces = audio if isinstance(audio, list) else [audio]
            speech += [piece.float().cpu().numpy().reshape(-1) for piece in pieces]
            first = first or time.monotonic() - begun
            rate = int(output.multimodal_output.get("sr", rate))
        if stats and output.finished:
            print(f"\n{output.final_output_type}: {json.dumps(output.stage_durations)}")
    soundfile.write(out, np.concatenate(speech), rate)
    print(f"\n{out}: {sum(map(len, speech)) / rate:.2f} s of speech, the first of it after {first:.2f} s")


async def main(asked: argparse.Namespace) -> None:
    options = {"deploy_config": asked.deploy_config, "async_chunk": asked.async_chunk}
    given = {name: value for name, value in options.items() if value is not None}
    async with AsyncOmni(model=asked.model, log_stats=asked.enable_stats, **given) as omni:
        await ask(omni, asked.question, asked.out, asked.enable_stats)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="Qwen/Qwen3-Omni-30B-A3B-Instruct", help="a hub id or a folder")
    parser.add_argument("--deploy-config", help="vLLM-Omni's deploy file; default: the model's own")
    parser.add_argument("--async-chunk", action=argparse.BooleanOptionalAction, help="speak while the talker talks")
    parser.add_argument("--enable-stats", action="store_true", help="what each stage took")
    parser.add_argument("--question", default="What is an actor?")
    parser.add_argument("--out", default="answer.wav")
    try:
        asyncio.run(main(parser.parse_args()))
    except OmniError as error:
        raise SystemExit(str(error)) from None
