"""Aborts at random points of requests to real vLLM-Omni stages: nothing of them stays, in any stage, and nobody minds.

A seed draws when each request is given up (before it is admitted, after a time, after so many outputs, with its last
one), how (its block is left, its scope cancelled, by its id, by its time limit), and how many are in flight at once.
``OMNI_ACTORS_ABORTS`` says how many in all, ``OMNI_ACTORS_SEED`` which; ``make chaos-omni`` does a thousand per model.
"""

from __future__ import annotations

import math
import os
import random
from collections import Counter
from contextlib import suppress
from pathlib import Path

import attrs
import pytest
import trio

from omni_actors import Kind, RequestTimeout
from omni_actors.runtime import open_omni
from omni_actors.testing.os_state import Watch, descendants
from omni_actors.vllm_omni import pipeline
from omni_actors.vllm_omni.tiny import options

from .prompts import PROMPTS
from .test_same_outputs import answer, same, segments
from .watched import Watched, watch_engines

HERE = Path(__file__).parent
COUNT = int(os.environ.get("OMNI_ACTORS_ABORTS", 75))
SEED = int(os.environ.get("OMNI_ACTORS_SEED", 0))
BATCH = 25
WIDEST = 8
WAYS = ("leave", "cancel", "abort", "timeout")
GROWTH_KB = 25_000
"""By which an engine's memory may grow in the second half of a thousand aborts: its allocator's doing, not a row per
request. In the first half it grows by more, and by as much if all requests finish: what is used first is made then.
"""
SPARE = 8
"""Entries by which a collection may grow: what is made once, at its first use. A leak has one per abort."""

pytestmark = pytest.mark.engine


@attrs.frozen(kw_only=True)
class GivenUp:
    """One request's end. ``after_s``: infinite where it is ``outputs`` that are waited for."""

    name: str
    way: str
    after_s: float
    outputs: int


def drawn(draw, number, life_s, outputs):
    """``life_s`` and ``outputs``: how long a request lives alone, and how much it makes."""
    point = draw.choice(("early", "time", "time", "outputs", "outputs", "last"))
    after_s = {"early": draw.uniform(0, 0.05), "time": draw.uniform(0, 1.5 * life_s)}.get(point, math.inf)
    read = outputs if point == "last" else draw.randrange(outputs)
    ways = WAYS if after_s < math.inf else WAYS[:-1]
    return GivenUp(name=f"abort-{number}", way=draw.choice(ways), after_s=after_s, outputs=read)


async def given_up(omni, prompt, plan):
    """At which point it was, in words."""
    timeout_s = plan.after_s if plan.way == "timeout" else None
    read, stream = 0, None
    with trio.CancelScope() as scope, suppress(RequestTimeout):
        if plan.way == "cancel":
            scope.deadline = trio.current_time() + plan.after_s
        async with omni.generate(prompt, request_id=plan.name, timeout_s=timeout_s) as stream:
            patience_s = plan.after_s if plan.way in ("leave", "abort") else math.inf
            with trio.move_on_after(patience_s):
                async for _ in stream:
                    read += 1
                    if read >= plan.outputs and plan.after_s == math.inf:
                        break
            if plan.way == "cancel":
                scope.cancel()
                await trio.lowlevel.checkpoint()
            elif plan.way == "abort":
                report = await omni.abort(plan.name)
                assert report.unconfirmed == ()
                assert [output async for output in stream if report.known] == []
    if stream is None:
        return "before it was admitted"
    if stream.terminal.kind is Kind.FINISHED:
        return "too late: finished"
    return f"after {read} outputs"


async def batch(omni, prompts, plans, width, tally):
    """These, at most ``width`` at once."""
    room = trio.CapacityLimiter(width)

    async def one(number, plan):
        async with room:
            point = await given_up(omni, prompts[number % len(prompts)], plan)
            tally[point] += 1
            tally[f"by {plan.way}"] += 1

    async with trio.open_nursery() as nursery:
        for number, plan in enumerate(plans):
            nursery.start_soon(one, number, plan)


def grown(before, after):
    """Collections that have more in them, by stage and path; none of them knows a name of a request."""
    found = {}
    for name in after:
        for side in ("engine", "worker"):
            old, new = before[name][side]["sizes"], after[name][side]["sizes"]
            more = {path: (old.get(path, 0), size) for path, size in new.items() if size > old.get(path, 0) + SPARE}
            found |= {f"{name} {path}": sizes for path, sizes in more.items()}
    return found


def memory_kb(held):
    return {f"{name} {side}": held[name][side]["rss_kb"] for name in held for side in ("engine", "worker")}


async def many_aborts(model, names, monkeypatch):
    watch_engines(monkeypatch)
    before = segments()
    draw = random.Random(SEED)
    prompts = [PROMPTS[name](str(model)) for name in names]
    spec = pipeline(str(model), **options(model))
    tally, slow_s = Counter(), 0.0
    async with open_omni(spec) as omni:
        watched = Watched(omni, before)
        expected = [await answer(omni, name) for name in names]
        await watched.clean()
        begun = trio.current_time()
        async with omni.generate(prompts[0]) as stream:
            outputs = len([output async for output in stream])
        life_s = trio.current_time() - begun
        plans = [drawn(draw, number, life_s, outputs) for number in range(COUNT)]
        first = middle = None
        begun = trio.current_time()
        for start in range(0, COUNT, BATCH):
            await batch(omni, prompts, plans[start : start + BATCH], draw.randint(1, WIDEST), tally)
            ended = trio.current_time()
            await watched.clean()
            slow_s = max(slow_s, trio.current_time() - ended)
            which = draw.randrange(len(names))
            same(await answer(omni, names[which]), expected[which])
            await watched.clean()
            held = await watched.held(tidy=True)
            first = first or held
            middle = middle or (held if start + BATCH >= COUNT / 2 else None)
            print(
                f"{min(start + BATCH, COUNT)} of {COUNT}: {trio.current_time() - begun:.0f} s, {memory_kb(held)}",
                flush=True,
            )
        took_s = trio.current_time() - begun
        engines = Watch([pid for pid in omni.pids().values() for pid in (pid, *descendants(pid))])
        assert omni.statistics().ended[Kind.FAILED] == 0
    memory = {name: (old, memory_kb(held)[name]) for name, old in memory_kb(middle).items()}
    growth = grown(first, held)
    print(f"\n{model.name}: {COUNT} aborts (seed {SEED}) in {took_s:.0f} s; the slowest was gone after {slow_s:.2f} s")
    print("".join(f"  {point}: {count}\n" for point, count in sorted(tally.items())), f" memory, in kB: {memory}")
    assert not engines.alive_after(0)
    engines.close()
    assert segments() <= before
    assert growth == {}
    assert all(new - old < GROWTH_KB for old, new in memory.values()), memory


async def test_qwen3_tts(tiny_qwen3_tts, monkeypatch):
    await many_aborts(tiny_qwen3_tts, ["read", "read more"], monkeypatch)


async def test_qwen3_omni(tiny_qwen3_omni, monkeypatch):
    await many_aborts(tiny_qwen3_omni, ["hello", "story"], monkeypatch)
