"""What runs trio for a bridge: a thread of its own, the asyncio loop as its host, or the trio program around the loop.

A host starts one resident and tells it three things: the token of its run, that it may live, and that it is over. It
owns whatever thread that takes, and nothing of the resident's.

``GuestHost`` leans on a loop that may be stopped, closed or left behind, and whoever is a guest of such a loop would
hang for ever with its engines running. So it keeps trio's ticks in a queue of its own, and a spare thread: when the
loop cannot be expected to run them, the spare thread does, from there to the end. One lock makes that a hand-over.
"""

from __future__ import annotations

import asyncio
import queue
import signal
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Protocol

import trio
from trio._core._run import GLOBAL_RUN_CONTEXT

from omni_actors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from outcome import Outcome

__all__ = ["GuestHost", "Host", "LoopHost", "Resident", "ThreadHost"]

BIRTH_S = 30.0
"""For a thread to begin; it takes a millisecond."""


class Resident(Protocol):
    """Who lives in the trio run."""

    def arrived(self, token: trio.lowlevel.TrioToken) -> None:
        """Called once, before ``live`` and before ``Host.start`` returns."""

    async def live(self) -> None:
        """The whole life."""

    def departed(self, failure: BaseException | None) -> None:
        """Called once, when nothing of ``live`` is left. ``failure`` is what it raised."""


class Host(Protocol):
    """What runs it."""

    def start(self, resident: Resident) -> None:
        """Begin. Once. Returns when the resident has its token; raises UsageError if this is not the place for it."""

    def join(self) -> None:
        """Wait until the resident has ended: as long as it lives."""

    def main_thread_ended(self) -> None:
        """The program ends; who relied on its main thread has to look elsewhere."""


class ThreadHost:
    """A thread that is nobody's daemon: whatever becomes of the loops that use it, its resident lives to its end."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._born: Future[None] = Future()

    def start(self, resident: Resident) -> None:
        self._thread = threading.Thread(target=self._run, args=(resident,), name="omni-actors", daemon=False)
        self._thread.start()
        self._born.result(BIRTH_S)

    def _run(self, resident: Resident) -> None:
        async def live() -> None:
            resident.arrived(trio.lowlevel.current_trio_token())
            self._born.set_result(None)
            await resident.live()

        failure: BaseException | None = None
        try:
            trio.run(live)
        except BaseException as error:
            failure = error
        finally:
            if not self._born.done():
                self._born.set_exception(failure or RuntimeError("trio did not begin"))
            resident.departed(failure)

    def join(self) -> None:
        if self._thread is not None:
            self._thread.join()

    def main_thread_ended(self) -> None:
        """A thread of its own needs no other."""


class GuestHost:
    """Trio as a guest of the running loop: in its thread, between its callbacks."""

    def __init__(self) -> None:
        self._due: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self._turn = threading.Lock()  # held while a tick runs
        self._called = threading.Event()  # the spare thread's, for as long as it is spare
        self._moved = self._over = False
        self._run = _Run()
        self._spare: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop
        self._resident: Resident

    def start(self, resident: Resident) -> None:
        try:
            self._loop = asyncio.get_running_loop()
        except RuntimeError as error:
            raise UsageError("guest mode needs a running asyncio loop") from error
        self._resident = resident
        self._run.take_interrupts()
        self._run.tick(self._begin)
        # Not a daemon: while it is there, the end of the program waits for the resident's.
        self._spare = threading.Thread(target=self._take_over, name="omni-actors", daemon=False)
        self._spare.start()

    def _begin(self) -> None:
        trio.lowlevel.start_guest_run(
            self._resident.live,
            run_sync_soon_threadsafe=self._soon,
            run_sync_soon_not_threadsafe=self._next,
            done_callback=self._done,
            host_uses_signal_set_wakeup_fd=True,
        )
        self._resident.arrived(trio.lowlevel.current_trio_token())

    def _soon(self, act: Callable[[], object]) -> None:
        """From any thread."""
        self._due.put(act)
        if not self._moved:
            try:
                self._loop.call_soon_threadsafe(_Visit(self._visit, self._move))
            except RuntimeError:  # it is closed
                self._move()

    def _next(self, act: Callable[[], object]) -> None:
        """In a tick."""
        self._due.put(act)
        if not self._moved:
            self._loop.call_soon(_Visit(self._visit, self._move))

    def _visit(self) -> None:
        """In the loop: one tick."""
        with self._turn:
            if not self._moved:
                self._run.tick(self._due.get_nowait())
        self._run.deliver_interrupt()

    def _move(self) -> None:
        """Leave the loop for good. Idempotent, takes no lock, legal under garbage collection."""
        self._moved = True
        self._called.set()

    def _take_over(self) -> None:
        """The spare thread. No deadline: it waits until it is needed, or the resident has ended."""
        self._called.wait()
        while not self._over:
            act = self._due.get()
            with self._turn:
                self._run.tick(act)

    def _done(self, result: Outcome[None]) -> None:
        self._over = True
        self._due.put(lambda: None)  # whoever has just been called finds out
        self._called.set()
        self._resident.departed(getattr(result, "error", None))

    def join(self) -> None:
        """Called in the loop, it takes the run out of it first: a loop that waits runs nothing."""
        if self._spare is None:
            return
        if not self._over and (_in_loop(self._loop) or not self._loop.is_running()):
            self._move()
        self._spare.join()

    def main_thread_ended(self) -> None:
        """A loop that ran in it has been left behind."""
        if not self._loop.is_running():
            self._move()


class LoopHost:
    """A loop of trio-asyncio's: the thread and the run of the trio program that opened it. Ends with the loop."""

    def __init__(self) -> None:
        self._ended = threading.Event()
        self._thread = 0

    def start(self, resident: Resident) -> None:
        try:
            token, loop = trio.lowlevel.current_trio_token(), asyncio.get_running_loop()
        except RuntimeError as error:
            words = "an AsyncOmni over a runtime is entered in a trio-asyncio loop, inside the runtime's own trio run"
            raise UsageError(words) from error
        self._thread = threading.get_ident()
        resident.arrived(token)
        loop.run_trio_task(self._live, resident)  # type: ignore[attr-defined]  # trio-asyncio's

    async def _live(self, resident: Resident) -> None:
        failure: BaseException | None = None
        try:
            await resident.live()
        except Exception as error:  # its own to tell; raised here it would end the loop of the program
            failure = error
        finally:
            self._ended.set()
            resident.departed(failure)

    def join(self) -> None:
        """Raises UsageError in the loop's thread: it would wait for itself."""
        if threading.get_ident() == self._thread and not self._ended.is_set():
            raise UsageError("an AsyncOmni over a runtime is closed with `await omni.close()` in its own thread")
        self._ended.wait()

    def main_thread_ended(self) -> None:
        """The trio run was in it, and is over; or it was not."""


