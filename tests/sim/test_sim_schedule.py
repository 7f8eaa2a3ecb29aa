"""The canary of the one file that touches a private name of trio's: the seed of the scheduler.

If trio orders its tasks in another way, the simulation does not fail: it quietly tries one schedule only, or becomes
unrepeatable. These tests fail then.
"""

from __future__ import annotations

import random

import pytest
import trio
from trio._core import _run

from omni_actors.testing.sim._schedule import scheduled_by

SEEDS = range(64)


def loses_an_update(seed: int) -> bool:
    """A planted race: two tasks read, wait a step, and write. It loses an update if both read before either writes.

    The second task begins a step later, so that not every order of the two loses.
    """
    account = {"balance": 0}

    async def deposit(wait: int) -> None:
        for _ in range(wait):
            await trio.lowlevel.checkpoint()
        before = account["balance"]
        await trio.lowlevel.checkpoint()
        account["balance"] = before + 1

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(deposit, 0)
            nursery.start_soon(deposit, 1)

    with scheduled_by(seed):
        trio.run(main)
    return account["balance"] == 1


def order(seed: int, tasks: int = 8) -> list[int]:
    """In which order tasks that start together run."""
    ran: list[int] = []

    async def run(number: int) -> None:
        ran.append(number)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            for number in range(tasks):
                nursery.start_soon(run, number)

    with scheduled_by(seed):
        trio.run(main)
    return ran


def test_the_private_names_are_there() -> None:
    assert isinstance(_run._ALLOW_DETERMINISTIC_SCHEDULING, bool)
    assert isinstance(_run._r, random.Random)


def test_a_race_is_seen_under_some_seeds_and_not_under_others() -> None:
    lost = sum(loses_an_update(seed) for seed in SEEDS)
    assert len(SEEDS) // 5 < lost < len(SEEDS) * 4 // 5


def test_the_same_seed_is_the_same_schedule() -> None:
    assert [loses_an_update(seed) for seed in SEEDS] == [loses_an_update(seed) for seed in SEEDS]
    assert [order(seed) for seed in SEEDS] == [order(seed) for seed in SEEDS]


def test_another_seed_is_another_schedule() -> None:
    assert len({tuple(order(seed)) for seed in SEEDS}) > len(SEEDS) * 9 // 10


def test_what_came_before_does_not_matter() -> None:
    first = order(7)
    _run._r.seed(99)
    trio.run(trio.lowlevel.checkpoint)
    assert order(7) == first


@pytest.mark.parametrize("deterministic", [True, False])
def test_everything_is_as_before_afterwards(deterministic, monkeypatch) -> None:
    monkeypatch.setattr(_run, "_ALLOW_DETERMINISTIC_SCHEDULING", deterministic)
    before = _run._r.getstate()
    with pytest.raises(ZeroDivisionError), scheduled_by(3):
        assert _run._ALLOW_DETERMINISTIC_SCHEDULING
        assert _run._r.getstate() != before
        raise ZeroDivisionError
    assert _run._ALLOW_DETERMINISTIC_SCHEDULING is deterministic
    assert _run._r.getstate() == before
