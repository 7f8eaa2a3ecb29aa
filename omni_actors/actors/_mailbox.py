"""Mailboxes: how messages and questions reach the one task that owns a state.

A ``Mailbox`` is the reading end, owned by its actor, with the table of open asks; an ``ActorRef`` is the sending end.
Keeps I21: an ask ends exactly once, with a reply, ActorDied or its deadline; the first one decides.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar

import trio

from omni_actors._errors import ActorDied, UsageError

__all__ = ["ActorRef", "Ask", "Mailbox", "Serve", "open_mailbox", "run_actor"]

M = TypeVar("M")


class Ask(Generic[M]):
    """A question in a mailbox: the actor reads ``message`` and calls ``reply`` or ``fail``, now or later."""

    def __init__(self, message: M) -> None:
        self.message = message
        self._over = trio.Event()
        self._outcome: tuple[Any, BaseException | None] = (None, None)

    @property
    def is_over(self) -> bool:
        """Whether it has ended already, so that an answer would reach nobody."""
        return self._over.is_set()

    def reply(self, value: Any = None) -> bool:
        """Answer it. False if it had ended already; the answer is then dropped."""
        return self._end(value, None)

    def fail(self, error: BaseException) -> bool:
        """Answer it with an error, raised from the asker's ``ask``. False as for ``reply``."""
        return self._end(None, error)

    def _end(self, *outcome: Any) -> bool:
        if self.is_over:
            return False
        self._outcome = outcome
        self._over.set()
        return True


class Mailbox(Generic[M]):
    """The reading end, for the one task that owns it. Leaving its ``with`` block closes it: the actor is then dead.

    ``receive()``, ``receive_nowait()`` and ``statistics()`` are the memory channel's own and cost nothing on top of it.
    """

    def __init__(self, name: str, *, capacity: int) -> None:
        if not isinstance(capacity, int) or capacity < 1:
            raise UsageError(f"mailbox {name!r} needs a capacity of at least 1, not {capacity!r}")
        self.name = name
        self._send, self._receive = trio.open_memory_channel[M | Ask[M]](capacity)
        self.receive, self.receive_nowait = self._receive.receive, self._receive.receive_nowait
        self.statistics = self._receive.statistics
        self._asks: set[Ask[M]] = set()
        self._closed = False
        self._cause: BaseException | None = None

    def close(self, cause: BaseException | None = None) -> list[M]:
        """Refuse everything from now on, fail the open asks, return the told messages that nobody read. Idempotent.

        ``cause`` becomes the ``__cause__`` of every ActorDied.
        """
        if self._closed:
            return []
        self._closed, self._cause = True, cause
        unread: list[M | Ask[M]] = []
        # By hand: closing would drop the buffer. This lets waiting senders in too, so that none is left behind.
        while self.statistics().current_buffer_used:
            unread.append(self.receive_nowait())
        self._receive.close()
        self._send.close()
        for ask in self._asks:
            ask.fail(self._died())
        return [message for message in unread if not isinstance(message, Ask)]

    def __enter__(self) -> Mailbox[M]:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self.close(error if isinstance(error, Exception) else None)

    def _died(self) -> ActorDied:
        died = ActorDied(f"actor {self.name!r} has ended")
        died.__cause__ = self._cause
        return died


class ActorRef(Generic[M]):
    """The sending end of a mailbox; any number of tasks may use it. Order is kept per sender."""

    def __init__(self, mailbox: Mailbox[M]) -> None:
        self._mailbox = mailbox

    async def tell(self, message: M | Ask[M]) -> None:
        """Put a message into the mailbox, waiting while it is full; bounded by the caller's own scope.

        Raises ActorDied if the actor has ended before. Returning, it promises no more than that the message was put in:
        whoever must know that it was read asks. Cancelled, it has put nothing in.
        """
        if self._mailbox._closed:
            raise self._mailbox._died()
        await self._mailbox._send.send(message)

    def try_tell(self, message: M) -> bool:
        """Put a message in without waiting: False if the mailbox is full. Raises ActorDied if the actor has ended."""
        if self._mailbox._closed:
            raise self._mailbox._died()
        try:
            self._mailbox._send.send_nowait(message)
        except trio.WouldBlock:
            return False
        return True

    async def ask(self, message: M, *, deadline: float) -> Any:
        """Ask, and wait for the answer until ``deadline``, an absolute time of ``trio.current_time()``.

        Ends exactly once: returns the reply (or raises what the actor failed it with), or raises ActorDied, or
        ``trio.TooSlowError`` at the deadline, time before a full mailbox included. Cancelled, nobody hears the reply.
        """
        ask, asks = Ask(message), self._mailbox._asks
        asks.add(ask)
        try:
            with trio.move_on_at(deadline):
                await self.tell(ask)
                await ask._over.wait()
        finally:
            asks.discard(ask)
            ask.fail(trio.TooSlowError())  # a no-op if it has ended; else it is over now, for a late reply too
        value, error = ask._outcome
        if error is not None:
            raise error
        return value


def open_mailbox(name: str, *, capacity: int) -> tuple[ActorRef[Any], Mailbox[Any]]:
    """Both ends of a mailbox for ``capacity`` messages. UsageError if that is not a whole number of at least 1."""
    mailbox = Mailbox[Any](name, capacity=capacity)
    return ActorRef(mailbox), mailbox


Serve = Callable[[Mailbox[Any]], Awaitable[None]]
Status = trio.TaskStatus[ActorRef[Any]]


async def run_actor(serve: Serve, *, name: str, capacity: int, task_status: Status = trio.TASK_STATUS_IGNORED) -> None:
    """Run an actor to its end: ``serve(mailbox)`` owns the state. Its ref is the value of ``task_status.started``.

    For ``nursery.start`` and, as ``lambda life: run_actor(…, task_status=life)``, for ``ChildSpec.start``. Raises what
    ``serve`` raises; cancellation ends the actor like any other end.
    """
    ref, mailbox = open_mailbox(name, capacity=capacity)
    with mailbox:
        task_status.started(ref)
        await serve(mailbox)
