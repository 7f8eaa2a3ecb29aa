"""Pictures of BAGEL, GLM-Image, Qwen-Image: ``python pictures.py --model zai-org/GLM-Image --prompts "A cute cat"``."""

from __future__ import annotations

import argparse

import trio
from PIL import Image

from omni_actors import OmniError, OmniRuntime, open_omni
from omni_actors.vllm_omni import pipeline


def asked_of(model: str, prompt: str, image: Image.Image | None, size: int) -> dict:
    """BAGEL's prompt has a turn and a place for the picture; GLM-Image's processor wants to know the size."""
    kind = "image" if image is None else "img2img"
    made = {"prompt": prompt, "negative_prompt": "blurry, deformed", "modalities": [kind]}
    if model == "bagel":
        made["prompt"] = ("" if image is None else "<|fim_middle|>") + f"<|im_start|>{prompt}<|im_end|>"
    if model == "glm-image":
        made["mm_processor_kwargs"] = {"target_h": size, "target_w": size}
    if image is not None:
        made["multi_modal_data"] = {"img2img" if model == "bagel" else "image": image}
    return made


async def paint(omni: OmniRuntime, number: int, prompt: str, asked: argparse.Namespace) -> None:
    image = Image.open(asked.image).convert("RGB") if asked.image else None
    painter = omni.spec.stages[-1].name
    params = {painter: {"height": asked.size, "width": asked.size, "seed": asked.seed, "progress": True}}
    if asked.steps:
        params[painter]["num_inference_steps"] = asked.steps
    given = asked_of(omni.spec.name, prompt, image, asked.size)
    async with omni.generate(given, params, modalities=["image"]) as stream:
        async for output in stream:
            if output.image is not None:
                file = asked.out.format(number)
                Image.fromarray(output.image.numpy()).save(file)
                print(f"{prompt}: {file}")


async def main(asked: argparse.Namespace) -> None:
    options = {"deploy_config": asked.deploy_config} if asked.deploy_config else {}
    async with open_omni(pipeline(asked.model, **options)) as omni, trio.open_nursery() as nursery:
        for number, prompt in enumerate(asked.prompts):
            nursery.start_soon(paint, omni, number, prompt, asked)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="ByteDance-Seed/BAGEL-7B-MoT", help="a hub id or a folder")
    parser.add_argument("--deploy-config", help="vLLM-Omni's deploy file; default: the model's own")
    parser.add_argument("--prompts", nargs="+", default=["A cute cat"])
    parser.add_argument("--image", help="a picture to be changed")
    parser.add_argument("--size", type=int, default=1024)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--seed", type=int, default=52)
    parser.add_argument("--out", default="picture-{}.png")
    try:
        trio.run(main, parser.parse_args())
    except* OmniError as errors:
        raise SystemExit("\n".join(str(error) for error in errors.exceptions)) from None
