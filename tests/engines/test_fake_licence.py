"""The fake's licence: what a simulation may conclude from fakes. The same scenarios on a fake engine's process and on a
real vLLM engine give the same frames: per request the same kinds in the same order, both ways.

Repeated outputs count once, and time not at all. What a request's stop string, its samples or its engine's end make of
the conversation is thereby known to be the same.
"""

from __future__ import annotations

import itertools
import signal
from collections.abc import Callable
from typing import Any

import attrs
import pytest
import trio

from omni_actors.config import resolve
from omni_actors.testing.chaos import private_base
from omni_actors.testing.rigs import SHORT, core, pipeline
from omni_actors.testing.sim._history import Accepted, Got, History, Left, Process, StageSaid, Wire
from omni_actors.testing.sim._scenario import Abort, Kill, Op, Submit

from .licence import Watched, ends, played

pytestmark = [pytest.mark.engine, pytest.mark.process, pytest.mark.filterwarnings("ignore")]

QUESTION = "What is two plus three, and nine minus four?"
LONG = {"ignore_eos": True, "max_tokens": 100, "seed": 1}
START_S = 240.0
IDLE_S = 1.0
STAGE = "thinker"

Frames = dict[str, list[tuple[str, str]]]


def fake_pipeline():
    limits = attrs.evolve(SHORT, silence_s=30, hang_s=60)  # no pings of their own: those are no frames of a request
    return pipeline(core(STAGE, output="text", tokens=100, token_s=0.01, deadlines=limits))


def real_pipeline():
    (thinker, *_) = resolve("tiny-omni", ()).spec.stages
    limits = attrs.evolve(thinker.deadlines, silence_s=30, hang_s=60)
    return pipeline(attrs.evolve(thinker, deadlines=limits))


async def scenarios(driver: Watched) -> None:
    """One after the other, so that one start of an engine serves them all; the last one ends it."""

    def do(*ops: Op) -> None:
        for op in ops:
            driver.do(op)

    async def over(*requests: str) -> None:
        for request in requests:
            await driver.seen(Left, request=request)

    do(Submit(request="finishes", prompt=QUESTION, params={"max_tokens": 12}))
    await over("finishes")
    do(Submit(request="is aborted", prompt=QUESTION, params=LONG))
    await driver.seen(Got, request="is aborted")
    do(Abort(id="is aborted"))
    await over("is aborted")
    do(Submit(request="one of two", prompt=QUESTION, params=LONG), Submit(request="the other", prompt=QUESTION))
    await over("one of two", "the other")
    do(Submit(request="stops at a string", prompt=QUESTION, params={**LONG, "stop": ["e"]}))
    await over("stops at a string")
    do(Submit(request="makes two samples", prompt=QUESTION, params={"max_tokens": 12, "n": 2, "temperature": 1.0}))
    await over("makes two samples")
    await trio.sleep(IDLE_S)  # what is tested is that nothing happens
    do(Submit(request="loses its engine", prompt=QUESTION, params=LONG))
    await driver.seen(Got, request="loses its engine")
    do(Kill(stage=STAGE, signal="TERM"))
    await over("loses its engine")
    await driver.seen(Process, what="exited", generation=1)
    await driver.seen(StageSaid, kind="exited", generation=1)


# ---------------------------------------------------------------------- what is compared


def frames(history: History) -> Frames:
    """Per request and sample, the kinds of frames of the first generation, in order; repeated ones once.

    What was under way when an abort was sent is not compared: whether there was anything is a matter of time.
    """
    names = {event.key: event.request for event in history.of(Accepted)}
    found: Frames = {}
    for event in history.of(Wire):
        if event.generation == 1 and event.key:
            request, _, rest = event.key.rpartition("-0")
            seen = found.setdefault(f"{names[request]}{rest}", [])
            if event.what != "output" or ("sent", "abort") not in seen:
                seen.append((event.way, event.what))
    return {name: [frame for frame, _ in itertools.groupby(seen)] for name, seen in found.items()}


def handshake(history: History) -> list[tuple[str, str]]:
    """What is said before the first work is sent. Sorted: two sockets have no common order."""
    said = [event for event in history.of(Wire) if event.generation == 1]
    return sorted((event.way, event.what) for event in itertools.takewhile(lambda event: event.what != "add", said))


def last_words(history: History) -> tuple[int | None, str | None]:
    """How the engine that was asked to end did it."""
    (exited,) = [event.code for event in history.of(Process) if event.what == "exited" and event.generation == 1]
    (verdict,) = [event.verdict for event in history.of(StageSaid) if event.kind == "exited" and event.generation == 1]
    return exited, verdict


def while_idle(history: History) -> list[Wire]:
    """What was on the wire in the second in which nobody asked for anything."""
    quiet = max(event.at for event in history.of(Left) if event.request == "makes two samples")
    return [event for event in history.of(Wire) if quiet + 0.2 < event.at < quiet + IDLE_S]


@pytest.fixture(scope="module")
def both() -> tuple[History, History]:
    """The history of the fake engine, and of the real one."""
    pytest.importorskip("vllm")
    with private_base():
        return played(fake_pipeline(), scenarios, START_S), played(real_pipeline(), scenarios, START_S)


@pytest.mark.parametrize("what", [handshake, frames, ends, last_words, while_idle])
def test_the_fake_says_what_the_real_one_says(both, what: Callable[[History], Any]):
    fake, real = both
    assert what(fake) == what(real)


def test_the_scenarios_show_what_they_are_for(both):
    fake, _ = both
    seen = frames(fake)
    assert set(seen) == {
        "finishes", "is aborted", "one of two", "the other", "stops at a string", "makes two samples",
        "makes two samples-s1", "loses its engine",
    }  # fmt: skip
    sent, heard = "sent", "heard"
    finished = [(sent, "add"), (heard, "output"), (heard, "finished"), (heard, "released")]
    assert seen["finishes"] == seen["makes two samples-s1"] == finished
    assert seen["is aborted"] == [(sent, "add"), (heard, "output"), (sent, "abort"), (heard, "released")]
    assert seen["stops at a string"] == seen["is aborted"]
    assert seen["loses its engine"] == [(sent, "add"), (heard, "output"), (heard, "failed")]
    assert while_idle(fake) == []
    assert last_words(fake) == (0, "exit")
    assert signal.SIGTERM in [event.code for event in fake.of(Process) if event.by == "fate"]
