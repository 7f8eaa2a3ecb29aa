"""Classes that the GenerationEngine hosts in tests. Gates are FIFOs: a read blocks until the test opens the gate."""

from __future__ import annotations

import os

from omni_actors.engines.generation import Chunk
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
