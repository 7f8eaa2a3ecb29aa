"""DiffusersModel: any diffusers pipeline as a class that the engine hosts, with continuous batching between steps.

Each request runs the pipeline's own code (see ``_run``), so it can ask for all that the pipeline can. In each round the
denoiser calls of all requests are gathered (``_gather``), and each request takes one step. Requests join and leave
between two rounds; an aborted one is in no later pass.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch

from omni_actors._errors import InvalidRequest
from omni_actors.engines._generator import Chunk, Step, first_line

from ._gather import Gather
from ._load import denoisers, device_of, load, scheduler_named
from ._options import Options
from ._previews import Previews
from ._request import Asked, Reader
from ._results import chunks, sample_rate
from ._run import Run, placed
from ._service import Service

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from omni_actors.engines._generator import Item

__all__ = ["DiffusersModel"]


class DiffusersModel(Service):
    """Keyword arguments: those of ``Options``. Implements ``Generator``; the calls are in ``Service``.

    Raises Unloadable for a model that cannot be loaded, UsageError for options that cannot be.
    """

    def __init__(self, **args: Any) -> None:
        options = Options(**args)
        if options.threads is not None:
            torch.set_num_threads(options.threads)
        # For this thread, once: pipelines switch gradients off and back on, and here their calls interleave.
        torch.set_grad_enabled(False)
        self._pipeline = load(options)
        self._kind = placed(self._pipeline)
        super().__init__(self._pipeline, device_of(options), options.offload)
        self._reader = Reader(self._pipeline, options)
        self._previews = Previews(self._pipeline)
        self._gather = Gather(denoisers(self._pipeline, options), share=options.share, activate=self.activate)
        self._rate = sample_rate(self._pipeline)
        self._room = options.max_batch_pixels
        self._steps = 0

    # ------------------------------------------------------------------ Generator

    def start(self, item: Item) -> Iterator[Chunk | Step]:
        """Raises InvalidRequest for what the pipeline cannot be asked."""
        asked = self._reader.read(item)
        self.check_awake()
        self.check_adapters(asked.lora)
        if asked.preview_every:
            self._previews.check()
        run = item.state = Run(self._pipeline, self._kind, self._scheduler(asked), asked.arguments, asked.lora)
        return self._work(run, asked)

    def fits(self, item: Item, batch: Sequence[Item]) -> bool:
        """Whether the pixels of all are within ``max_batch_pixels``, or within what memory has been seen to allow."""
        if self._room is None:
            return True
        return self._reader.pixels(item) + sum(map(self._reader.pixels, batch)) <= self._room

    def step(self, batch: Sequence[Item]) -> None:
        """One pass for every request that waits for one; those that fit together share it."""
        self.turn_profiler()
        self._gather.take_over()
        calls = [call for item in batch if (call := item.state.pending) is not None]
        self._steps += len(calls)
        self._gather.run(calls)
        if self._gather.overflowed:
            self._gather.overflowed = False
            self._room = max(1, sum(map(self._reader.pixels, batch)) - 1)

    def counters(self) -> dict[str, int]:
        """Of this engine's life: ``steps`` of all requests, ``passes`` of denoisers, and those that several shared."""
        gather = self._gather
        return {"steps": self._steps, "passes": gather.passes, "shared_passes": gather.shared_passes}

    # ------------------------------------------------------------------ one request

    def _work(self, run: Run, asked: Asked) -> Iterator[Chunk | Step]:
        try:
            while not self._advanced(run):
                yield self._step(run, asked)
            meta: dict[str, Any] = {"seed": asked.seed, "steps": run.done}
            if asked.warnings:
                meta["warnings"] = list(asked.warnings)
            yield from chunks(run.output, meta, self._rate)
        finally:
            run.close()

    def _advanced(self, run: Run) -> bool:
        """What a pipeline refuses before its first pass is what it was asked: the caller's fault."""
        try:
            return run.advance()
        except (ValueError, TypeError) as error:
            if run.passes:
                raise
            raise InvalidRequest(f"{type(self._pipeline).__name__}: {first_line(error)}") from error

    def _step(self, run: Run, asked: Asked) -> Step:
        preview = None
        if asked.preview_every and run.done and run.done % asked.preview_every == 0:
            preview = self._previews.of(run)
        shown, total = asked.progress or preview is not None, run.total
        return Step(done=run.done, total=total, eta_s=run.eta_s(total), preview=preview, shown=shown)

    def _scheduler(self, asked: Asked) -> Any:
        scheduler = getattr(self._pipeline, "scheduler", None)
        if asked.scheduler is None:
            # All but its configuration, which nobody changes.
            return copy.deepcopy(scheduler, {id(config): config for config in (getattr(scheduler, "config", None),)})
        try:
            return scheduler_named(scheduler, asked.scheduler)
        except ValueError as error:
            raise InvalidRequest(str(error)) from error
