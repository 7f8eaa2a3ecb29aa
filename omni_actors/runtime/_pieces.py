"""Input that comes in pieces: what a request that was submitted as ``resumable`` still gets after its first piece.

Owns who waits for a lease that is not there yet. A piece is no new lease: it extends the one lease of the stage that
takes the prompt, as its engine's session goes on. As everywhere, what waits comes first; then one synchronous block
tests the fence, takes the credits and sends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import trio

from omni_actors._errors import InvalidRequest

from ._work import Piece, WorkMaker, prompt_size

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from omni_actors.lifecycle import Record, RequestTable
    from omni_actors.stages import StageSupervisor

__all__ = ["Pieces"]


class Pieces:
    """The request handler's; ``in_thread`` is its way to do what takes long."""

    def __init__(
        self,
        stages: Mapping[str, StageSupervisor],
        table: RequestTable,
        maker: WorkMaker,
        in_thread: Callable[..., Awaitable[Any]],
    ) -> None:
        self._stages, self._table, self._maker, self._in_thread = stages, table, maker, in_thread
        self._unplaced: dict[str, trio.Event] = {}

    async def give(self, record: Record, piece: Piece) -> bool:
        """Give a request the next piece of its input. One at a time, in order.

        Waits while the request waits for a replica. False if it has ended: nothing was done. Raises InvalidRequest,
        Overloaded, ShuttingDown, EngineRejected: the request goes on without this piece. Cancelled: the same.
        """
        if len(record.plan.roots) > 1:
            raise InvalidRequest("input in pieces needs one stage that takes the prompt", request_id=record.request_id)
        (root,) = record.plan.roots
        stage, make = self._stages[root], self._maker.piece
        if piece.last or (stage.cheap and not stage.frontend.heavy(piece.prompt)):
            work = make(record, root, piece)
        else:
            work = await self._in_thread(make, record, root, piece)
        await self._placed(record, root)
        lease = self._table.extend(record, root, prompt_size(piece.prompt))
        if lease is None:
            return False
        replica = stage.replicas[lease.replica]
        if replica.generation == lease.generation:
            replica.client.extend(work)
        return True

    async def _placed(self, record: Record, stage: str) -> None:
        """Ends with the placement, which has a deadline, or with the request."""
        if record.stages[stage].submitted_at is None and not record.settled:
            await self._unplaced.setdefault(record.key, trio.Event()).wait()

    def look(self, record: Record) -> None:
        """It has its leases now, or its end."""
        if (waits := self._unplaced.pop(record.key, None)) is not None:
            waits.set()
