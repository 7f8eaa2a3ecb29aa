"""A class that the DiffusionEngine hosts in tests of the server: it paints by counting, a step at a time."""

from __future__ import annotations

import time

import numpy as np

from omni_actors._errors import InvalidRequest
from omni_actors.engines.generation import Chunk, Step

__all__ = ["Counting"]

LONGEST_PROMPT, MAX_STEPS = 200, 400


class Counting:
    """A picture of one colour: its seed. Writes down, in the file ``log``, who was in which step.

    An edit's picture is the given one, with the masked part black. The prompt ``nan`` fails in its second step.
    """

    def __init__(self, step_s=0.0, log=None, usual_steps=6):
        self.step_s, self.log, self.usual_steps = step_s, log, usual_steps

    def step(self, batch):
        if any(item.state["done"] < item.state["steps"] for item in batch):
            time.sleep(self.step_s)
        if self.log is not None:
            with open(self.log, "a") as log:
                log.writelines(f"{item.state['prompt']}\n" for item in batch)
        for item in batch:
            item.state["done"] += 1

    def start(self, item):
        asked = {"prompt": item.prompt} if isinstance(item.prompt, str) else dict(item.prompt)
        given = {"num_inference_steps": self.usual_steps, "width": 16, "height": 8, "seed": 0, **item.params}
        if not 1 <= given["num_inference_steps"] <= MAX_STEPS:
            raise InvalidRequest(f"num_inference_steps is {given['num_inference_steps']}; it can be 1 to {MAX_STEPS}")
        if given["width"] % 8:
            raise InvalidRequest(f"width is {given['width']}; it must be a multiple of 8")
        if len(asked["prompt"]) > LONGEST_PROMPT:
            raise InvalidRequest(f"prompt is too long: this model reads {LONGEST_PROMPT} letters")
        item.state = {"done": 0, "steps": given["num_inference_steps"], **asked}
        return self.picture(item, given)

    def picture(self, item, given):
        state, every = item.state, given.get("preview_every", 0)
        while state["done"] < state["steps"]:
            if state["prompt"] == "nan" and state["done"] == 2:
                raise ArithmeticError("the latents are not finite in /srv/secret/model.py")
            preview = None
            if every and state["done"] and state["done"] % every == 0:
                preview = np.full((8, 16, 3), state["done"], np.uint8)
            yield Step(
                done=state["done"], total=state["steps"], eta_s=0.5, preview=preview, shown=bool(given.get("progress"))
            )
        seed = given["seed"] + item.index
        yield Chunk(tensors={"image": painted(state, given, seed)}, meta={"seed": seed}, finished=True)


def painted(state, given, seed):
    if "image" not in state:
        return np.full((given["height"], given["width"], 3), seed % 256, np.uint8)
    images = state["image"] if isinstance(state["image"], list) else [state["image"]]
    made = np.concatenate([image.numpy() for image in images], axis=1)
    if "mask_image" in state:
        made[state["mask_image"].numpy() > 0] = 0
    return made
