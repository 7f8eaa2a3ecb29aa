"""The bridge: one thread that runs trio and holds one runtime; every event loop and every plain thread may use it.

The thread is nobody's daemon: whatever becomes of the loops that use it, its runtime climbs down its ladder. What
crosses inwards is a function, posted to a queue that the trio thread empties (``post``, ``run``, ``submit``); what
crosses outwards is written into tickets and futures. Both are legal from any thread, at any moment. This object owns
the thread, the runtime and the set of live tickets; the tickets of a loop that died are aborted. A forked child has
none of that, and is told so. Trio takes no signals here: they belong to the main thread.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import trio

from omni_actors import OmniError, RuntimeClosed, ShutdownReport, ShuttingDown, open_omni
from omni_actors.runtime._world import Worlds, real_world

from . import _exit

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from pathlib import Path

    from omni_actors import Health, OmniRuntime, PipelineSpec, StageEvent

    from ._ticket import Ticket

__all__ = ["Bridge"]

logger = logging.getLogger("omni_actors.bridge")
T = TypeVar("T")

BIRTH_S = 30.0
"""For a thread to begin; it takes a millisecond."""


class _Crossing(Generic[T]):
    """One async function on its way to the trio thread. Cancelling its future cancels it there."""

    def __init__(self, bridge: Bridge, function: Callable[..., Awaitable[T]], args: tuple[Any, ...]) -> None:
        self.future: Future[T] = Future()
        self._function, self._args, self._scope = function, args, trio.CancelScope()
        self.future.add_done_callback(lambda future: future.cancelled() and bridge.post(self._scope.cancel))

    async def run(self) -> None:
        try:
            with self._scope:
                self._end(await self._function(*self._args), None)
        except Exception as error:
            self._end(None, error)
        finally:
            if not self.future.done():
                self._end(None, RuntimeClosed("the runtime was closed meanwhile"))

    def refuse(self) -> None:
        """There is no runtime to run it."""
        self._end(None, RuntimeClosed("the runtime is closed"))

    def _end(self, result: Any, error: BaseException | None) -> None:
        if not self.future.set_running_or_notify_cancel():
            return
        if error is None:
            self.future.set_result(result)
        else:
            self.future.set_exception(error)


class Bridge:
    """See the module. ``opened`` is done when every stage is ready, ``closed`` when nothing of it is left.

    ``opened`` fails with what ``open_omni`` raises; ``closed`` with a fatal error of the runtime, if it was one.
    ``health`` is refreshed whenever a stage changes, and may be read from any thread; None before and after.
    """

    def __init__(
        self,
        pipeline: str | Path | PipelineSpec,
        *,
        overrides: Sequence[str] = (),
        on_event: Callable[[StageEvent], None] | None = None,
        world: Worlds = real_world,
    ) -> None:
        self.opened: Future[OmniRuntime] = Future()
        self.closed: Future[ShutdownReport] = Future()
        self.health: Health | None = None
        self.omni: OmniRuntime
        self._pipeline = pipeline
        self._how: dict[str, Any] = {"overrides": overrides, "on_event": on_event, "world": world}
        self._getpid, self._pid = os.getpid, os.getpid()
        self._thread = threading.Thread(target=self._live, name="omni-actors", daemon=False)
        self._born = threading.Event()
        self._token: trio.lowlevel.TrioToken
        self._posts: deque[Callable[[], None]] = deque()
        self._posted = self._gone = False
        # All below belongs to the trio thread.
        self._opening = trio.CancelScope()
        self._closing = trio.Event()
        self._nursery: trio.Nursery | None = None
        self._tickets: set[Ticket] = set()

    # ------------------------------------------------------------------ from any thread

    def start(self) -> None:
        """Begin to open. Once: raises RuntimeError if it was started before, RuntimeClosed if it was closed."""
        if self._gone:
            raise RuntimeClosed("this runtime is closed")
        _exit.remember(self)
        self._thread.start()
        assert self._born.wait(BIRTH_S), "the trio thread did not begin"

    def check(self) -> None:
        """Raises RuntimeClosed unless it is open in this process. It may close the moment after."""
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
        if not self._posted:
            self._posted = True
            try:
                self._token.run_sync_soon(self._take_posts)
            except (trio.RunFinishedError, AttributeError):
                return False
        return True

    def run(self, function: Callable[..., Awaitable[T]], *args: Any) -> Future[T]:
        """Run an async function in the trio thread. It needs a deadline of its own. Raises RuntimeClosed."""
        self.check()
        crossing = _Crossing(self, function, args)
        if not self.post(lambda: self._start(crossing)):
            crossing.refuse()
        return crossing.future

    def submit(self, tickets: Sequence[Ticket]) -> None:
        """Ask for what the tickets say; all answers go to them, this one too: that the runtime is closed."""

        def take_in() -> None:
            for ticket in tickets:
                self._take_in(ticket)

        if not self.post(take_in):
            for ticket in tickets:
                ticket.refuse(RuntimeClosed("the runtime is closed"))

    def request_close(
        self, *, drain_s: float | None = None, abort_s: float | None = None, stop_s: float | None = None
    ) -> None:
        """Begin to close, or shorten what is left of it. Never waits; ``closed`` tells the end. Seconds as in
        ``OmniRuntime.request_shutdown``.
        """
        if self._thread.ident is None and not self._gone:
            self._end(None)  # it was never started

        def close() -> None:
            if not self.opened.done():
                self._opening.cancel()
            else:
                self.omni.request_shutdown(drain_s=drain_s, abort_s=abort_s, stop_s=stop_s)
            self._closing.set()

        self.post(close)

    # ------------------------------------------------------------------ the trio thread

    def _live(self) -> None:
        failure: BaseException | None = None
        try:
            trio.run(self._hold)
        except BaseException as error:
            failure = error
        finally:
            self._born.set()
            self._end(failure)

    def _end(self, failure: BaseException | None) -> None:
        """Nothing of it is left. Tell everybody."""
        self._gone, self.health = True, None
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
            self.closed.set_result(self.omni.shutdown_report if opened else ShutdownReport())
        else:
            self.closed.set_exception(failure)

    async def _hold(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        self._born.set()
        with self._opening:
            async with open_omni(self._pipeline, **self._how) as self.omni:
                await self._serve()

    async def _serve(self) -> None:
        """Until somebody wants it closed. No deadline: that is its owner's decision."""
        async with trio.open_nursery() as nursery:
            self._nursery, self.health = nursery, self.omni.health()
            nursery.start_soon(self.omni.wait_health, self._seen)
            self.opened.set_result(self.omni)
            try:
                await self._closing.wait()
                await self.omni.shutdown()
            finally:
                self._nursery = None
                nursery.cancel_scope.cancel()

    def _seen(self, health: Health) -> bool:
        """Looked at whenever a stage changes, until the runtime ends."""
        self.health = health
        return False

    def _take_posts(self) -> None:
        self._posted = False
        posts = self._posts
        while posts:
            act = posts.popleft()
            try:
                act()
            except Exception:  # raised here it would end trio itself, and with it every request
                logger.exception("a bug in the bridge")

    def _start(self, crossing: _Crossing[Any]) -> None:
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
        self._tickets.add(ticket)
        self._nursery.start_soon(self._submit, ticket)

    async def _submit(self, ticket: Ticket) -> None:
        """Ends as soon as it is taken: a request in flight is no task."""
        try:
            with ticket.scope:
                generation = ticket.ask.generation(self.omni)
                await generation.submit(ticket)
                ticket.generation = generation
        except Exception as error:  # whatever it is refused with is for the one who asked
            ticket.refuse(error)
        finally:
            if ticket.generation is None:
                ticket.refuse(ShuttingDown("the request was withdrawn", request_id=ticket.ask.request_id))
                self._over(ticket)
            elif ticket.scope.cancel_called:
                self.leave(ticket)

    def leave(self, ticket: Ticket) -> None:
        """Its reader left: abort it, and confirm when the engines have."""
        self._leave(ticket, "the client left")

    def _leave(self, ticket: Ticket, reason: str) -> None:
        if ticket.generation is None:
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
        self._tickets.discard(ticket)
        ticket.confirm()

    def ended(self, ticket: Ticket) -> None:
        """It has its terminal: nobody has to be told when the runtime ends."""
        self._tickets.discard(ticket)

    def leave_all(self, which: Callable[[Ticket], bool], reason: str) -> None:
        """Abort the live requests that ``which`` picks; in the trio thread."""
        for ticket in [ticket for ticket in self._tickets if which(ticket)]:
            self._leave(ticket, reason)

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
            self._thread.join()
            raise

    def join(self) -> ShutdownReport:
        """Wait until it has ended: as long as the ladder takes. Raises the runtime's fatal error, if it had one."""
        report = self.closed.result()
        if self._thread.ident is not None:
            self._thread.join()
        return report
