"""A request's ticket that keeps account of its stages while their outputs pass: for what vLLM-Omni calls metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import trio

from omni_actors_asyncio._loop import LoopTicket

if TYPE_CHECKING:
    from collections.abc import Mapping

    from omni_actors import Output
    from omni_actors.lifecycle import Timing
    from omni_actors.runtime._omni import Generation

__all__ = ["MeasuredTicket"]


class MeasuredTicket(LoopTicket):
    """Written to by the trio thread, before the output that it is about can be read; all times are trio's.

    ``came``: when each output of a stage came. ``done``: by stage, what was known of all stages that had finished when
    this one had. ``replicas``: which replica works on it. ``submitted_at``: when the runtime admitted it.
    ``prompt_tokens``: of the first stages that have finished.
    """

    def __init__(self, *args: Any, **how: Any) -> None:
        super().__init__(*args, **how)
        self.came: dict[str, list[float]] = {}
        self.done: dict[str, Mapping[str, Timing]] = {}
        self.replicas: dict[str, int | None] = {}
        self.submitted_at = 0.0
        self.prompt_tokens = 0

    def take_in(self, generation: Generation) -> None:
        """See ``Ticket``."""
        self.submitted_at = generation.submitted_at
        super().take_in(generation)

    def push(self, output: Output) -> bool:
        """See ``Sink``."""
        stage, generation = output.stage, self.generation
        if generation is not None:
            if stage not in self.came:
                self.replicas[stage] = generation.timings()[stage].replica
            self.came.setdefault(stage, []).append(trio.current_time())
            if output.payload.finish_reason is not None:
                self.done[stage] = generation.timings(complete=True)
                self.prompt_tokens = generation.prompt_tokens
        return super().push(output)