class _Visit:
    """One call that a loop owes. A loop that is closed, or collected, drops it instead: then ``lost`` is called."""

    def __init__(self, visit: Callable[[], None], lost: Callable[[], None]) -> None:
        self._visit, self._lost = visit, lost
        self._came = False

    def __call__(self) -> None:
        self._came = True
        self._visit()

    def __del__(self) -> None:
        if not self._came:
            self._lost()


class _Run:
    """One guest run's identity. Trio keeps it in the thread, for good; here it is there only while a tick runs.

    So the run can change threads, and the thread it leaves can have another one.
    """

    def __init__(self) -> None:
        self._mine: dict[str, Any] = {}
        self._ticking = self._interrupted = False

    def tick(self, act: Callable[[], object]) -> None:
        """Not for two threads at a time."""
        here = GLOBAL_RUN_CONTEXT.__dict__
        outer = dict(here)
        here.clear()
        here.update(self._mine)
        self._ticking = True
        try:
            act()
        finally:
            self._ticking = False
            self._mine = dict(here)
            here.clear()
            here.update(outer)

    def take_interrupts(self) -> None:
        """Where Ctrl-C would raise anywhere, let it raise anywhere but in the middle of trio. The loop's it remains.

        Trio's own handler would deliver it to the guest, and could not be taken back from another thread.
        """
        main = threading.current_thread() is threading.main_thread()
        if main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._interrupt)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        if self._ticking:
            self._interrupted = True
        else:
            signal.default_int_handler(number, frame)

    def deliver_interrupt(self) -> None:
        """After a tick, in the loop."""
        if self._interrupted:
            self._interrupted = False
            raise KeyboardInterrupt


def _in_loop(loop: asyncio.AbstractEventLoop) -> bool:
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False
