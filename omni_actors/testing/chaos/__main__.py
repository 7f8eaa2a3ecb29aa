"""``python -m omni_actors.testing.chaos``: many random schedules on real processes, in a few hosts side by side.

The parent owns the hosts, each a process with a run folder base of its own, and prints what they tell. A schedule's
seed and scenario are printed with whatever was wrong in it. Exits with 0, with 1 if anything was wrong, with 2 for bad
arguments.
"""

from __future__ import annotations

import argparse
import logging
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import trio

from omni_actors.testing.sim._scenario import Scenario, Submit, scenario_from_json

from ._lines import Line, Tally, line_of
from ._real import real_pipeline, real_plain, real_schedule
from ._run import Chaos, private_base
from ._schedule import MIN_FAULTS, OPEN_AT, schedule

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from omni_actors.config import PipelineSpec

__all__ = ["main"]

JOBS = 3
"""Hosts at a time, made for two cores: a schedule waits as much as it computes."""

INTERRUPTED = 130

MAX_POOR = 20
"""Schedules in a row that found too few to hurt, after which a host gives up: then nothing works at all."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it; returns the exit code."""
    asked = _arguments(arguments)
    run = _replay if asked.replay is not None else _lead if asked.host is None else _host
    try:
        return run(asked)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BaseExceptionGroup as group:
        if group.subgroup(KeyboardInterrupt) is None:
            raise
        return INTERRUPTED


def _lead(asked: argparse.Namespace) -> int:
    began = time.monotonic()
    tally = Tally(MIN_FAULTS)
    try:
        codes = trio.run(_parent, asked, tally)
    finally:
        print("\n".join(tally.lines(time.monotonic() - began)), flush=True)
    return int(any(codes) or tally.wrong > 0 or tally.schedules < asked.count)


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m omni_actors.testing.chaos", description=__doc__)
    parser.add_argument("--count", type=int, default=200, help=f"schedules of {MIN_FAULTS} faults or more (200)")
    parser.add_argument("--seed", type=int, default=0, help="the first schedule's (0)")
    parser.add_argument("--jobs", type=int, default=JOBS, help=f"hosts at a time ({JOBS})")
    parser.add_argument("--real", action="store_true", help="on tiny-omni's vLLM engines, not on fakes; one host")
    parser.add_argument("--replay", metavar="JSON", help="run this scenario alone ('-': from stdin)")
    parser.add_argument("--history", type=Path, metavar="FILE", help="with --replay: write the events here, as JSON")
    parser.add_argument("--verbose", action="store_true", help="a line per schedule")
    parser.add_argument("--host", type=int, help=argparse.SUPPRESS)
    asked = parser.parse_args(arguments)
    if asked.count < 1 or asked.jobs < 1:
        parser.error("--count and --jobs are at least 1")
    asked.jobs = 1 if asked.real else min(asked.jobs, asked.count)
    return asked


# ---------------------------------------------------------------------- the parent


async def _parent(asked: argparse.Namespace, tally: Tally) -> list[int]:
    codes: list[int] = []

    async def watch(number: int) -> None:
        codes.append(await _watch_host(asked, number, tally))

    async with trio.open_nursery() as nursery:
        for number in range(asked.jobs):
            nursery.start_soon(watch, number)
    return codes


async def _watch_host(asked: argparse.Namespace, number: int, tally: Tally) -> int:
    command = [sys.executable, "-m", __package__, "--host", str(number), "--jobs", str(asked.jobs)]
    command += ["--count", str(asked.count), "--seed", str(asked.seed), *(["--real"] if asked.real else [])]
    # Cancelled, it is told by SIGTERM and SIGKILL, as trio does it; its engines then end with it.
    process = await trio.lowlevel.open_process(command, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        rest = b""
        async for data in process.stdout:
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                _heard(line, asked, tally)
        return await process.wait()
    except BaseException:
        process.terminate()
        raise


def _heard(raw: bytes, asked: argparse.Namespace, tally: Tally) -> None:
    if not raw.startswith(b"{"):
        return  # a library's word
    line = msgspec.json.decode(raw, type=Line)
    tally.add(line)
    if line.wrong:
        print("\n".join([f"WRONG  {line}", *line.wrong, f"scenario: {line.scenario}"]), flush=True)
    elif asked.verbose and line.seed >= 0:
        print(line, flush=True)
    elif line.seed >= 0 and tally.schedules % 10 == 0:
        print(f"{tally.schedules}/{asked.count}", flush=True)


# ---------------------------------------------------------------------- one host


def _host(asked: argparse.Namespace) -> int:
    """Every ``jobs``-th schedule, until this host's share of them had faults enough."""
    logging.getLogger("omni_actors").setLevel(logging.CRITICAL + 1)  # engines die here by the hundred, as planned
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    share = len(range(asked.host, asked.count, asked.jobs))
    with private_base() as base:
        chaos = Chaos(base)
        pipeline = real_pipeline() if asked.real else None
        first = chaos.run(real_plain() if asked.real else _plain(), pipeline)  # the first complete cycle: the baseline
        _tell(msgspec.structs.replace(line_of(-1, first), faults={}))
        if asked.real:
            chaos.count_threads()  # vLLM has its own, in the host too
        for line in _rich_enough(asked, chaos, pipeline, share):
            _tell(line)
        _tell(Line(threads=chaos.extra_threads()))
    return 0


def _rich_enough(asked: argparse.Namespace, chaos: Chaos, pipeline: PipelineSpec | None, share: int) -> Iterator[Line]:
    seed, rich, poor = asked.seed + asked.host, 0, 0
    while rich < share and poor < MAX_POOR:
        scenario = real_schedule(seed) if asked.real else schedule(seed)
        line = line_of(seed, chaos.run(scenario, pipeline))
        if sum(line.faults.values()) >= MIN_FAULTS:
            rich, poor = rich + 1, 0
        else:
            poor += 1
        yield line
        seed += asked.jobs


def _tell(line: Line) -> None:
    print(msgspec.json.encode(line).decode(), flush=True)


def _plain() -> Scenario:
    return msgspec.structs.replace(schedule(0), ops=(Submit(at=OPEN_AT, request="r0"),))


# ---------------------------------------------------------------------- one scenario again


def _replay(asked: argparse.Namespace) -> int:
    text = sys.stdin.read() if asked.replay == "-" else asked.replay
    try:
        scenario = scenario_from_json(text)
    except msgspec.MsgspecError as error:
        print(f"this is no scenario: {error}", file=sys.stderr)
        return 2
    pipeline = None if scenario.stages else real_pipeline()
    with private_base() as base:
        chaos = Chaos(base)
        chaos.run(_plain() if scenario.stages else real_plain(), pipeline)
        outcome = chaos.run(scenario, pipeline)
        if asked.history is not None:
            asked.history.write_bytes(outcome.history.to_json())
    line = line_of(scenario.seed, outcome)
    print("\n".join([str(line), *line.wrong]))
    return int(bool(line.wrong))


if __name__ == "__main__":
    sys.exit(main())
