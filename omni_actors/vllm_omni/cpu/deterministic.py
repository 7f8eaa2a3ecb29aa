"""Where vLLM-Omni's models draw noise from torch's global generator whatever a request's seed: make it repeatable.

With OMNI_ACTORS_DETERMINISTIC=1 in an engine's environment, the same request gives the same bytes, alone or among
others, provided its stages of generation take one request a step (``max_num_seqs: 1``). For tests: it takes away noise
that users want. Handing a request's own generators on changes nothing without a seed and is always done.
"""

from __future__ import annotations

import os
from typing import Any

import torch

__all__ = ["deterministic", "hand_on_generators", "reseed", "take_means"]

_SEED = 0


def deterministic() -> bool:
    """Whether this process was asked for it."""
    return os.environ.get("OMNI_ACTORS_DETERMINISTIC") == "1"


def reseed() -> None:
    """Called before each step of a generation stage: its noise is that of a first step, whatever ran before."""
    torch.manual_seed(_SEED)


def take_means(model: torch.nn.Module) -> None:
    """BAGEL's image encoder gives the mean of its distribution, not a sample of it."""
    for module in model.modules():
        if type(module).__name__ == "DiagonalGaussian":
            module.sample = False


def hand_on_generators(model: Any) -> None:
    """A request's generators, made by the runner of its ``tts_local_seed``, reach Qwen3-Omni's code predictor.

    Its ``talker_mtp`` drops them, where that of Qwen3-TTS takes them: without this, no seed makes speech repeatable.
    Models that take generators already, or that have no such predictor, are left as they are.
    """
    predictor = getattr(getattr(model, "talker", None), "code_predictor", None)
    if predictor is None or getattr(model, "talker_mtp_accepts_per_row_generators", False):
        return
    talker_mtp, forward = model.talker_mtp, predictor.forward
    current: dict[str, Any] = {}

    def with_generators(*args: Any, generator: Any = None, generators: Any = None, **options: Any) -> Any:
        current.update(generator=generator, generators=generators)
        try:
            return talker_mtp(*args, **options)
        finally:
            current.clear()

    predictor.forward = lambda *args, **options: forward(*args, **{**options, **current})
    model.talker_mtp = with_generators
    model.talker_mtp_accepts_per_row_generators = True
