"""``bench idle``: all engines are up, nobody asks anything. What does the host do?

In periods of ten seconds: CPU time of the host and of the reaper, to the nanosecond; steps of trio's scheduler; how
often any thread of theirs was woken (its voluntary context switches). What the measuring itself costs, one step and one
wake-up per period, is taken off. An engine that writes to its log or a worker thread that ends is a real event; the
first period begins when trio's idle threads are gone.
"""

from __future__ import annotations

import os
import statistics
import threading
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import trio

from omni_actors.cli._bench import BenchResult, Bound
from omni_actors.cli._demo import PIPELINE, require
from omni_actors.runtime import open_omni

from ._proc import cpu_s, descendants, switches

if TYPE_CHECKING:
    from collections.abc import Sequence

    from omni_actors.cli._bench import BenchOptions
    from omni_actors.runtime import OmniRuntime

__all__ = ["PERIOD_S", "Period", "Steps", "measure", "run", "summary"]

PERIOD_S = 10.0
_PERIODS = 3
_QUIET_S = 11.0  # trio keeps an idle worker thread for ten seconds
_BOUND_S = PERIOD_S * 0.001


@attrs.frozen(kw_only=True)
class Period:
    """One period: CPU seconds, wake-ups of any thread, and the tasks that trio stepped."""

    cpu_s: float
    wakeups: int
    steps: Counter[str]


class Steps(trio.abc.Instrument):
    """Counts which tasks the scheduler steps, all but one: the task that measures."""

    def __init__(self, measuring: trio.lowlevel.Task) -> None:
        self.steps: Counter[str] = Counter()
        self._measuring = measuring

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        if task is not self._measuring:
            self.steps[task.name] += 1


async def run(options: BenchOptions) -> BenchResult:
    """Start tiny-omni, ask one question, wait, look. Raises Missing without the engines or the vocoder."""
    require()
    async with open_omni(PIPELINE) as omni:
        await _ask(omni)
        options.progress(f"all engines are up; {_QUIET_S:.0f} s until trio's worker threads are gone")
        await trio.sleep(_QUIET_S)
        hosts = host_processes(omni)
        periods = []
        for number in range(_PERIODS):
            options.progress(f"period {number + 1} of {_PERIODS}: {PERIOD_S:.0f} s without a request")
            periods.append(await measure(hosts, PERIOD_S))
    return summary(periods, len(hosts))


async def _ask(omni: OmniRuntime) -> None:
    async with omni.generate("What is two plus three?", timeout_s=60) as stream:
        async for _ in stream:
            pass


def host_processes(omni: OmniRuntime) -> list[int]:
    """This process and its children that are no engines: the reaper."""
    engines = set(omni.pids().values())
    below = set().union(*(descendants(pid) for pid in engines))
    return [os.getpid(), *sorted(descendants(os.getpid()) - engines - below)]


async def measure(pids: Sequence[int], period_s: float) -> Period:
    """Look at these processes, this one among them, for one period."""
    steps = Steps(trio.lowlevel.current_task())
    trio.lowlevel.add_instrument(steps)
    woken, used_s = switches(pids), cpu_s(pids)
    await trio.sleep(period_s)
    used_s = cpu_s(pids) - used_s
    woken = switches(pids) - woken
    trio.lowlevel.remove_instrument(steps)
    return Period(cpu_s=used_s, wakeups=max(0, woken - 1), steps=steps.steps)


def summary(periods: Sequence[Period], processes: int) -> BenchResult:
    """The metrics: medians over the periods."""
    samples = {
        "host_cpu_s_per_10s": [period.cpu_s for period in periods],
        "wakeups_per_s": [period.wakeups / PERIOD_S for period in periods],
        "steps_per_s": [period.steps.total() / PERIOD_S for period in periods],
    }
    stepped = sum((period.steps for period in periods), Counter[str]())
    return BenchResult(
        metrics={name: statistics.median(values) for name, values in samples.items()},
        samples=samples,
        notes=(
            f"{processes} host-side processes, {threading.active_count()} threads of Python here, {_threads()} in all",
            f"stepped by trio: {', '.join(f'{name} {count}' for name, count in stepped.most_common(5)) or 'nothing'}",
            "the end of the measurement's own sleep is not counted",
        ),
        bounds={
            "host_cpu_s_per_10s": Bound(high=_BOUND_S),
            "wakeups_per_s": Bound(high=0.1),
            "steps_per_s": Bound(high=0),
        },
    )


def _threads() -> int:
    return len(list(Path("/proc/self/task").iterdir()))
