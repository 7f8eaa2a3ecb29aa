"""A loop for asyncio code inside a trio program: trio-asyncio's, with what a server's libraries expect of asyncio's.

trio-asyncio shows its loop to who asks ``asyncio`` for it, and so hides it from modules that had asyncio's functions by
name before it was imported (anyio does). Here the interpreter knows it as the running loop whenever it runs a callback.
It takes any executor, a delay that is over, and logs what nobody handled, which would otherwise end the program.
"""

from __future__ import annotations

import asyncio
from _asyncio import _get_running_loop, _set_running_loop
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from trio_asyncio import TrioEventLoop, TrioExecutor, open_loop

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

__all__ = ["asyncio_loop"]


@asynccontextmanager
async def asyncio_loop() -> AsyncIterator[asyncio.AbstractEventLoop]:
    """For asyncio code in this trio task and those that it starts. Leaving it cancels what is left of that code.

    The body's exception leaves as itself, not in the groups of the loop's nurseries.
    """
    raised: BaseException | None = None
    try:
        async with open_loop() as loop:
            loop.__class__ = _Loop  # trio-asyncio has no other way to open one of ours
            loop.set_exception_handler(asyncio.BaseEventLoop.default_exception_handler)
            try:
                yield loop
            except BaseException as error:
                raised = error
                raise
    except BaseExceptionGroup as group:
        if raised is None or raised is group:
            raise
        raise raised from raised.__cause__


class _Loop(TrioEventLoop):  # type: ignore[misc]  # trio-asyncio has no types
    """See the module."""

    def _call(self, callback: Callable[..., None], *args: Any) -> None:
        before = _get_running_loop()
        _set_running_loop(self)
        try:
            callback(*args)
        finally:
            _set_running_loop(before)

    def call_soon(self, callback: Callable[..., None], *args: Any, **context: Any) -> Any:
        return super().call_soon(partial(self._call, callback), *args, **context)

    def call_soon_threadsafe(self, callback: Callable[..., None], *args: Any, **context: Any) -> Any:
        return super().call_soon_threadsafe(partial(self._call, callback), *args, **context)

    def call_at(self, when: float, callback: Callable[..., None], *args: Any, **context: Any) -> Any:
        return super().call_at(when, partial(self._call, callback), *args, **context)

    def call_later(self, delay: float, callback: Callable[..., None], *args: Any, **context: Any) -> Any:
        return self.call_at(self.time() + delay, callback, *args, **context)

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> Any:
        if executor is None or isinstance(executor, TrioExecutor):
            return super().run_in_executor(executor, func, *args)
        return asyncio.wrap_future(executor.submit(func, *args), loop=self)
