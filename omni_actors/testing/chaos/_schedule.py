"""Random schedules: pipelines of fake engines and what happens to them, drawn from a seed. Pure.

A schedule is a ``Scenario`` whose clock waits at ``OPEN_AT`` for the pipeline. Each plans more faults than
``MIN_FAULTS``, because some find nobody: an engine that is being restarted cannot be killed, a request that has ended
cannot be aborted. ``faults_done`` counts, from the history, those that were done.
"""

from __future__ import annotations

import random
import signal
from collections import Counter
from typing import TYPE_CHECKING, Any

import attrs

from omni_actors.testing.sim._history import AbortCalled, Ended, Faulted, Process, ShutdownCalled, StageSaid
from omni_actors.testing.sim._scenario import (
    Abort,
    Cancel,
    Kill,
    Leave,
    Op,
    Resume,
    Scenario,
    Shutdown,
    Stage,
    Stall,
    Submit,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from omni_actors.testing.sim._history import History, Place

__all__ = ["DEADLINES", "FAULTS", "MIN_FAULTS", "OPEN_AT", "SPARE_FAULTS", "faults_done", "schedule"]

OPEN_AT = 1.0
"""The schedule's second at which its clock waits for the pipeline."""

MIN_FAULTS = 6
SPARE_FAULTS = 6
"""Planned beyond the minimum: about one of three finds nobody."""

WINDOW_S = 1.2
"""The time in which a schedule's faults lie: enough for a restarted engine to be ready again and be hurt again."""

DEADLINES = {
    "start_s": 60.0, "placement_s": 3.0, "edge_s": 10.0, "silence_s": 0.3, "hang_s": 1.5, "stop_s": 1.0, "kill_s": 2.0,
    "backoff_first_s": 0.05, "backoff_max_s": 0.2,
}  # fmt: skip
"""Short enough for a schedule to see each pass, long enough for a busy machine not to pass them by itself."""

FAULTS = (
    "SIGKILL", "SIGTERM", "SIGKILL of a worker", "crash during recovery", "SIGSTOP", "abort", "disconnect", "shutdown",
    "second shutdown", "cancel",
)  # fmt: skip
"""What ``faults_done`` counts."""


@attrs.frozen
class _Cast:
    """Whom something can happen to: (stage, replica), stages with workers, requests with the time they come at."""

    places: tuple[tuple[str, int], ...]
    crowded: tuple[str, ...]
    requests: tuple[tuple[str, float], ...]


def schedule(seed: int) -> Scenario:
    """The schedule of this seed: three stages, a handful of requests, twelve planned faults, an end."""
    draw = random.Random(seed)
    stages = _stages(draw)
    submits = [_submit(draw, f"r{number}") for number in range(draw.randint(5, 8))]
    cast = _Cast(
        places=tuple((stage.name, replica) for stage in stages for replica in range(stage.replicas)),
        crowded=tuple(stage.name for stage in stages if stage.behaviour.get("workers")),
        requests=tuple((op.request, op.at) for op in submits),
    )
    ops: list[Op] = [*submits, *faults(draw, cast)]
    ops.sort(key=lambda op: op.at)
    return Scenario(ops=tuple(ops), stages=stages, seed=seed, buggify=False, drain_s=3.0, abort_s=2.0)


def _stages(draw: random.Random) -> tuple[Stage, ...]:
    """A thinker, a talker, a vocoder: two LLMs and an engine on the omni wire; one of them may have a twin."""
    twin = draw.choice(("thinker", "talker", "vocoder", "", "", ""))
    crowded = draw.choice(("thinker", "talker"))

    def stage(name: str, **more: Any) -> Stage:
        behaviour = {**more.pop("behaviour"), **({"workers": 1} if name == crowded else {})}
        return Stage(name=name, replicas=2 if name == twin else 1, behaviour=behaviour, deadlines=DEADLINES, **more)

    pace = {"token_s": draw.choice((0.002, 0.005, 0.01))}
    return (
        stage("thinker", output="text", behaviour={"tokens": 200, **pace}),
        stage("talker", inputs=("thinker",), segments=draw.random() < 0.5, behaviour={"tokens": 24, **pace}),
        stage("vocoder", wire="omni", inputs=("talker",), output="audio", behaviour={"chunks": 4, "chunk_s": 0.01}),
    )


def _submit(draw: random.Random, name: str) -> Submit:
    tokens = draw.choice((8, 40, 100, 200))
    return Submit(
        at=OPEN_AT + draw.uniform(0, 0.6 * WINDOW_S),
        request=name,
        params={"max_tokens": tokens, "n": draw.choice((1, 1, 1, 2))},
        modalities=draw.choice((None, None, ("text",), ("audio",))),
        leave_after=draw.choice((None, None, None, 3)),
        pace_s=draw.choice((0.0, 0.0, 0.01)),
        inside=draw.random() < 0.7,
    )


# ---------------------------------------------------------------------- one fault


def _kill(draw: random.Random, at: float, cast: _Cast) -> list[Op]:
    stage, replica = draw.choice(cast.places)
    return [Kill(at=at, stage=stage, replica=replica)]


def _term(draw: random.Random, at: float, cast: _Cast) -> list[Op]:
    stage, replica = draw.choice(cast.places)
    return [Kill(at=at, stage=stage, replica=replica, signal="TERM")]


def _worker(draw: random.Random, at: float, cast: _Cast) -> list[Op]:
    return [Kill(at=at, stage=draw.choice(cast.crowded), member="worker")]


def _recovery(draw: random.Random, at: float, cast: _Cast) -> list[Op]:
    """Killed, and its next generation while that starts."""
    stage, replica = draw.choice(cast.places)
    return [Kill(at=at, stage=stage, replica=replica, member="next"), Kill(at=at, stage=stage, replica=replica)]


def _stop(draw: random.Random, at: float, cast: _Cast) -> list[Op]:
    """Frozen: for a moment, or until that is found out."""
    stage, replica = draw.choice(cast.places)
    stall = Stall(at=at, stage=stage, replica=replica)
    if draw.random() < 0.2:
        return [stall]
    return [stall, Resume(at=at + draw.uniform(0.01, 0.4), stage=stage, replica=replica)]


def _stop_at_start(draw: random.Random, at: float, cast: _Cast) -> list[Op]:
    """Frozen for a moment while the pipeline starts."""
    stage, replica = draw.choice(cast.places)
    early = draw.uniform(0.1, 0.5)
    return [Stall(at=early, stage=stage, replica=replica), Resume(at=early + 0.2, stage=stage, replica=replica)]


def _abort(draw: random.Random, at: float, cast: _Cast) -> list[Op]:
    request, submitted_at = draw.choice(cast.requests)
    return [Abort(at=submitted_at + _soon(draw), id=request)]


def _leave(draw: random.Random, at: float, cast: _Cast) -> list[Op]:
    request, submitted_at = draw.choice(cast.requests)
    return [Leave(at=submitted_at + _soon(draw), request=request)]


def _soon(draw: random.Random) -> float:
    """Not later than most requests take; now and then much later, or at once."""
    return draw.choice((0.0, draw.uniform(0.0, 0.1), draw.uniform(0.0, 0.1), draw.uniform(0.0, 0.6)))


_ONE: dict[Callable[[random.Random, float, _Cast], list[Op]], int] = {
    _kill: 3, _term: 2, _worker: 1, _recovery: 2, _stop: 3, _stop_at_start: 1, _abort: 3, _leave: 3,
}  # fmt: skip
"""With its weight."""


# ---------------------------------------------------------------------- the end


def _quiet_end(draw: random.Random, at: float) -> list[Op]:
    return []


def _shutdown(draw: random.Random, at: float) -> list[Op]:
    return [Shutdown(at=at - draw.uniform(0, 0.2))]


def _twice(draw: random.Random, at: float) -> list[Op]:
    """Ctrl-C, and again."""
    first = at - draw.uniform(0, 0.2)
    second = first + draw.uniform(0.0, 0.1)
    return [Shutdown(at=first), Shutdown(at=second, drain_s=0, abort_s=draw.choice((0.0, None)), stop_s=0.2)]


def _cancelled(draw: random.Random, at: float) -> list[Op]:
    return [Cancel(at=at - draw.uniform(0, 0.2))]


def _cancelled_shutdown(draw: random.Random, at: float) -> list[Op]:
    first = at - draw.uniform(0, 0.2)
    return [Shutdown(at=first), Cancel(at=first + draw.uniform(0, 0.05))]


_ENDS = (_quiet_end, _shutdown, _twice, _cancelled, _cancelled_shutdown)


def faults(draw: random.Random, cast: _Cast) -> list[Op]:
    """``MIN_FAULTS + SPARE_FAULTS`` random faults within the window, and one of the ends."""
    kinds = draw.choices(list(_ONE), weights=list(_ONE.values()), k=MIN_FAULTS + SPARE_FAULTS)
    ops = [op for kind in kinds for op in kind(draw, OPEN_AT + draw.uniform(0.05, WINDOW_S), cast)]
    return ops + draw.choice(_ENDS)(draw, OPEN_AT + WINDOW_S)


# ---------------------------------------------------------------------- what was done


def faults_done(history: History) -> Counter[str]:
    """How often each kind of fault hit somebody: a process that ran, a request that lived, a runtime that was open."""
    done: Counter[str] = Counter()
    leaving = {op.request for op in history.scenario.ops if isinstance(op, Leave)} if history.scenario else set()
    ready: set[Place] = set()
    for event in history.events:
        match event:
            case StageSaid(kind="ready"):
                ready.add((event.stage, event.replica, event.generation))
            case Faulted(op="kill", done=True):
                done["SIGKILL of a worker"] += 1  # unless the engine itself was signalled: see below
            case Process(what="signalled", by="fate", code=code) if code not in (None, signal.SIGCONT):
                done[_signalled(event, ready)] += 1
                done["SIGKILL of a worker"] -= code != signal.SIGSTOP
            case _:
                done[_asked(event, leaving, done)] += 1
    return Counter({name: count for name, count in done.items() if name in FAULTS and count})


def _signalled(event: Process, ready: set[Place]) -> str:
    if event.code == signal.SIGKILL and event.generation > 1 and event.place not in ready:
        return "crash during recovery"
    return signal.Signals(event.code or 0).name


def _asked(event: object, leaving: set[str], done: Counter[str]) -> str:
    """What users did; "" for what is no fault."""
    match event:
        case AbortCalled(live=live) if live:
            return "abort"
        case Ended(request=request, how=how) if how == "break" or (how == "Cancelled" and request in leaving):
            return "disconnect"
        case ShutdownCalled(by="call"):
            return "second shutdown" if done["shutdown"] else "shutdown"
        case ShutdownCalled(by="leave", drain_s=0.0):
            return "cancel"
    return ""
