"""vLLM-Omni's own AsyncOmni as a program: ``python theirs.py MODEL OPTIONS OUT NAME...`` answers the named prompts.

OPTIONS: JSON, over those of the tiny model.

Writes an ``.npz``: for each name the tokens of its text, the samples of its speech and the pixels of its pictures.
"""

from __future__ import annotations

import asyncio
import copy
import json
import sys
from pathlib import Path

import numpy as np
from prompts import MODALITIES, PARAMS, PROMPTS

from omni_actors.vllm_omni.tiny import options


async def answer(engine, model, name):
    tokens, speech, pictures = [], [], []
    made = engine.generate(
        PROMPTS[name](model),
        request_id=name.replace(" ", "-"),
        sampling_params_list=params(engine, name),
        output_modalities=MODALITIES.get(name),
    )
    async for output in made:
        choices = getattr(output, "outputs", None) or []
        if output.final_output_type == "text" and choices:
            tokens = list(choices[0].cumulative_token_ids)
        audio = (output.multimodal_output or {}).get("audio")
        pieces = [] if audio is None else audio if isinstance(audio, list) else [audio]
        speech += [piece.detach().float().cpu().numpy().reshape(-1) for piece in pieces]
        pictures += [np.asarray(picture) for picture in output.images or []]
    return {
        f"{name}.tokens": np.array(tokens),
        f"{name}.audio": np.concatenate([*speech, []], dtype=np.float32),
        f"{name}.image": np.array(pictures, dtype=np.uint8),
    }


def params(engine, name):
    """Each stage's, in order: the defaults, and what this prompt has of its own. None where it has nothing.

    The defaults themselves, given, would not be the same: only where nothing is given do outputs come as increments.
    """
    if name not in PARAMS:
        return None
    each = copy.deepcopy(list(engine.default_sampling_params_list))
    for stage, changed in PARAMS[name].items():
        for field, value in changed.items():
            setattr(each[stage], field, value)
    return each


async def main(model, more, out, names):
    from vllm_omni.entrypoints.async_omni import AsyncOmni

    engine = AsyncOmni(model=model, **{**options(Path(model)), **json.loads(more)})
    try:
        found = {}
        for name in names:
            found |= await asyncio.wait_for(answer(engine, model, name), 120)
        np.savez(out, **found)
    finally:
        engine.shutdown()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:4], sys.argv[4:]))
