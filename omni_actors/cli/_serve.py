"""``serve``: an OpenAI server in front of a pipeline, until a signal."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any

import attrs

from omni_actors.cli._exit import Code, Missing
from omni_actors.cli._progress import Startup
from omni_actors.cli._tables import shutdown_line
from omni_actors.config import resolve

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console

    from omni_actors.stages import StageEvent

__all__ = ["ServeJob", "run_serve"]


@attrs.frozen(kw_only=True)
class ServeJob:
    """What was asked on the command line. ``limits`` as in ``body_bytes=1000``; ``extra``: the options after ``--``.

    ``options``: vLLM-Omni's, where the target is a model.
    """

    target: str
    host: str
    port: int
    model: str | None = None
    options: Mapping[str, Any] = attrs.field(factory=dict)
    overrides: tuple[str, ...] = ()
    limits: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()
    log_level: str = "warning"


def run_serve(job: ServeJob, progress: Console) -> Code:
    """Blocking. 0 after a signal, however many; 130 if it came before the engines were up. Raises UsageError."""
    with _given_up_by_a_signal(progress):
        return _serve(job, progress)


@contextmanager
def _given_up_by_a_signal(progress: Console) -> Iterator[None]:
    """Until the server has handlers of its own. Nothing is started yet, so there is nothing to stop; and an exception
    would be raised in the middle of whatever is being imported, which may be C++ that lets none through.
    """

    def give_up(*_: object) -> None:
        progress.print("interrupted: the start is given up")
        os._exit(Code.INTERRUPTED)

    before = {number: signal.signal(number, give_up) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _serve(job: ServeJob, progress: Console) -> Code:
    spec = resolve(job.target, job.overrides, model=job.model, options=job.options).spec
    try:
        # By name: nothing in omni_actors imports asyncio (a contract of `make lint`); the adapter is where it lives.
        server = import_module("omni_actors_asyncio.server")
    except ModuleNotFoundError as error:
        raise Missing(f"serve needs vLLM and its server: {error.name} is not installed") from error

    def say(words: str) -> None:
        progress.print(words, highlight=False, markup=False, soft_wrap=True)

    startup = Startup(spec)

    def on_event(event: StageEvent) -> None:
        changed = startup.heard(event)
        if changed is not None:
            took = f" after {changed.seconds(event.at):.1f} s" if changed.ended_at is not None else ""
            say(f"{changed.stage} ({changed.what}): {changed.state}{took}")

    options = server.ServeOptions(
        spec=spec,
        host=job.host,
        port=job.port,
        extra=job.extra,
        limits=server.HttpLimits.of(job.limits),
        log_level=job.log_level,
        on_event=on_event,
        say=say,
    )
    served = server.serve(options)
    if not served.started:
        return Code.INTERRUPTED
    say(shutdown_line(served.report))
    return Code.OK
