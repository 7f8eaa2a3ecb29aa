"""The watchdog of a run in virtual time, and who waits where: a run's tree of tasks as text.

Virtual time costs nothing while nothing happens, so a deadlock is seen within milliseconds of real time. Uses nothing
of trio's but its public introspection. The text names no addresses and no folders of this machine, so that equal runs
give equal texts (I25).
"""

from __future__ import annotations

import gc
from pathlib import PurePath
from typing import TYPE_CHECKING

import attrs
import trio

from ._history import Deadlocked

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from omni_actors.config import PipelineSpec

    from ._history import History

__all__ = ["DEADLOCK_S", "patience_s", "waiting_tasks", "watchdog"]

DEADLOCK_S = 1e6
AN_HOUR_S = 3600.0
STARTS = 4
"""So often a replica starts before it is down for good."""


def patience_s(spec: PipelineSpec, last_s: float) -> float:
    """When the watchdog of a run whose last operation is at ``last_s`` loses patience, in seconds from the beginning.

    An hour after all the deadlines of the pipeline. Not much later, because what beats for ever does not stop time.
    """
    stages = [attrs.asdict(stage.deadlines) for stage in spec.stages]
    longest = max(sum(seconds or 0.0 for seconds in stage.values()) for stage in stages)
    return min(DEADLOCK_S, last_s + spec.drain_s + spec.abort_s + STARTS * longest + AN_HOUR_S)


async def watchdog(
    root: trio.lowlevel.Task, scope: trio.CancelScope, history: History, due: Callable[[], float]
) -> None:
    """When ``due()`` has come, say who waits under ``root`` and end the run by ``scope``; an hour later, end it through
    its shields. ``due``: in the run's time; it may become later.
    """
    while (now := trio.current_time()) < (at := due()):  # noqa: ASYNC110 — the end moves while it waits
        await trio.sleep_until(at)
    history.events.append(Deadlocked(at=now, tasks=waiting_tasks(root)))
    scope.cancel()
    await trio.sleep(AN_HOUR_S)
    _tear_shields()


def waiting_tasks(root: trio.lowlevel.Task) -> str:
    """``root`` and every task below it, one per line, with the ``file:line`` at which it waits. The caller's is left
    out. For calls between two steps, from a task outside of the tree or from outside of the run.
    """
    return "\n".join(_lines(root, 0))


def _tear_shields() -> None:
    """Cancel every scope of every task, shielded or not: for runs that hang through their cancellation, nothing else.

    Finds them among all objects: a simulation is the only run of its process.
    """
    trios = {nursery.cancel_scope for nursery in _root().child_nurseries}
    for found in [thing for thing in gc.get_objects() if isinstance(thing, trio.CancelScope)]:
        if found not in trios:
            found.shield = False
            found.cancel()


def _root() -> trio.lowlevel.Task:
    root = trio.lowlevel.current_root_task()
    assert root is not None, "outside of a run"
    return root


def _lines(task: trio.lowlevel.Task, depth: int) -> list[str]:
    below = [_lines(child, depth + 1) for nursery in task.child_nurseries for child in nursery.child_tasks]
    # A nursery's tasks are a set: their own text is the order that repeats.
    return [f"{'  ' * depth}{task.name}: {_place(task)}", *(line for lines in sorted(below) for line in lines)]


def _place(task: trio.lowlevel.Task) -> str:
    """The innermost frame that is not trio's own, and what of trio's it waits in."""
    own, waits_in = None, ""
    for frame, line in task.iter_await_frames():
        if _is_trios(frame):
            waits_in = waits_in or frame.f_code.co_qualname
        else:
            own, waits_in = f"{_short(frame)}:{line} in {frame.f_code.co_qualname}", ""
    return f"{own or 'not started'}{f' ({waits_in})' if waits_in else ''}"


def _is_trios(frame: FrameType) -> bool:
    module = str(frame.f_globals.get("__name__", ""))
    return module.partition(".")[0] in ("trio", "outcome", "contextlib")


def _short(frame: FrameType) -> str:
    """The file, from its package's folder on."""
    package = str(frame.f_globals.get("__package__") or "").split(".")
    parts = PurePath(frame.f_code.co_filename).parts
    return "/".join(parts[-1 - len(package) :] if package != [""] else parts[-1:])
