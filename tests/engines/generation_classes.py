"""Classes that the GenerationEngine hosts in tests. Gates are FIFOs: a read blocks until the test opens the gate."""

from __future__ import annotations

import os
import time

from omni_actors._errors import InvalidRequest
from omni_actors.engines.generation import Chunk, Step
from omni_actors.wire.omni import Tensor


def gate(path):
    """Blocks, deaf to everything, until the test has written one byte."""
    with open(path, "rb") as fifo:
        fifo.read(1)


class Echo:
    """One byte per chunk. A prompt's ``gate`` is passed before the chunk ``at``; ``raise_at`` raises there."""

    def __init__(self, gain=1, gate=None):
        self.gain, self.gate, self.batches, self.closed = gain, gate, [], []

    def step(self, batch):
        self.batches.append([item.key for item in batch])
        if any(item.prompt.get("raise_in_step") for item in batch):
            raise RuntimeError("the whole batch")

    def start(self, item):
        if item.prompt.get("refuse"):
            raise ValueError("not this one")
        return self.chunks(item)

    def chunks(self, item):
        try:
            for number, value in enumerate(item.prompt["values"]):
                if number == item.prompt.get("at"):
                    gate(self.gate)
                if number == item.prompt.get("raise_at"):
                    raise ValueError("this one\nand its second line")
                yield Chunk(tensors={"x": Tensor("uint8", (1,), bytes([value * self.gain]))}, meta={"pid": os.getpid()})
        finally:
            self.closed.append(item.key)

    def seen(self):
        return {"batches": self.batches, "closed": self.closed}

    def broken(self):
        raise KeyError("inside")


class Raises:
    def __init__(self):
        raise OSError("no such weights")


class NotAGenerator:
    pass


class Painter:
    """Denoises by walking: ``steps`` of ``step_s`` each, all of the batch at once. Writes down who was in which step.

    A prompt's ``stuck`` is the step that never ends.
    """

    def __init__(self, step_s=0.02, gate=None):
        self.step_s, self.gate, self.walked = step_s, gate, []

    def step(self, batch):
        at_work = [item for item in batch if item.state["done"] < item.prompt["steps"]]
        if any(item.state["done"] == item.prompt.get("stuck") for item in at_work):
            time.sleep(3600)
        if at_work:
            time.sleep(self.step_s)
        for item in at_work:
            item.state["done"] += 1
            self.walked.append(item.prompt["name"])

    def start(self, item):
        if not item.prompt["steps"]:
            raise InvalidRequest("at least one step")
        item.state = {"done": 0}
        return self.picture(item)

    def picture(self, item):
        steps = item.prompt["steps"]
        while item.state["done"] < steps:
            yield Step(done=item.state["done"], total=steps, shown=bool(item.params.get("progress")))
        image = Tensor("uint8", (1, 1, 3), b"abc")
        yield Chunk(tensors={"image": image}, meta={"name": item.prompt["name"]}, finished=True)

    def log(self):
        return self.walked

    def load_slowly(self):
        gate(self.gate)
        return "loaded"
