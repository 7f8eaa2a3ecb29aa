"""An event loop's side: its outbox, and tickets that an asyncio task reads.

One ``call_soon_threadsafe`` per loop carries everything that happened since the loop last looked: what a whole engine
step wakes goes in one, at the step's end, when the trio thread is about to sleep. A loop that is closed raises
RuntimeError at it; then its requests are aborted (``on_death``). A loop that is stopped and never resumed takes
wake-ups for ever: its requests end when they outgrow their limit.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any

from ._ticket import Ask, Ticket, Ways

if TYPE_CHECKING:
    from collections.abc import Callable

    from ._bridge import Bridge

__all__ = ["LoopTicket", "Outbox", "Outboxes"]

AT_ONCE = 8
"""New requests that go together: engines begin with the first ones while the loop prepares the next."""


class Outbox:
    """What the trio thread has for one loop: the tickets to look at again. And what the loop has for it: new ones.

    Both go in batches. A thread that wakes another has to win Python's lock back each time, and so has the other one.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, bridge: Bridge, on_death: Callable[[Outbox], None]) -> None:
        self._loop = weakref.ref(loop)
        self._bridge, self._on_death = bridge, on_death
        self._due: deque[LoopTicket] = deque()
        self._called = False
        self._asked: list[Ticket] = []
        self.dead = False

    def ask(self, ticket: Ticket) -> None:
        """In the loop: submit it, with the others that are asked for in this turn, or the first few of them.

        Only the waking waits: whatever this loop posts later, an abort above all, comes after it.
        """
        self._bridge.put(ticket)
        self._asked.append(ticket)
        if len(self._asked) == 1:
            asyncio.get_running_loop().call_soon(self._hand_over)
        elif len(self._asked) == AT_ONCE:
            self._hand_over()

    def _hand_over(self) -> None:
        asked, self._asked = self._asked, []
        if asked:
            self._bridge.wake(asked)

    @property
    def closed(self) -> bool:
        """Whether its loop can run nothing any more."""
        loop = self._loop()
        return loop is None or loop.is_closed()

    def wake(self, ticket: LoopTicket) -> None:
        """In the trio thread."""
        if self.dead:
            return
        self._due.append(ticket)
        if not self._called:
            self._called = True
            self._bridge.at_rest(self._call)

    def _call(self) -> None:
        """In the trio thread."""
        loop = self._loop()
        try:
            if loop is None:
                raise RuntimeError("the loop is no more")
            loop.call_soon_threadsafe(self._flush)
        except RuntimeError:
            self.die()

    def die(self) -> None:
        """Its loop is closed. Idempotent; in the trio thread."""
        if not self.dead:
            self.dead = True
            self._due.clear()
            self._on_death(self)

    def _flush(self) -> None:
        """In the loop."""
        self._called = False
        due = self._due
        while due:
            due.popleft().look()


class Outboxes:
    """One per living loop. Asked from any of their threads."""

    def __init__(self, bridge: Bridge, on_death: Callable[[Outbox], None]) -> None:
        self._bridge, self._on_death = bridge, on_death
        self._lock = threading.Lock()
        self._outboxes: weakref.WeakKeyDictionary[Any, Outbox] = weakref.WeakKeyDictionary()

    def of(self, loop: asyncio.AbstractEventLoop) -> Outbox:
        """The outbox of this loop."""
        with self._lock:
            outbox = self._outboxes.get(loop)
            if outbox is None:
                outbox = self._outboxes[loop] = Outbox(loop, self._bridge, self._on_death)
            return outbox


class LoopTicket(Ticket):
    """A ticket whose reader is one asyncio task at a time."""

    def __init__(self, ways: Ways, ask: Ask, outbox: Outbox, *, limit: int, quiet: bool = False) -> None:
        super().__init__(ways, ask, limit=limit, quiet=quiet)
        self.outbox = outbox
        self._sleeper: asyncio.Future[None] | None = None

    def _wake(self) -> None:
        self.outbox.wake(self)

    def _look_for_reader(self) -> None:
        if self.outbox.closed:
            self.outbox.die()

    # ------------------------------------------------------------------ in the loop

    def look(self) -> None:
        """Something happened: whoever sleeps looks again."""
        if (sleeper := self._sleeper) is not None:
            self._sleeper = None
            if not sleeper.done():
                sleeper.set_result(None)

    async def news(self) -> None:
        """Return when something is unread or it is over. No deadline: the request's own is the runtime's to keep.

        Cancelling it loses nothing.
        """
        while (sleeper := self.sleep()) is not None:
            await sleeper

    @property
    def _deserted(self) -> bool:
        """Whether its reader was thrown away in its sleep: then nobody is there to wait for a release either."""
        return self._sleeper is not None and not self._sleeper.done()

    def sleep(self) -> asyncio.Future[None] | None:
        """Something to await, once, before looking again; None if there is something unread, or it is over."""
        if (self.unread and not self.quiet) or self.over:
            return None
        if self._sleeper is not None and not self._sleeper.done():
            raise RuntimeError("another task is already reading this request")
        self.parked = True
        if (self.unread and not self.quiet) or self.over:
            return None
        self._sleeper = asyncio.get_running_loop().create_future()
        return self._sleeper

    async def leave(self, within_s: float) -> None:
        """Post the abort; then wait until the engines have confirmed. Cancelling it ends the waiting, not the abort."""
        if not self.post_abort() or self._deserted:
            return
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:  # run by the garbage collector, outside of any loop
            return
        deadline = loop.time() + within_s
        while not self.released and (left := deadline - loop.time()) > 0:
            self._sleeper = loop.create_future()
            try:
                if not self.released:
                    await asyncio.wait((self._sleeper,), timeout=left)
            finally:
                self._sleeper = None
