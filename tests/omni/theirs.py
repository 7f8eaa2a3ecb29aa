"""vLLM-Omni's own AsyncOmni as a program: ``python theirs.py MODEL DEPLOY OUT NAME...`` answers the named prompts.

Writes an ``.npz``: for each name the tokens of its text and the samples of its speech.
"""

from __future__ import annotations

import asyncio
import sys

import numpy as np
from prompts import PROMPTS


async def answer(engine, model, name):
    tokens, speech = [], []
    made = engine.generate(PROMPTS[name](model), request_id=name.replace(" ", "-"))
    async for output in made:
        choices = getattr(output, "outputs", None) or []
        if output.final_output_type == "text" and choices:
            tokens = list(choices[0].cumulative_token_ids)
        audio = (output.multimodal_output or {}).get("audio")
        pieces = [] if audio is None else audio if isinstance(audio, list) else [audio]
        speech += [piece.detach().float().cpu().numpy().reshape(-1) for piece in pieces]
    return {f"{name}.tokens": np.array(tokens), f"{name}.audio": np.concatenate(speech)}


async def main(model, deploy, out, names):
    from vllm_omni.entrypoints.async_omni import AsyncOmni

    engine = AsyncOmni(model=model, deploy_config=deploy, trust_remote_code=True)
    try:
        found = {}
        for name in names:
            found |= await asyncio.wait_for(answer(engine, model, name), 120)
        np.savez(out, **found)
    finally:
        engine.shutdown()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:4], sys.argv[4:]))
