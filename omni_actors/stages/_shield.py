"""The only place where a shield is made: two helpers, both with an end.

``bounded_shield`` is for the last steps of an owner that must not be torn by a cancellation: it ends at its deadline.
``open_service_nursery`` is for tasks that others still lean on while *they* are being cancelled (a pump that keeps an
engine's pipe from filling up): they end when the body has ended, whatever happened.
"""

from __future__ import annotations

from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any

import trio

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

__all__ = ["ServiceNursery", "bounded_shield", "open_service_nursery"]


@contextmanager
def bounded_shield(deadline: float) -> Iterator[trio.CancelScope]:
    """Outer cancellations wait until the block has ended, at most until ``deadline`` (``trio.current_time()``).

    At the deadline the block itself is cancelled; the scope's ``cancelled_caught`` tells.
    """
    with trio.CancelScope(deadline=deadline, shield=True) as scope:
        yield scope


class ServiceNursery:
    """Starts tasks that outer cancellations do not reach; only the end of the nursery's body does."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self._scopes: set[trio.CancelScope] = set()
        self._closed = False

    def start_soon(self, function: Callable[..., Awaitable[Any]], *args: Any) -> None:
        """Like ``trio.Nursery.start_soon``. A task that raises cancels the body."""
        self._nursery.start_soon(self._run, function, args)

    async def _run(self, function: Callable[..., Awaitable[Any]], args: tuple[Any, ...]) -> None:
        with trio.CancelScope(shield=True) as scope:
            self._scopes.add(scope)
            if self._closed:
                scope.cancel()
            try:
                await function(*args)
            finally:
                self._scopes.discard(scope)

    def cancel(self) -> None:
        """Cancel every task, now and to come. Idempotent."""
        self._closed = True
        for scope in self._scopes:
            scope.cancel()


@asynccontextmanager
async def open_service_nursery() -> AsyncIterator[ServiceNursery]:
    """A nursery whose tasks outlive a cancellation of the body, but never the body.

    The body's own exception leaves as itself, not in a group, unless a task failed too.
    """
    raised: BaseException | None = None
    try:
        async with trio.open_nursery() as nursery:
            services = ServiceNursery(nursery)
            try:
                yield services
            except BaseException as error:
                raised = error
                raise
            finally:
                services.cancel()
    except BaseExceptionGroup as group:
        if raised is not None and group.exceptions == (raised,):
            raise raised from None
        raise
