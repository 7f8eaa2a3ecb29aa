"""The reference of ``diffusion``: diffusers' own pipeline, as its users run it, on one thread.

Run in a process of its own. Its first argument is the painter's folder. Each line of stdin is a JSON list of seeds, for
which it paints one picture after the other; each line of stdout tells the seconds of each and what they look like.
The end of stdin ends it.
"""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Any

from omni_actors.cli.benches._work import own_channel

if TYPE_CHECKING:
    from typing import TextIO

__all__ = ["GUIDANCE", "NUMBER", "STEPS", "looks"]

STEPS, GUIDANCE, NUMBER = 20, 2.0, 7


def main(folder: str, channel: TextIO) -> None:
    """Obey until stdin ends."""
    import torch

    from omni_actors.pipelines.tiny_omni.painter import DigitPainter

    torch.set_num_threads(1)
    pipeline = DigitPainter.from_pretrained(folder)
    channel.write("[]\n")
    for line in sys.stdin:
        answers = [_paint(pipeline, torch.Generator().manual_seed(seed)) for seed in json.loads(line)]
        channel.write(json.dumps(answers) + "\n")


def _paint(pipeline: Any, generator: Any) -> tuple[float, list[int]]:
    begun = time.perf_counter()
    made = pipeline(NUMBER, num_inference_steps=STEPS, guidance_scale=GUIDANCE, generator=generator)
    picture = (made.images[0] * 255).round().astype("uint8")
    return time.perf_counter() - begun, looks(picture.tobytes())


def looks(pixels: bytes | memoryview) -> list[int]:
    """What a picture looks like: every sixteenth pixel of a row, for the tiles are enlarged by sixteen."""
    return list(bytes(pixels)[24::48])


if __name__ == "__main__":
    main(sys.argv[1], own_channel())
