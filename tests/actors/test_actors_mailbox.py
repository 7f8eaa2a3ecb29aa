"""Mailboxes and asks: I21 (an ask ends exactly once), nothing read is lost silently, bounds hold."""

from __future__ import annotations

import math
from functools import partial

import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from omni_actors._errors import ActorDied, UsageError
from omni_actors.actors import Ask, open_mailbox, run_actor


async def counter(mailbox) -> None:
    total = 0
    while True:
        match await mailbox.receive():
            case Ask(message="total") as question:
                question.reply(total)
            case Ask() as question:
                question.fail(KeyError(question.message))
            case "die":
                raise RuntimeError("as told")
            case amount:
                total += amount


async def start_counter(nursery, capacity=4):
    return await nursery.start(partial(run_actor, counter, name="c", capacity=capacity))


async def test_tell_and_ask() -> None:
    async with trio.open_nursery() as nursery:
        ref = await start_counter(nursery)
        await ref.tell(2)
        assert ref.try_tell(3)
        assert await ref.ask("total", deadline=math.inf) == 5
        with pytest.raises(KeyError, match="colour"):
            await ref.ask("colour", deadline=math.inf)
        nursery.cancel_scope.cancel()


async def test_tell_waits_and_try_tell_says_no_when_it_is_full() -> None:
    ref, mailbox = open_mailbox("m", capacity=2)
    with mailbox:
        assert ref.try_tell(1)
        assert ref.try_tell(2)
        assert not ref.try_tell(3)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ref.tell, 4)
            await trio.testing.wait_all_tasks_blocked()
            assert (mailbox.statistics().current_buffer_used, mailbox.statistics().tasks_waiting_send) == (2, 1)
            assert await mailbox.receive() == 1
        assert [mailbox.receive_nowait(), mailbox.receive_nowait()] == [2, 4]
        with pytest.raises(trio.WouldBlock):
            mailbox.receive_nowait()


@pytest.mark.parametrize("capacity", [0, -1, math.inf, 1.5])
def test_a_capacity_is_a_positive_whole_number(capacity) -> None:
    with pytest.raises(UsageError, match="capacity of at least 1"):
        open_mailbox("m", capacity=capacity)


async def test_a_dead_actor_refuses_everything_and_names_its_cause() -> None:
    ref = None
    with pytest.RaisesGroup(pytest.RaisesExc(RuntimeError, match="as told")):
        async with trio.open_nursery() as nursery:
            ref = await start_counter(nursery)
            await ref.tell("die")
    for use in (lambda: ref.tell(1), lambda: ref.ask("total", deadline=math.inf)):
        with pytest.raises(ActorDied, match="'c' has ended") as caught:
            await use()
        assert isinstance(caught.value.__cause__, RuntimeError)
    with pytest.raises(ActorDied):
        ref.try_tell(1)


async def test_death_ends_every_open_ask_wherever_it_is() -> None:
    """One already read, one in the buffer, one waiting before a full mailbox. A tell that waits gets in, unread."""
    ref, mailbox = open_mailbox("m", capacity=1)
    ends, soon = [], trio.current_time() + 5

    async def use(what, *args, **kwargs):
        with pytest.raises(ActorDied) as caught:
            await what(*args, **kwargs)
        ends.append(caught.value)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: use(ref.ask, "read", deadline=soon))
        assert (await mailbox.receive()).message == "read"
        for name in ("buffered", "waiting"):
            nursery.start_soon(lambda name=name: use(ref.ask, name, deadline=soon))
            await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(ref.tell, "told")
        await trio.testing.wait_all_tasks_blocked()
        assert mailbox.close() == ["told"]
        assert mailbox.close() == []
    assert len({id(end) for end in ends}) == 3
    assert not mailbox._asks


async def test_closing_returns_what_was_told_and_not_read() -> None:
    ref, mailbox = open_mailbox("m", capacity=3)
    for message in (1, 2, 3):
        ref.try_tell(message)
    assert mailbox.receive_nowait() == 1
    assert mailbox.close() == [2, 3]


async def test_an_ask_is_over_at_its_deadline_also_before_a_full_mailbox(autojump_clock) -> None:
    ref, mailbox = open_mailbox("m", capacity=1)
    with mailbox:
        for start in (0.0, 5.0):
            with pytest.raises(trio.TooSlowError):
                await ref.ask("late", deadline=start + 5)
            assert trio.current_time() == start + 5
        question = await mailbox.receive()
        assert question.is_over
        assert not question.reply("too late")


async def test_a_cancelled_ask_takes_no_reply() -> None:
    ref, mailbox = open_mailbox("m", capacity=1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: ref.ask("?", deadline=math.inf))
        question = await mailbox.receive()
        nursery.cancel_scope.cancel()
    assert not question.reply("nobody hears it")
    assert not mailbox._asks


async def test_a_deadline_in_the_past_is_too_slow() -> None:
    ref, mailbox = open_mailbox("m", capacity=1)
    with mailbox, pytest.raises(trio.TooSlowError):
        await ref.ask("?", deadline=-math.inf)
    assert mailbox.close() == []


@settings(deadline=None)
@given(
    reply_at=st.sampled_from([1.0, 2.0, 3.0, math.inf]),
    death_at=st.sampled_from([1.0, 2.0, 3.0, math.inf]),
    deadline=st.sampled_from([1.0, 2.0, 3.0]),
    seed=st.integers(0, 2**16),
)
def test_an_ask_ends_exactly_once_in_a_race(reply_at, death_at, deadline, seed) -> None:
    """I21: the asker sees one end, and the actor is told the truth about its reply."""
    heard, accepted = [], []

    async def main() -> None:
        ref, mailbox = open_mailbox("m", capacity=1)

        async def ask() -> None:
            try:
                heard.append(await ref.ask("?", deadline=deadline))
            except (ActorDied, trio.TooSlowError) as error:
                heard.append(type(error))

        async def at(when, act) -> None:
            await trio.sleep_until(when)
            act()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            question = await mailbox.receive()
            others = [(reply_at, lambda: accepted.append(question.reply("yes"))), (death_at, mailbox.close)]
            for when, act in sorted(others[:: 1 if seed % 2 else -1], key=lambda other: other[0]):
                if when < math.inf:
                    nursery.start_soon(at, when, act)

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert len(heard) == 1
    assert accepted.count(True) == (heard == ["yes"])
    first = min(reply_at, death_at, deadline)
    possible = {"yes": reply_at, ActorDied: death_at, trio.TooSlowError: deadline}
    assert possible[heard[0]] == first
