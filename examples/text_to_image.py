"""Pictures of several prompts at once, on trio: ``python examples/text_to_image.py --model PATH "a cat" "a dog"``"""

import argparse
from pathlib import Path

import trio
from PIL import Image

from omni_actors import OmniError, OmniRuntime, StepChunk, open_omni
from omni_actors.pipelines.text_to_image import pipeline


async def paint(omni: OmniRuntime, number: int, prompt: str, steps: int) -> None:
    params = {"num_inference_steps": steps, "seed": number, "progress": True}
    # Leaving this block, for whatever reason, stops the denoising before its next step.
    async with omni.generate(prompt, params, timeout_s=600) as stream:
        async for output in stream:
            if isinstance(output.payload, StepChunk):
                print(f"{prompt}: step {output.payload.done} of {output.payload.total}")
            elif output.image is not None:
                file = Path(f"picture-{number}.png")
                Image.fromarray(output.image.numpy()).save(file)
                print(f"{prompt}: {file}")


async def main(model: str, prompts: list[str], steps: int) -> None:
    async with open_omni(pipeline(model, max_batch=4)) as omni, trio.open_nursery() as nursery:
        for number, prompt in enumerate(prompts):
            nursery.start_soon(paint, omni, number, prompt, steps)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("prompts", nargs="*", default=["a cup of coffee on the table"])
    parser.add_argument("--model", required=True, help="a diffusers folder, or an id of the hub")
    parser.add_argument("--steps", type=int, default=20)
    asked = parser.parse_args()
    try:
        trio.run(main, asked.model, asked.prompts, asked.steps)
    except* OmniError as errors:
        raise SystemExit("\n".join(str(error) for error in errors.exceptions)) from None
