"""``serve``: an OpenAI server in front of a pipeline, until a signal."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING, NoReturn

import attrs

from omni_actors.cli._exit import Code, Missing
from omni_actors.cli._progress import Startup
from omni_actors.cli._tables import shutdown_line
from omni_actors.config import resolve

if TYPE_CHECKING:
    from rich.console import Console

    from omni_actors.stages import StageEvent

__all__ = ["ServeJob", "run_serve"]


@attrs.frozen(kw_only=True)
class ServeJob:
    """What was asked on the command line. ``limits`` as in ``body_bytes=1000``; ``extra``: the options after ``--``."""

    target: str
    host: str
    port: int
    overrides: tuple[str, ...] = ()
    limits: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()
    log_level: str = "warning"


def run_serve(job: ServeJob, progress: Console) -> Code:
    """Blocking. 0 after a signal, however many; 130 if it came before the engines were up. Raises UsageError."""
    spec = resolve(job.target, job.overrides).spec
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
        _leave(Code.INTERRUPTED)
    say(shutdown_line(served.report))
    return Code.OK


def _leave(code: Code) -> NoReturn:
    """Nothing of the runtime is left but a thread that is in the middle of loading vLLM. It cannot be stopped, and an
    interpreter that is taken down under it waits for it, or aborts in native code.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
