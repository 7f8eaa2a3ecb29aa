"""Streamed input: a request whose prompt comes from a generator of vLLM's StreamingInput, piece by piece.

A session has two halves in its loop. The *reader* is ``generate``'s, and waits for the first piece itself. The *feed*
is a task that hands over the other pieces, one after the other; it knows the ticket and the input, never the reader, so
that a forgotten reader is still collected. Leaving ends both. An input that raises aborts the request, and is what
``generate`` raises.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import trio
from vllm.exceptions import VLLMValidationError
from vllm.sampling_params import RequestOutputKind, SamplingParams

from omni_actors.runtime._work import Piece

from ._asked import streamed
from ._errors import as_vllm
from ._loop import LoopTicket

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Mapping

    from omni_actors.runtime._omni import Generation

    from ._bridge import Bridge
    from ._reading import Reader

__all__ = ["SessionReader", "SessionTicket", "check_session"]


def check_session(params: Any, options: Mapping[str, Any]) -> None:
    """Raises what AsyncLLM raises, in its words, for what it takes no streamed input with."""
    if options.get("reasoning_ended") is not None or options.get("reasoning_parser_kwargs") is not None:
        raise NotImplementedError("reasoning_ended and reasoning_parser_kwargs: not with streamed input")
    if (
        not isinstance(params, SamplingParams)
        or params.n > 1
        or params.output_kind == RequestOutputKind.FINAL_ONLY
        or params.stop
    ):
        raise VLLMValidationError(
            "Input streaming not currently supported for pooling models, n > 1, request_kind = FINAL_ONLY or with stop "
            "strings."
        )


class SessionTicket(LoopTicket):
    """A ticket that can be waited for, in the trio thread, until it is taken or refused."""

    def __init__(self, *args: Any, **how: Any) -> None:
        super().__init__(*args, **how)
        self._answered = trio.Event()

    def take_in(self, generation: Generation) -> None:
        """See ``Ticket``."""
        super().take_in(generation)
        self._answered.set()

    def refuse(self, error: Exception) -> None:
        """See ``Ticket``."""
        super().refuse(error)
        self._answered.set()

    async def extend(self, piece: Piece) -> bool:
        """In the trio thread. False if it has ended. Waits as long as its submission does; see ``Pieces.give``."""
        await self._answered.wait()
        return self.generation is not None and await self.generation.extend(piece)


class SessionReader:
    """One ``generate``'s reader, with the session's input. ``begin`` asks for it, with the first piece's prompt."""

    def __init__(
        self,
        bridge: Bridge,
        pieces: AsyncGenerator[Any, None],
        params: SamplingParams,
        begin: Callable[[Any, Any], tuple[Reader, SessionTicket]],
    ) -> None:
        self.done = False
        self._bridge, self._pieces, self._params, self._begin = bridge, pieces, params, begin
        self._reader: Reader | None = None
        self._feed: asyncio.Task[None] | None = None
        self._failure: list[Exception] = []

    async def news(self) -> None:
        """See ``Reader``."""
        if self._reader is None:
            piece = await anext(self._pieces, None)
            if piece is None:
                self.done = True
                return
            self._reader = self._start(piece)
        await self._reader.news()

    def take(self) -> Any:
        """See ``Reader``; what the input raised, or was refused with, comes in place of what would be read."""
        reader = self._reader
        if reader is None:
            return None
        try:
            output = reader.take()
        except Exception as error:
            raise (self._failure or [error])[0] from None
        self.done = reader.done
        if self.done and self._failure:
            raise self._failure[0]
        return output

    def _start(self, piece: Any) -> Reader:
        reader, ticket = self._begin(piece.prompt, _params(piece, self._params))
        feed = _feed(self._bridge, ticket, self._pieces, self._params, self._failure)
        self._feed = asyncio.get_running_loop().create_task(feed)
        return reader

    async def leave(self) -> None:
        """End the feed, and with it the input; abort what has not ended."""
        if self._feed is not None:
            self._feed.cancel()
        if self._reader is not None:
            await self._reader.leave()
        else:
            await self._pieces.aclose()

    def __del__(self) -> None:
        feed = self._feed
        if feed is not None and not feed.done() and not feed.get_loop().is_closed():
            feed.get_loop().call_soon_threadsafe(feed.cancel)


def _params(piece: Any, default: SamplingParams) -> Any:
    given = piece.sampling_params
    if given is not None:
        check_session(given, {})
    return streamed(given or default)


async def _feed(
    bridge: Bridge,
    ticket: SessionTicket,
    pieces: AsyncGenerator[Any, None],
    default: SamplingParams,
    failure: list[Exception],
) -> None:
    """Until the input ends, or the request has. What goes wrong is left in ``failure``, and aborts the request."""

    async def give(piece: Piece) -> bool:
        return await asyncio.wrap_future(bridge.run(ticket.extend, piece))

    try:
        async with aclosing(pieces):
            async for piece in pieces:
                if not await give(Piece(prompt=piece.prompt, params=_params(piece, default))):
                    return
        await give(Piece(last=True))
    except Exception as error:
        known = as_vllm(error)
        failure.append(known if isinstance(known, Exception) else error)
        ticket.post_abort()
