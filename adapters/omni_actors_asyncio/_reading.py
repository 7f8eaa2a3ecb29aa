"""The reader's end of one request: what ``generate`` and ``encode`` loop over. Lives in the loop that asked.

Both raise as vLLM would when the request failed. Garbage collection aborts: a generator's ``finally`` may never run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllm.outputs import PoolingOutput, PoolingRequestOutput

from omni_actors import TensorChunk

from ._errors import as_vllm

if TYPE_CHECKING:
    from collections.abc import Awaitable, Generator

    from omni_actors import Terminal

    from ._loop import LoopTicket
    from ._outputs import Assembler

__all__ = ["PooledReader", "Reader"]


class _Now:
    """Nothing to wait for."""

    def __await__(self) -> Generator[None, None, None]:
        return
        yield


_NOW = _Now()


class Reader:
    """One ``generate``'s end of its ticket. ``done``: nothing more will be read."""

    def __init__(self, ticket: LoopTicket, made: Assembler, abort_s: float) -> None:
        self.done = False
        self._ticket, self._made, self._abort_s = ticket, made, abort_s

    def news(self) -> Awaitable[None]:
        """To be awaited before ``take``: it returns when there may be something. It is no coroutine: there is one for
        every token.
        """
        return self._ticket.sleep() or _NOW

    def take(self) -> Any:
        """All that is unread as one RequestOutput; None if that is none."""
        ticket = self._ticket
        terminal = _terminal(ticket)
        if not ticket.fenced:
            output = self._made.take(ticket.take())
            self.done = self._made.finished or terminal is not None
            return output
        self.done = True
        _raise_failure(ticket)
        return self._made.abort(ticket.take())

    async def leave(self) -> None:
        """Abort it, unless it has come to its end; see ``LoopTicket.leave``."""
        if self._made.finished:
            self._ticket.post_abort()  # a formality: its terminal is on its way, if it is not here
        else:
            await self._ticket.leave(self._abort_s)

    def __del__(self) -> None:
        self._ticket.post_abort()


class PooledReader:
    """One ``encode``'s end of its ticket, which is a quiet one: there is one output, the last."""

    def __init__(self, ticket: LoopTicket, request_id: str, tokens: list[int], abort_s: float) -> None:
        self._ticket, self._id, self._tokens, self._abort_s = ticket, request_id, tokens, abort_s

    async def read(self) -> Any:
        """The PoolingRequestOutput; that of an aborted request has no values."""
        await self._ticket.news()
        _terminal(self._ticket)
        _raise_failure(self._ticket)
        for output in self._ticket.take():
            if isinstance(output.payload, TensorChunk) and "pooled" in output.payload.tensors:
                return self._output(output.payload)
        return self._output(TensorChunk())

    def _output(self, chunk: TensorChunk) -> Any:
        import torch

        pooled = chunk.tensors.get("pooled")
        return PoolingRequestOutput(
            self._id,
            PoolingOutput(data=torch.empty(0) if pooled is None else pooled),
            chunk.meta.get("prompt_token_ids", self._tokens),
            chunk.meta.get("cached_tokens", 0),
            finished=True,
        )

    async def leave(self) -> None:
        """Abort it, unless it has come to its end; see ``LoopTicket.leave``."""
        await self._ticket.leave(self._abort_s)

    def __del__(self) -> None:
        self._ticket.post_abort()


def _terminal(ticket: LoopTicket) -> Terminal | None:
    """The end, looked at before what is unread: after it, nothing is added. What follows must not await."""
    terminal, refusal = ticket.terminal, ticket.refusal
    if refusal is not None:
        raise as_vllm(refusal)
    return terminal


def _raise_failure(ticket: LoopTicket) -> None:
    if ticket.fenced and ticket.terminal is not None and ticket.terminal.error is not None:
        raise as_vllm(ticket.terminal.error)
