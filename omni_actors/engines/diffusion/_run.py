"""One request at work: the pipeline's own ``__call__`` in a greenlet of its own, which stands still at each call of a
denoiser until the engine has made its pass.

Owns a copy of the pipeline (what a call keeps on ``self`` is this request's alone), a scheduler, a random generator and
the count of steps. Nothing of it is shared but the models.
"""

from __future__ import annotations

import copy
import functools
import math
import time
from typing import TYPE_CHECKING, Any

import greenlet
import torch

from ._gather import Call, Waits

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["NotFinite", "Run", "placed"]


class NotFinite(ArithmeticError):
    """Raised in the request whose latents or picture are no numbers any more."""


class Run(Waits):
    """``kind``: see ``placed``. ``scheduler``: this request's own. ``arguments``: all of ``__call__``'s.

    ``pending``: the call it waits for.
    """

    def __init__(
        self,
        pipeline: Any,
        kind: type[Any],
        scheduler: Any,
        arguments: Mapping[str, Any],
        adapters: tuple[tuple[str, float], ...] = (),
    ) -> None:
        super().__init__()
        self.adapters = adapters
        self.pending: Call | None = None
        self.output: Any = None
        self.passes = self.done = 0
        self.latents: torch.Tensor | None = None
        self.scheduler = scheduler
        self.arguments = arguments
        self._pipeline = self._own(pipeline, kind)
        self._first_at = self._last_at = 0.0

    def _own(self, pipeline: Any, kind: type[Any]) -> Any:
        own = copy.copy(pipeline)
        own.__class__ = kind
        # Not by setattr, which diffusers watches: the copy's configuration is still everybody's.
        if self.scheduler is not None:
            self.scheduler.step = self._counted(self.scheduler.step)
            vars(own)["scheduler"] = self.scheduler
        # A pipeline's last act is to take all models from the device; with offloading, others are at work on them.
        vars(own)["maybe_free_model_hooks"] = _nothing
        return own

    def _counted(self, step: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(step)  # pipelines look which arguments it takes
        def counted(*args: Any, **kwargs: Any) -> Any:
            made = step(*args, **kwargs)
            self._stepped(made[0] if isinstance(made, tuple) else made.prev_sample)
            return made

        return counted

    def _stepped(self, latents: torch.Tensor) -> None:
        self.done += 1
        self.latents = latents
        self._last_at = time.monotonic()
        # Looking costs nothing on a CPU; an accelerator would have to be waited for, so there once, at the end.
        if (latents.device.type == "cpu" or self.done == self.total) and not _finite(latents):
            raise NotFinite(f"the latents are not finite after step {self.done} of {self.total}")

    def run(self) -> Any:
        """The greenlet's own code."""
        return self._pipeline(**self.arguments)

    def advance(self) -> bool:
        """Go on to the next call of a denoiser; True: it is done, and ``output`` is there.

        Raises what the pipeline raises, also what a pass raised if the pipeline does not catch it.
        """
        call, self.pending = self.pending, None
        self.passes += call is not None
        if call is not None and call.error is not None:
            came = self.throw(call.error)
        else:
            came = self.switch(call.result) if call is not None else self.switch()
        if self.dead:
            self.output = came
            return True
        self.pending = came
        self._first_at = self._first_at or time.monotonic()
        return False

    def close(self) -> None:
        """Leave the pipeline where it stands; it sees ``GreenletExit``. Idempotent."""
        self.pending = None
        if self and not self.dead:
            self.throw(greenlet.GreenletExit)

    @property
    def total(self) -> int:
        """How many steps it takes; 0 while that is unknown."""
        if self.pending is None and not self.passes:
            return 0
        counted = vars(self._pipeline).get("_num_timesteps")  # fewer than the scheduler's where a picture goes in
        return counted or len(getattr(self.scheduler, "timesteps", ()))

    def eta_s(self, total: int) -> float | None:
        """Seconds to go, if the next steps take as long as those so far; None before the first."""
        if not self.done:
            return None
        return max(0, total - self.done) * (self._last_at - self._first_at) / self.done


def placed(pipeline: Any) -> type[Any]:
    """The pipeline's class for the copies of it, which know where its models run: diffusers looks through all their
    parts for that, several times a call.
    """
    kind = type(pipeline)
    if not isinstance(getattr(kind, "_execution_device", None), property):
        return kind
    known = {"__module__": kind.__module__, "_execution_device": pipeline._execution_device}
    return type(kind.__name__, (kind,), known)


def _finite(latents: torch.Tensor) -> bool:
    """A sum is one pass and tells nearly always; finite values may add up to more than their type holds."""
    return math.isfinite(latents.sum().item()) or bool(torch.isfinite(latents).all())


def _nothing() -> None:
    """What a request's copy of a pipeline frees at its end."""
