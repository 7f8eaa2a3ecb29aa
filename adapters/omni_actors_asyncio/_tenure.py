"""On what terms a bridge has its runtime: its own, which ends with it, or one of somebody else's, which goes on.

Everything here is called in the trio thread.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Protocol

import attrs
import trio

from omni_actors import ShutdownReport, UsageError, open_omni
from omni_actors.runtime._open import pipeline_spec

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from contextlib import AbstractAsyncContextManager

    from omni_actors import OmniRuntime, PipelineSpec, StageSpec

__all__ = ["Borrowed", "Owned", "Requests", "Tenure"]


class Requests(Protocol):
    """The bridge's own requests, as far as the end of its life is concerned."""

    async def emptied(self) -> None:
        """Wait until each has its end."""

    def drop(self, reason: str) -> None:
        """Abort all of them; synchronous."""


class Tenure(Protocol):
    """See the module."""

    def open(self) -> AbstractAsyncContextManager[OmniRuntime]:
        """The runtime, for the length of a block."""

    def request_close(
        self, omni: OmniRuntime, *, drain_s: float | None, abort_s: float | None, stop_s: float | None
    ) -> None:
        """Begin to leave, or shorten what is left of it. Synchronous; seconds from now."""

    async def leave(self, omni: OmniRuntime, requests: Requests) -> None:
        """Finish or abort what is running; bounded."""

    def evict(self, requests: Requests) -> None:
        """The block is being left, whatever happened before. Synchronous; nothing if ``leave`` has returned."""

    def report(self, omni: OmniRuntime) -> ShutdownReport:
        """How it went."""


class Owned:
    """A runtime of its own. The arguments are ``open_omni``'s. ``log_stats``: vLLM's engines say what they do."""

    def __init__(self, pipeline: Any, *, overrides: Sequence[str] = (), log_stats: bool = False, **how: Any) -> None:
        self._pipeline, self._overrides, self._log_stats, self._how = pipeline, overrides, log_stats, how

    @asynccontextmanager
    async def open(self) -> AsyncIterator[OmniRuntime]:
        opened: OmniRuntime | None = None
        try:
            async with open_omni(self._spec(), **self._how) as opened:
                yield opened
        finally:
            if opened is not None:
                _close_renderers(opened)

    def _spec(self) -> PipelineSpec:
        spec = pipeline_spec(self._pipeline, self._overrides)
        return attrs.evolve(spec, stages=tuple(map(_logging, spec.stages))) if self._log_stats else spec

    def request_close(
        self, omni: OmniRuntime, *, drain_s: float | None, abort_s: float | None, stop_s: float | None
    ) -> None:
        omni.request_shutdown(drain_s=drain_s, abort_s=abort_s, stop_s=stop_s)

    async def leave(self, omni: OmniRuntime, requests: Requests) -> None:
        await omni.shutdown()

    def evict(self, requests: Requests) -> None:
        """The ladder does that."""

    def report(self, omni: OmniRuntime) -> ShutdownReport:
        return omni.shutdown_report


class Borrowed:
    """A runtime that its trio program opened, and closes. Leaving it ends the requests that came this way."""

    def __init__(self, omni: OmniRuntime) -> None:
        self._omni = omni
        self._draining = trio.CancelScope()

    @asynccontextmanager
    async def open(self) -> AsyncIterator[OmniRuntime]:
        """Raises UsageError in another trio run than the runtime's."""
        if not self._omni.here:
            raise UsageError("this runtime belongs to another trio run than this loop")
        yield self._omni

    def request_close(
        self, omni: OmniRuntime, *, drain_s: float | None, abort_s: float | None, stop_s: float | None
    ) -> None:
        """``abort_s`` is the runtime's own for every request, and no engine is stopped."""
        within_s = omni.spec.drain_s if drain_s is None else drain_s
        self._draining.deadline = min(self._draining.deadline, trio.current_time() + within_s)

    async def leave(self, omni: OmniRuntime, requests: Requests) -> None:
        with self._draining:
            await requests.emptied()

    def evict(self, requests: Requests) -> None:
        requests.drop("its AsyncOmni is closed")

    def report(self, omni: OmniRuntime) -> ShutdownReport:
        """Nothing was shut down."""
        return ShutdownReport()


def _logging(stage: StageSpec) -> StageSpec:
    """AsyncLLM's default is to log; what the stage itself says of it stands."""
    if stage.engine != "vllm":
        return stage
    return attrs.evolve(stage, engine_args={"disable_log_stats": False, **stage.engine_args})


def _close_renderers(omni: OmniRuntime) -> None:
    """vLLM's front-ends have threads."""
    for stage in omni.spec.stages:
        renderer = getattr(omni.frontend(stage.name), "renderer", None)
        if renderer is not None:
            renderer.shutdown()
