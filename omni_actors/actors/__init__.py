"""Actors on trio: mailboxes, and supervisors that start, watch, restart and stop tasks in order.

An actor is an async function that owns its state and reads a mailbox::

    async def counter(mailbox: Mailbox[int]) -> None:
        total = 0
        while True:
            match await mailbox.receive():
                case Ask() as question:
                    question.reply(total)
                case amount:
                    total += amount

    ref = await nursery.start(partial(run_actor, counter, name="counter", capacity=16))
    await ref.tell(2)
    assert await ref.ask("total", deadline=trio.current_time() + 1) == 2

Of use on its own: pure trio, it knows nothing of pipelines, sockets or engines.
"""

from __future__ import annotations

from omni_actors.actors._accounting import Backoff, Intensity, PerChild, Restart, Strategy
from omni_actors.actors._child import ChildEvent, ChildSpec, EventKind, Life
from omni_actors.actors._mailbox import ActorRef, Ask, Mailbox, open_mailbox, run_actor
from omni_actors.actors._supervisor import ChildState, Supervisor

__all__ = [
    "ActorRef", "Ask", "Backoff", "ChildEvent", "ChildSpec", "ChildState", "EventKind", "Intensity", "Life", "Mailbox",
    "PerChild", "Restart", "Strategy", "Supervisor", "open_mailbox", "run_actor",
]  # fmt: skip
