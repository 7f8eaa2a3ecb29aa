"""The bridge: a trio run that holds one runtime; every event loop and every plain thread may use it.

What runs trio is the ``Host``'s to know (a thread, as a rule), and whether the runtime ends with the bridge is the
``Tenure``'s: neither shows here. What crosses inwards is a function, posted to a queue that the trio thread empties
(``post``, ``run``, ``submit``); what crosses outwards is written into tickets and futures. Both are legal from any
thread, at any moment. This object owns the queue and the set of live tickets; the tickets of a loop that died are
aborted. A forked child has none of that, and is told so. Trio takes no signals here: they belong to the main thread.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import attrs
import trio

from omni_actors import Health, OmniError, RuntimeClosed, ShutdownReport, ShuttingDown

from . import _exit
from ._crossing import Crossing, Rest
from ._hosts import ThreadHost

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from omni_actors import AbortReport, OmniRuntime
    from omni_actors.runtime._omni import Generation

    from ._hosts import Host
    from ._tenure import Tenure
    from ._ticket import Ticket

__all__ = ["Bridge"]

logger = logging.getLogger("omni_actors.bridge")
T = TypeVar("T")

PER_PASS = 16
"""Posts that may be taken in one pass of the scheduler: some 100 µs each, if it is a request."""


class Bridge:
    """See the module. ``opened`` is done when every stage is ready, ``closed`` when nothing of it is left.

    ``opened`` fails with what ``open_omni`` raises; ``closed`` with a fatal error of the runtime, if it was one.
    """

    def __init__(self, tenure: Tenure, host: Host | None = None) -> None:
        self.opened: Future[OmniRuntime] = Future()
        self.closed: Future[ShutdownReport] = Future()
        self.omni: OmniRuntime
        self._tenure, self._host = tenure, host or ThreadHost()
        self._getpid, self._pid = os.getpid, os.getpid()
        self._health: Health | None = None
        self._started = self._leaving = False
        self._token: trio.lowlevel.TrioToken
        self._posts: deque[Callable[[], None]] = deque()
        self._posted = self._gone = self._is_open = False
        # All below belongs to the trio thread.
        self._opening = trio.CancelScope()
        self._closing = trio.Event()
        self._nursery: trio.Nursery | None = None
        self._tickets: set[Ticket] = set()
        self._rest = Rest()
        self._vacant: trio.Event | None = None

    # ------------------------------------------------------------------ from any thread

    def start(self) -> None:
        """Begin to open. Once: raises RuntimeError if it was started before, RuntimeClosed if it was closed."""
        if self._gone:
            raise RuntimeClosed("this runtime is closed")
        if self._started:
            raise RuntimeError("this runtime was started before")
        self._started = True
        _exit.remember(self)
        try:
            self._host.start(self)
        except BaseException as error:
            if not self.closed.done():
                self.departed(error)
            raise

    @property
    def health(self) -> Health | None:
        """As of the last change of a stage or of the shutdown ladder; None before and after. From any thread.

        Not ready from the moment that somebody asks for the end.
        """
        health = self._health
        if health is None or not (self._leaving and health.ready):
            return health
        return Health(False, "the runtime is being closed", health.stages)

    @property
    def unread_bytes(self) -> int:
        """Of all requests in flight together. From any thread."""
        return sum(ticket.unread_bytes for ticket in tuple(self._tickets))

    def check(self) -> None:
        """Raises RuntimeClosed unless it is open in this process. It may close the moment after."""
        if self._is_open and self._getpid() == self._pid:
            return
        if os.getpid() != self._pid:
            text = f"this runtime lives in process {self._pid}; a forked child has to open its own"
            raise RuntimeClosed(text)
        if self.closed.done() or not self.opened.done() or self.opened.exception() is not None:
            raise RuntimeClosed("this runtime is closed" if self.closed.done() else "this runtime is not open")

    def post(self, act: Callable[[], None]) -> bool:
        """Have ``act`` called soon in the trio thread. Never waits, takes no lock, legal anywhere; it must not raise.

        False if that thread is not there (any more): then nobody calls it. Uses no globals before it knows: at the
        end of the program, garbage is still posting when the modules are empty.
        """
        if self._gone or self._getpid() != self._pid:
            return False  # in a forked child the parent's wake-up pipe is open as well, and its locks held for ever
        self._posts.append(act)
        return self._rouse()

    def _rouse(self) -> bool:
        if not self._posted:
            self._posted = True
            try:
                self._token.run_sync_soon(self._take_posts)
            except (trio.RunFinishedError, AttributeError):
                return False
        return True

    def put(self, ticket: Ticket) -> None:
        """Ask for what the ticket says, with the next ``wake`` or post: before all that is posted later."""
        self._posts.append(partial(self._take_in, ticket))

    def wake(self, tickets: Sequence[Ticket]) -> None:
        """Of these that were put. Every answer goes to them, this one too: that the runtime is closed."""
        if self._gone or self._getpid() != self._pid or not self._rouse():
            for ticket in tickets:
                ticket.refuse(RuntimeClosed("the runtime is closed"))

    def run(self, function: Callable[..., Awaitable[T]], *args: Any) -> Future[T]:
        """Run an async function in the trio thread. It needs a deadline of its own. Raises RuntimeClosed."""
        self.check()
        crossing = Crossing(self.post, function, args)
        if not self.post(lambda: self._start(crossing)):
            crossing.refuse()
        return crossing.future

    def submit(self, ticket: Ticket) -> None:
        """``put`` and ``wake``."""
        self.put(ticket)
        self.wake((ticket,))

    def request_close(
        self, *, drain_s: float | None = None, abort_s: float | None = None, stop_s: float | None = None
    ) -> None:
        """Begin to close, or shorten what is left of it. Never waits; ``closed`` tells the end. Seconds as in
        ``OmniRuntime.request_shutdown``.
        """
        self._leaving = True
        if not self._started and not self._gone:
            self.departed(None)

        def close() -> None:
            if not self.opened.done():
                self._opening.cancel()
            else:
                self._tenure.request_close(self.omni, drain_s=drain_s, abort_s=abort_s, stop_s=stop_s)
            self._closing.set()

        self.post(close)

    def main_thread_ended(self) -> None:
        """The program ends. Never waits, never raises."""
        self._host.main_thread_ended()

    # ------------------------------------------------------------------ the trio thread

    def arrived(self, token: trio.lowlevel.TrioToken) -> None:
        """See ``Resident``."""
        self._token = token
        if self._posts:  # somebody was quicker
            token.run_sync_soon(self._take_posts)

    def departed(self, failure: BaseException | None) -> None:
        """Nothing of it is left, or it never began. Tell everybody."""
        self._gone, self._is_open, self._health = True, False, None
        lost = failure if isinstance(failure, OmniError) else RuntimeClosed("the runtime was closed meanwhile")
        for ticket in self._tickets:
            ticket.refuse(lost)
            ticket.confirm()
        _exit.forget(self)
        if not self.opened.done():
            self.opened.set_exception(failure or RuntimeClosed("closed while it was being opened"))
            failure = None
        if failure is None:
            opened = self.opened.exception() is None
            self.closed.set_result(self._tenure.report(self.omni) if opened else ShutdownReport())
        else:
            self.closed.set_exception(failure)

    async def live(self) -> None:
        """See ``Resident``."""
        with self._opening:
            async with self._tenure.open() as self.omni:
                await self._serve()

    async def _serve(self) -> None:
        """Until somebody wants it closed. No deadline: that is its owner's decision."""
        async with trio.open_nursery() as nursery:
            self._nursery, self._health = nursery, self.omni.health()
            nursery.start_soon(self.omni.wait_health, self._seen)
            self._is_open = True
            self._rest.begin()
            self.opened.set_result(self.omni)
            try:
                await self._closing.wait()
                await self._tenure.leave(self.omni, self)
            finally:
                self._tenure.evict(self)
                self._nursery = None
                self._rest.end()
                nursery.cancel_scope.cancel()

    def _seen(self, health: Health) -> bool:
        """Looked at whenever a stage or the ladder changes, until the runtime ends."""
        self._health = health
        return False

    def _take_posts(self) -> None:
        """A pass's share of what was posted; the rest waits for the next pass, so that nobody waits long for a turn."""
        self._posted = False
        self._take(PER_PASS)
        if self._posts and not self._rouse():
            self._take(len(self._posts))  # the run ends: there is no next pass

    def _take(self, most: int) -> None:
        posts = self._posts
        for _ in range(min(len(posts), most)):
            act = posts.popleft()
            try:
                act()
            except Exception:  # raised here it would end trio itself, and with it every request
                logger.exception("a bug in the bridge")

    def _start(self, crossing: Crossing[Any]) -> None:
        if self._nursery is None:
            crossing.refuse()
        else:
            self._nursery.start_soon(crossing.run)

    # ------------------------------------------------------------------ requests, in the trio thread

    def _take_in(self, ticket: Ticket) -> None:
        if self._nursery is None:
            ticket.refuse(RuntimeClosed("the runtime is closed"))
            ticket.confirm()
            return
        if self._closing.is_set():
            ticket.refuse(ShuttingDown("the runtime is shutting down and takes no new requests"))
            ticket.confirm()
            return
        self._tickets.add(ticket)
        try:
            generation = ticket.ask.generation(self.omni)
            if generation.submit_now(ticket):
                ticket.take_in(generation)
            else:
                ticket.scope = trio.CancelScope()
                self._nursery.start_soon(self._submit, ticket, generation, ticket.scope)
        except Exception as error:  # whatever it is refused with is for the one who asked
            ticket.refuse(error)
            self._over(ticket)

    async def _submit(self, ticket: Ticket, generation: Generation, scope: trio.CancelScope) -> None:
        """Ends as soon as it is taken: a request in flight is no task."""
        try:
            with scope:
                await generation.submit(ticket)
                ticket.take_in(generation)
        except Exception as error:
            ticket.refuse(error)
        finally:
            if ticket.generation is None:
                ticket.refuse(ShuttingDown("the request was withdrawn", request_id=ticket.ask.request_id))
                self._over(ticket)
            elif scope.cancel_called:
                self.leave(ticket)

    def at_rest(self, act: Callable[[], None]) -> None:
        """Have ``act`` called at the end of this pass of the scheduler. In the trio thread; it must not raise."""
        self._rest.add(act)

    def leave(self, ticket: Ticket) -> None:
        """Its reader left: abort it, and confirm when the engines have."""
        self._leave(ticket, "the client left")

    def _leave(self, ticket: Ticket, reason: str) -> None:
        if ticket.generation is None:
            ticket.withdrawn = True
            if ticket.scope is not None:
                ticket.scope.cancel()
        elif ticket.generation.leave(reason) and self._nursery is not None:
            self._nursery.start_soon(self._see_off, ticket)
        else:
            self._over(ticket)

    async def _see_off(self, ticket: Ticket) -> None:
        assert ticket.generation is not None
        await ticket.generation.left()
        self._over(ticket)

    def _over(self, ticket: Ticket) -> None:
        self._forget(ticket)
        ticket.confirm()

    def ended(self, ticket: Ticket) -> None:
        """It has its terminal: nobody has to be told when the runtime ends."""
        self._forget(ticket)

    def _forget(self, ticket: Ticket) -> None:
        self._tickets.discard(ticket)
        if self._vacant is not None and not self._tickets:
            self._vacant.set()

    async def emptied(self) -> None:
        """See ``Requests``. No deadline: the tenure has one."""
        while self._tickets:
            self._vacant = trio.Event()
            await self._vacant.wait()

    def drop(self, reason: str) -> None:
        """See ``Requests``."""
        self.leave_all(lambda ticket: True, reason)

    def leave_all(self, which: Callable[[Ticket], bool], reason: str) -> None:
        """Abort the live requests that ``which`` picks; in the trio thread."""
        for ticket in [ticket for ticket in self._tickets if which(ticket)]:
            self._leave(ticket, reason)

    async def abort(self, request_id: str) -> AbortReport:
        """``OmniRuntime.abort``; requests that are on their way into the runtime are withdrawn as well."""
        coming = [t for t in self._tickets if t.generation is None and t.ask.request_id == request_id]
        for ticket in coming:
            self._leave(ticket, "aborted")
        report = await self.omni.abort(request_id)
        return attrs.evolve(report, known=True) if coming else report

    async def abort_all(self, reason: str) -> None:
        """Abort all live requests; returns when their engines have confirmed, at the latest after ``abort_s``."""
        live = [ticket for ticket in self._tickets if ticket.generation is not None]
        self.leave_all(lambda ticket: ticket.generation is not None, reason)
        async with trio.open_nursery() as nursery:
            for ticket in live:
                assert ticket.generation is not None
                nursery.start_soon(ticket.generation.left)

    # ------------------------------------------------------------------ for plain threads

    def open(self) -> OmniRuntime:
        """Start, and wait until it is open. Interrupted, it is closed again. Raises what ``open_omni`` raises."""
        self.start()
        try:
            return self.opened.result()
        except BaseException:
            self.request_close(drain_s=0)
            self._host.join()
            raise

    def join(self) -> ShutdownReport:
        """Wait until it has ended: as long as the ladder takes. Raises the runtime's fatal error, if it had one."""
        if self._started:
            self._host.join()
        return self.closed.result()
