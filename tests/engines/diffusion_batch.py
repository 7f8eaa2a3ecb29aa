"""The batcher's part in tests of ``DiffusersModel``: rounds over requests that join and leave."""

from __future__ import annotations

from omni_actors.engines._generator import Chunk, Item, Step

__all__ = ["Batch"]


class Batch:
    """The batcher's part, played by the test: rounds over requests that join and leave."""

    def __init__(self, model):
        self.model, self.live, self.made, self.failed, self.steps = model, {}, {}, {}, {}
        self.passes = []
        run = model._gather.run

        def counted(calls):
            self.passes.append(len(calls))
            run(calls)

        model._gather.run = counted

    def join(self, key, prompt, index=0, **params):
        item = Item(key=key, prompt=prompt, params=params, index=index)
        self.live[key] = item, self.model.start(item)
        self.steps[key] = []

    def leave(self, key):
        self.live.pop(key)[1].close()

    def round(self):
        self.model.step([item for item, _ in self.live.values()])
        for key, (_, chunks) in list(self.live.items()):
            self._take(key, chunks)

    def _take(self, key, chunks):
        try:
            made = next(chunks)
        except Exception as error:
            self.failed[key] = error
            del self.live[key]
            return
        if isinstance(made, Step):
            self.steps[key].append(made)
            return
        assert isinstance(made, Chunk)
        self.made.setdefault(key, []).append(made)
        if made.finished:
            del self.live[key]

    def run(self):
        while self.live:
            self.round()
        return {key: chunks[-1].tensors["image"] for key, chunks in self.made.items() if "image" in chunks[-1].tensors}
