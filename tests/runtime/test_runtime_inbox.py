"""The router's inbox: batches keep their order, and a bug in applying one ends the router, not the client."""

from itertools import pairwise

import pytest
import trio
import trio.testing

from omni_actors._errors import ActorDied
from omni_actors.lifecycle.events import Batch, Released
from omni_actors.runtime._router import PER_PASS, Inbox, Router


def batch(number, events=0, replica=0):
    return Batch("llm", replica, number, [Released("k")] * events)


class Noting(Router):
    def __init__(self):
        self.applied = []

    def apply(self, batch):
        self.applied.append(batch.generation)
        if batch.generation < 0:
            raise ValueError("a bug of ours")


async def test_a_batch_is_applied_in_its_senders_step(nursery):
    inbox, router = Inbox(4), Noting()
    nursery.start_soon(router.run, inbox)
    await trio.testing.wait_all_tasks_blocked()

    await inbox.put(batch(1))

    assert router.applied == [1]
    assert inbox.waiting == 0


async def test_a_pass_of_the_scheduler_is_not_for_the_router_alone(nursery):
    """However many replicas speak in one pass: after so many events the next batches wait for later ones."""
    inbox, router = Inbox(8), Noting()
    nursery.start_soon(router.run, inbox)
    await trio.testing.wait_all_tasks_blocked()

    for number in range(8):
        nursery.start_soon(inbox.put, batch(number, PER_PASS // 2, replica=number))
    applied = [0]
    while applied[-1] < 8:
        await trio.lowlevel.checkpoint()
        applied.append(len(router.applied))

    assert max(after - before for before, after in pairwise(applied)) == 2
    assert inbox.waiting == 0


async def test_order_is_kept_when_a_replicas_batch_has_to_wait(nursery):
    inbox, router = Inbox(8), Noting()
    nursery.start_soon(router.run, inbox)
    await trio.testing.wait_all_tasks_blocked()

    for number in range(8):
        await inbox.put(batch(number, PER_PASS // 2, replica=number % 4))
    await trio.testing.wait_all_tasks_blocked()

    assert router.applied == list(range(8))


async def test_one_replica_never_waits_for_the_router(nursery):
    inbox, router = Inbox(8), Noting()
    nursery.start_soon(router.run, inbox)
    await trio.testing.wait_all_tasks_blocked()

    for number in range(8):
        await inbox.put(batch(number, PER_PASS))
        assert router.applied[-1] == number
        assert inbox.waiting == 0


async def test_what_comes_before_the_router_runs_is_applied_first():
    inbox, router = Inbox(2), Noting()
    await inbox.put(batch(1))
    await inbox.put(batch(2))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(inbox.put, batch(3))
        await trio.testing.wait_all_tasks_blocked()
        assert router.applied == []
        nursery.start_soon(router.run, inbox)
        while inbox.router is None:
            await trio.lowlevel.checkpoint()
        await inbox.put(batch(4))
        await trio.testing.wait_all_tasks_blocked()
        assert router.applied == [1, 2, 3, 4]
        assert inbox.waiting == 0
        await inbox.put(batch(5))
        assert router.applied == [1, 2, 3, 4, 5]
        nursery.cancel_scope.cancel()


async def test_a_sender_that_gave_up_waiting_has_put_nothing_in():
    inbox, router = Inbox(1), Noting()
    await inbox.put(batch(1))
    with trio.move_on_after(0):
        await inbox.put(batch(2))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(router.run, inbox)
        await trio.testing.wait_all_tasks_blocked()
        await inbox.put(batch(3))
        assert router.applied == [1, 3]
        nursery.cancel_scope.cancel()


async def test_a_bug_ends_the_router_and_not_the_client_that_brought_the_batch():
    inbox, router = Inbox(4), Noting()

    with pytest.RaisesGroup(pytest.RaisesExc(ValueError, match="a bug of ours")):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(router.run, inbox)
            await trio.testing.wait_all_tasks_blocked()
            await inbox.put(batch(-1))
            assert inbox.router is None, "nothing more is applied"

    with pytest.raises(ActorDied):
        await inbox.put(batch(2))
    assert router.applied == [-1]
