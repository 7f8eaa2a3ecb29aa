"""What ``generate_omni`` gives: every asked modality's outputs of one request, to one asyncio task."""

from __future__ import annotations

from typing import TYPE_CHECKING

from omni_actors import Kind, Output, Terminal

if TYPE_CHECKING:
    from types import TracebackType

    from ._loop import LoopTicket

__all__ = ["OmniStream"]


class OmniStream:
    """Async iterator over ``Output``. A failed or timed-out request raises from the iteration; an aborted one ends it.

    Leaving it early is the abort: ``aclose``, the end of its ``async with`` block, garbage collection. ``terminal`` is
    None until the request has ended. Cancelling the iteration loses nothing, and does not abort by itself.
    """

    def __init__(self, ticket: LoopTicket, abort_s: float) -> None:
        self._ticket, self._abort_s = ticket, abort_s

    @property
    def terminal(self) -> Terminal | None:
        """The end, with everything that was made; None before."""
        return self._ticket.terminal

    def __aiter__(self) -> OmniStream:
        return self

    async def __anext__(self) -> Output:
        ticket = self._ticket
        await ticket.news()
        # No await from here on: an abort that has returned is final, whichever loop it came from.
        if not ticket.fenced and ticket.unread:
            return ticket.take_one()
        raise self._end()

    def _end(self) -> BaseException:
        if self._ticket.refusal is not None:
            return self._ticket.refusal
        terminal = self._ticket.terminal
        assert terminal is not None, "woken without an output or an end"
        if terminal.kind in (Kind.FAILED, Kind.TIMED_OUT) and terminal.error is not None:
            return terminal.error
        return StopAsyncIteration()

    async def aclose(self) -> None:
        """Abort what has not ended. Returns when every engine has confirmed, at the latest after ``abort_s``."""
        await self._ticket.leave(self._abort_s)

    async def __aenter__(self) -> OmniStream:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    def __del__(self) -> None:
        self._ticket.post_abort()
