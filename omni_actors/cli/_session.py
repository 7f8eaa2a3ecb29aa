"""One pipeline for the length of a command: its start shown, Ctrl-C obeyed, its shutdown reported."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

import attrs
import trio

from omni_actors.cli._interrupts import Interrupts
from omni_actors.cli._progress import StartupDisplay
from omni_actors.runtime import ShutdownReport, open_omni

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from rich.console import Console

    from omni_actors.config import PipelineSpec
    from omni_actors.runtime import OmniRuntime

__all__ = ["Session", "run_session"]

T = TypeVar("T")


@attrs.frozen
class Session(Generic[T]):
    """How it went: what the body returned, seconds until every stage was ready, and the end of the engines.

    ``interrupted``: there was a Ctrl-C, and the body finished nevertheless.
    """

    result: T
    startup_s: float
    report: ShutdownReport
    interrupted: bool


def run_session(
    spec: PipelineSpec, body: Callable[[OmniRuntime], Awaitable[T]], console: Console, *, drain: bool = True
) -> Session[T]:
    """Open ``spec``, run ``body`` in it, close it. Blocking; ``console`` (stderr) gets the progress.

    ``drain``: the first Ctrl-C lets what runs finish, the second ends it; without, the first does.

    Raises what ``body`` and ``open_omni`` raise, and KeyboardInterrupt if a signal ended the work before its end.
    """
    return trio.run(_session, spec, body, console, drain)


async def _session(
    spec: PipelineSpec, body: Callable[[OmniRuntime], Awaitable[T]], console: Console, drain: bool
) -> Session[T]:
    interrupts = Interrupts(lambda words: console.print(words, highlight=False), drain=drain)
    made: Session[T] | None = None
    failure: Exception | None = None
    async with trio.open_nursery() as nursery:
        await nursery.start(interrupts.listen)
        display = StartupDisplay(spec, console)
        nursery.start_soon(display.run)
        try:
            with interrupts.scope:
                made = await _open(spec, body, display, interrupts)
        except Exception as error:  # raised below, outside the nursery, which would put it into a group
            failure = error
        finally:
            display.close()
        nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure
    if made is None:
        raise KeyboardInterrupt
    return attrs.evolve(made, interrupted=interrupts.count > 0)


async def _open(
    spec: PipelineSpec,
    body: Callable[[OmniRuntime], Awaitable[T]],
    display: StartupDisplay,
    interrupts: Interrupts,
) -> Session[T]:
    began_at = trio.current_time()
    async with open_omni(spec, on_event=display.on_event) as omni:
        startup_s = trio.current_time() - began_at
        display.close()
        interrupts.attach(omni)
        result = await body(omni)
    return Session(result, startup_s, omni.shutdown_report, interrupted=False)
