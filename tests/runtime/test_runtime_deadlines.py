"""The one task of all timers: they fire in order, cancelled ones never do and do not pile up."""

from __future__ import annotations

import math

import pytest
import trio

from omni_actors.runtime._deadlines import Deadlines


@pytest.fixture
async def deadlines(nursery) -> Deadlines:
    found = Deadlines()
    nursery.start_soon(found.run)
    await trio.testing.wait_all_tasks_blocked()
    return found


async def test_they_fire_in_order_and_once(deadlines, autojump_clock):
    fired: list[tuple[float, str]] = []
    now = trio.current_time()
    for after, name in ((3, "c"), (1, "a"), (2, "b"), (2, "b too")):
        deadlines.at(now + after, lambda name=name: fired.append((round(trio.current_time() - now, 6), name)))
    assert deadlines.live == 4
    await trio.sleep(10)
    assert fired == [(1, "a"), (2, "b"), (2, "b too"), (3, "c")]
    assert deadlines.live == 0


async def test_a_cancelled_one_never_fires(deadlines, autojump_clock):
    fired: list[str] = []
    now = trio.current_time()
    first = deadlines.at(now + 1, lambda: fired.append("first"))
    deadlines.at(now + 2, lambda: fired.append("second"))
    first.cancel()
    first.cancel()
    assert deadlines.live == 1
    await trio.sleep(5)
    first.cancel()
    assert (fired, deadlines.live) == (["second"], 0)


async def test_forever_is_no_timer(deadlines, autojump_clock):
    never = deadlines.at(math.inf, lambda: None)
    never.cancel()
    assert deadlines.live == 0


async def test_one_that_fires_may_set_and_cancel_others(deadlines, autojump_clock):
    fired: list[str] = []
    now = trio.current_time()
    doomed = deadlines.at(now + 2, lambda: fired.append("doomed"))

    def act() -> None:
        doomed.cancel()
        for _ in range(200):
            deadlines.at(now + 50, lambda: None).cancel()
        deadlines.at(now + 3, lambda: fired.append("later"))

    deadlines.at(now + 1, act)
    await trio.sleep(10)
    assert (fired, deadlines.live) == (["later"], 0)


async def test_a_hundred_thousand_that_were_cancelled_cost_nothing(deadlines, autojump_clock):
    """Requests end long before their deadlines: what is left of them must not wait for those."""
    now = trio.current_time()
    kept = [deadlines.at(now + 600, lambda: None) for _ in range(10)]
    for _ in range(100_000):
        deadlines.at(now + 600, lambda: None).cancel()
    assert len(deadlines._heap) < 200
    assert deadlines.live == len(kept)
