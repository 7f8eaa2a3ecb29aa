"""What both front-ends of a benchmark do: the stages, the prompts, a round of requests, and how it is written down.

``Job`` and ``Round`` travel as JSON lines between the benchmark and the two front-ends, each a process of its own.
"""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING, Any, TextIO

import msgspec
import trio

from omni_actors.config import InputSpec, PipelineSpec, StageSpec
from omni_actors.pipelines.tiny_omni._questions import BENCH_SEED, questions
from omni_actors.pipelines.tiny_omni._vocabulary import WEIGHTS

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

__all__ = ["PARAMS", "TOKENS", "Answer", "Job", "Round", "own_channel", "pipeline", "prompts", "run_round"]

TOKENS = 16
"""What every stage makes of every request."""

_ENGINE_ARGS: Mapping[str, Any] = {
    "dtype": "float32",
    "max_model_len": 128,
    "max_num_seqs": 64,
    "enforce_eager": True,
    "kv_cache_memory_bytes": 64 << 20,
    "gpu_memory_utilization": 0.2,
}
_ENV: Mapping[str, str] = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
PARAMS: Mapping[str, Any] = {"temperature": 0.0, "max_tokens": TOKENS, "ignore_eos": True}


class Job(msgspec.Struct, frozen=True):
    """One round: ``requests`` in all, ``concurrent`` at any time, beginning with prompt number ``first``."""

    concurrent: int
    requests: int
    first: int = 0


class Answer(msgspec.Struct, frozen=True):
    """One request's outcome, times in seconds from its begin."""

    text: str
    token_ids: list[int]
    first_s: float
    total_s: float


class Round(msgspec.Struct, frozen=True):
    """What one round gave. ``cpu_s``: process time of everything on the host's side. ``answers`` by number."""

    wall_s: float
    cpu_s: float
    answers: list[Answer]


def pipeline(bench: str) -> PipelineSpec:
    """``engine``: one stage. ``chain``: three, each fed with the tokens of the one before, as they are."""
    names = ("only",) if bench == "engine" else ("first", "second", "third")
    return PipelineSpec(name=f"bench-{bench}", stages=[_stage(names, number) for number in range(len(names))])


def _stage(names: tuple[str, ...], number: int) -> StageSpec:
    return StageSpec(
        name=names[number],
        engine="vllm",
        model=str(WEIGHTS / "thinker"),
        engine_args=_ENGINE_ARGS,
        env=_ENV,
        inputs=[InputSpec(stage=names[number - 1])] if number else [],
        output="text" if number == len(names) - 1 else None,
        params=PARAMS,
    )


def prompts(count: int) -> list[str]:
    """The first ``count`` questions, the same ones for everybody."""
    return [question.text for question in questions(count, BENCH_SEED)]


async def run_round(job: Job, asks: Sequence[Callable[[str], Awaitable[Answer]]], cpu_s: Callable[[], float]) -> Round:
    """One round on trio. ``asks``: what each of the ``job.concurrent`` workers asks with; ``cpu_s``: the host's so far.

    Raises what they raise, in a group.
    """
    texts = prompts(job.first + job.requests)[job.first :]
    answers: list[Answer | None] = [None] * len(texts)
    numbers = iter(range(len(texts)))

    async def worker(ask: Callable[[str], Awaitable[Answer]]) -> None:
        for number in numbers:
            answers[number] = await ask(texts[number])

    began_at, began_cpu_s = time.perf_counter(), cpu_s()
    async with trio.open_nursery() as nursery:
        for ask in asks:
            nursery.start_soon(worker, ask)
    wall_s, used_s = time.perf_counter() - began_at, cpu_s() - began_cpu_s
    return Round(wall_s, used_s, [answer for answer in answers if answer is not None])


def own_channel() -> TextIO:
    """The standard output as this program's own channel: what libraries print goes to stderr from here on."""
    channel = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    return channel
