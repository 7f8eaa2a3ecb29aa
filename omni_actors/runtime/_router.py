"""The router: one task that takes a batch per engine step and applies it with no await until it is applied.

A thin shell around ``lifecycle``: it looks up the lease, asks routing what follows, and lets the handler carry it out.

While the router is at rest and nothing waits for it, its ``Inbox`` applies a batch in the step of the stage client that
brought it: the same synchronous work, one pass of the scheduler less (8 % of the host's CPU at one request at a time).
Of what many replicas bring in one pass, ``PER_PASS`` events go that way; the batches after them wait for the router,
which takes one per pass. So however many speak at once, nobody waits long for the scheduler or the readers they wake.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import trio

from omni_actors._buggify import chance
from omni_actors._errors import EngineDead, OmniError, StageFailed
from omni_actors.actors import open_mailbox
from omni_actors.lifecycle import Fail, Lease, LeaseEvent, LeaseState, blamed, produced, rejected, streamed
from omni_actors.lifecycle.events import Batch, LeaseFailed, Produced, Released

if TYPE_CHECKING:
    from ._handler import RequestHandler

__all__ = ["Inbox", "Router"]

logger = logging.getLogger("omni_actors.router")

PER_PASS = 256
"""Events that may be applied in about one pass of the scheduler before the router has to take a step."""


class Inbox:
    """Where stage clients put their batches. Order is kept: what comes while a batch waits, waits behind it.

    ``router`` is the running one; without it, batches wait in its mailbox. ``waiting`` counts them.
    """

    def __init__(self, capacity: int) -> None:
        self._ref, self.mailbox = open_mailbox("router", capacity=capacity)
        self.router: Router | None = None
        self.waiting = 0
        self._spent = 0
        self._first: tuple[str, int] | None = None  # who brought the first of the events that were spent

    async def put(self, batch: Batch) -> None:
        """Hand over one batch. A checkpoint only if it has to wait: a client's next receive is one anyway.

        Raises ActorDied if the router has ended. Cancelled, it has put nothing in.
        """
        if self.router is None or self.waiting or not self._room(batch) or chance("inbox.queue"):
            await self._queue(batch)
            return
        self._spent += len(batch.events)
        try:
            self.router.apply(batch)
        except Exception as bug:
            # A bug of ours ends the router, and with it the runtime; the client that brought the batch is not to blame.
            self.router = None
            await self._queue(bug)

    def _room(self, batch: Batch) -> bool:
        """Whether this pass may take it. A client checkpoints between two batches: when the first one is back, the pass
        is another one. So a few replicas, each in its own time, never wait.
        """
        sender = (batch.stage, batch.replica)
        if sender == self._first or not self._spent:
            self._first, self._spent = sender, 0
        return self._spent < PER_PASS

    def stepped(self, batch: Batch) -> None:
        """The router has applied a batch that had waited."""
        self.waiting -= 1
        self._first, self._spent = (batch.stage, batch.replica), len(batch.events)

    async def _queue(self, item: Batch | Exception) -> None:
        self.waiting += 1
        try:
            await self._ref.tell(item)
        except BaseException:
            self.waiting -= 1
            raise


class Router:
    """Owns nothing: the table and the streams are the handler's."""

    def __init__(self, handler: RequestHandler) -> None:
        self._handler = handler
        self._table = handler.table

    async def run(self, inbox: Inbox) -> None:
        """Apply batches until cancelled. Raises what applying one raised."""
        with inbox.mailbox as mailbox:
            inbox.router = self
            try:
                while True:
                    item = await mailbox.receive()
                    if isinstance(item, Exception):
                        raise item
                    assert isinstance(item, Batch), "nobody asks the router anything"
                    self.apply(item)
                    inbox.stepped(item)
            finally:
                inbox.router = None

    def apply(self, batch: Batch) -> None:
        """One engine step of one replica. Synchronous."""
        stage, replica, generation = batch.stage, batch.replica, batch.generation
        now = trio.current_time()
        for event in batch.events:
            if isinstance(event, Produced):
                if (lease := self._table.lease_of(event.key, stage, replica, generation)) is not None:
                    self._produced(lease, event, now)
            elif isinstance(event, Released):
                if (lease := self._table.lease_of(event.key, stage, replica, generation)) is not None:
                    self._released(lease)
            elif isinstance(event, LeaseFailed):
                if (lease := self._table.lease_of(event.key, stage, replica, generation)) is not None:
                    self._failed(lease, event)
            else:
                self._died(batch, event.error)

    def _produced(self, lease: Lease, event: Produced, now: float) -> None:
        record = lease.record
        if lease.state is LeaseState.FINISHED:
            self._table.late += 1
            return
        live = lease.state is LeaseState.LIVE and record.terminal is None
        if live and not event.finished:
            output = streamed(record, lease.stage, lease.part, lease.index, event.payload, now)
            if output is not None:
                self._handler.deliver(record, output)
                return
        decisions = (
            produced(record, lease.stage, lease.part, lease.index, event.payload, event.finished, now) if live else ()
        )
        if event.finished:
            self._count_prompt(lease, event)
            self._table.step(lease, LeaseEvent.FINISH)
            if event.released:
                self._table.step(lease, LeaseEvent.RELEASE)
        if decisions:
            self._handler.carry_out(record, decisions)

    def _count_prompt(self, lease: Lease, event: Produced) -> None:
        if not lease.record.stages[lease.stage].node.edges and lease.index == 0:
            lease.record.prompt_tokens += getattr(event.payload, "prompt_tokens", 0)

    def _released(self, lease: Lease) -> None:
        unfinished = lease.state is LeaseState.LIVE
        self._table.step(lease, LeaseEvent.RELEASE)
        if unfinished and not lease.record.settled:
            self._fail(lease, rejected(lease.stage, "it was released unfinished"))

    def _failed(self, lease: Lease, event: LeaseFailed) -> None:
        unfinished = lease.state is LeaseState.LIVE
        self._table.step(lease, LeaseEvent.FAIL)
        if unfinished and not lease.record.settled:
            self._fail(lease, event.error)

    def _died(self, batch: Batch, error: EngineDead) -> None:
        """Exactly the leases of this generation end, and the requests fail whose work it had not finished (I17)."""
        leases = self._table.bound_to(batch.stage, batch.replica, batch.generation)
        unfinished = [lease for lease in leases if lease.state is LeaseState.LIVE]
        if unfinished:
            logger.error("%s; %d pieces of work end with it", error, len(unfinished), extra={"stage": batch.stage})
        for lease in leases:
            self._table.step(lease, LeaseEvent.DIE)
        for lease in unfinished:
            if not lease.record.settled:
                self._fail(lease, _stage_failed(batch, error))

    def _fail(self, lease: Lease, error: OmniError) -> None:
        """A lease's failure is its request's; a companion's names the companion."""
        self._handler.fail(lease.record, Fail(lease.stage, blamed(error, lease.stage, lease.companion)))


def _stage_failed(batch: Batch, dead: EngineDead) -> StageFailed:
    error = StageFailed(dead.message, dead=dead, stage=batch.stage, replica=batch.replica, generation=batch.generation)
    error.__cause__ = dead
    return error
