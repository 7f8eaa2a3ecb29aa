"""What crosses between a bridge's threads: functions on their way in, and what waits for the end of a pass."""

from __future__ import annotations

from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import trio

from omni_actors import RuntimeClosed

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

__all__ = ["Crossing", "Rest"]

T = TypeVar("T")


class Crossing(Generic[T]):
    """One async function on its way to the trio thread. Cancelling its future cancels it there."""

    def __init__(
        self, post: Callable[[Callable[[], None]], bool], function: Callable[..., Awaitable[T]], args: tuple[Any, ...]
    ) -> None:
        self.future: Future[T] = Future()
        self._function, self._args, self._scope = function, args, trio.CancelScope()
        self.future.add_done_callback(lambda future: future.cancelled() and post(self._scope.cancel))

    async def run(self) -> None:
        """In the trio thread."""
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


class Rest(trio.abc.Instrument):
    """Runs what is to be done before the trio thread sleeps.

    Whoever is woken earlier contends with it for Python's lock.
    """

    def __init__(self) -> None:
        self._acts: list[Callable[[], None]] = []
        self._over = True

    def add(self, act: Callable[[], None]) -> None:
        """It runs at the end of this pass; at once, if there is no end of a pass to come."""
        if self._over:
            act()
        else:
            self._acts.append(act)

    def before_io_wait(self, timeout: float) -> None:
        """See trio's."""
        acts, self._acts = self._acts, []
        for act in acts:
            act()

    def begin(self) -> None:
        """In the trio run."""
        self._over = False
        trio.lowlevel.add_instrument(self)

    def end(self) -> None:
        """In the trio run, which may go on without it."""
        trio.lowlevel.remove_instrument(self)
        self._over = True
        self.before_io_wait(0)
