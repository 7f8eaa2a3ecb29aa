"""Schedules for tiny-omni's real engines: the same faults on vLLM's processes, at the pace at which those restart.

An engine takes seconds to start here, so a schedule hurts each of them about once and mostly its users, and ends
before all have come back.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import attrs

from omni_actors.config import resolve
from omni_actors.testing.sim._scenario import (
    Abort,
    Cancel,
    Kill,
    Leave,
    Op,
    Resume,
    Scenario,
    Shutdown,
    Stall,
    Submit,
)

from ._schedule import OPEN_AT
from ._world import with_worker

if TYPE_CHECKING:
    from omni_actors.config import PipelineSpec

__all__ = ["real_pipeline", "real_plain", "real_schedule"]

STAGES = ("thinker", "talker", "vocoder", "painter")
WORKERS = ("thinker", "talker")
WINDOW_S = 6.0
QUESTION = "What is two plus three, and nine minus four?"
_LIMITS = {
    "start_s": 240.0, "placement_s": 4.0, "edge_s": 30.0, "silence_s": 1.0, "hang_s": 5.0, "stop_s": 5.0, "kill_s": 2.0,
    "backoff_first_s": 0.1,
}  # fmt: skip


def real_pipeline() -> PipelineSpec:
    """tiny-omni with short deadlines, and with the workers that are to be killed."""
    spec = resolve("tiny-omni", ()).spec
    stages = [with_worker(stage) if stage.name in WORKERS else stage for stage in spec.stages]
    stages = [attrs.evolve(stage, deadlines=attrs.evolve(stage.deadlines, **_LIMITS)) for stage in stages]
    return attrs.evolve(spec, stages=stages, drain_s=4.0, abort_s=3.0)


def real_plain() -> Scenario:
    """A start, an answer, a stop."""
    return Scenario(ops=(Submit(at=OPEN_AT, request="r0", prompt=QUESTION),), buggify=False)


def real_schedule(seed: int) -> Scenario:
    """The schedule of this seed: ten requests, ten planned faults, an end."""
    draw = random.Random(seed)
    requests = [f"r{number}" for number in range(10)]
    ops: list[Op] = [_submit(draw, name) for name in requests]
    victims = draw.sample(STAGES, k=3)
    for stage, fault in zip(victims, draw.sample((_kill, _term, _worker, _recovery, _stop), k=3), strict=True):
        ops += fault(draw, OPEN_AT + draw.uniform(0.5, WINDOW_S), stage)
    for request in draw.sample(requests, k=7):
        ops.append(_user(draw, request, next(op.at for op in ops if isinstance(op, Submit) and op.request == request)))
    ops += draw.choice(_ENDS)(OPEN_AT + WINDOW_S + draw.uniform(0, 2))
    return Scenario(ops=tuple(sorted(ops, key=lambda op: op.at)), seed=seed, buggify=False)


def _submit(draw: random.Random, name: str) -> Submit:
    return Submit(
        at=OPEN_AT + draw.uniform(0, WINDOW_S),
        request=name,
        prompt=QUESTION,
        params={"ignore_eos": True, "max_tokens": 100} if draw.random() < 0.6 else None,
        modalities=draw.choice((None, ("text",))),
        inside=draw.random() < 0.7,
    )


def _user(draw: random.Random, request: str, after: float) -> Op:
    """Soon after it was asked, so that it is still at work."""
    at = after + draw.uniform(0.0, 0.2)
    return draw.choice((Abort(at=at, id=request), Leave(at=at, request=request)))


def _kill(draw: random.Random, at: float, stage: str) -> list[Op]:
    return [Kill(at=at, stage=stage)]


def _term(draw: random.Random, at: float, stage: str) -> list[Op]:
    return [Kill(at=at, stage=stage, signal="TERM")]


def _worker(draw: random.Random, at: float, stage: str) -> list[Op]:
    return [Kill(at=at, stage=stage if stage in WORKERS else draw.choice(WORKERS), member="worker")]


def _recovery(draw: random.Random, at: float, stage: str) -> list[Op]:
    return [Kill(at=at, stage=stage, member="next"), Kill(at=at, stage=stage)]


def _stop(draw: random.Random, at: float, stage: str) -> list[Op]:
    stall = Stall(at=at, stage=stage)
    return [stall, Resume(at=at + draw.uniform(0.1, 2.0), stage=stage)] if draw.random() < 0.7 else [stall]


def _leave_it(at: float) -> list[Op]:
    return []


def _shutdown(at: float) -> list[Op]:
    return [Shutdown(at=at)]


def _twice(at: float) -> list[Op]:
    return [Shutdown(at=at), Shutdown(at=at + 0.1, drain_s=0, stop_s=1)]


def _cancelled(at: float) -> list[Op]:
    return [Cancel(at=at)]


_ENDS = (_leave_it, _shutdown, _twice, _cancelled)
