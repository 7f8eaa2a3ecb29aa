"""The request table: every request and every lease of one runtime, and the one place where they change.

Owns the records, the leases and the ledger (how many leases each replica holds). Keeps I1 (one terminal), I4 (abort is
total), I5 (the first settle wins), I8 (keys are ours and unique; user ids may repeat), I11 (each lease ends once) and
I12 (nothing is left when nothing lives). Synchronous throughout: a caller gets back what is to be done, and does it.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import msgspec

from ._record import Kind, Lease, Record, RequestView, StageProgress, Terminal
from ._states import LeaseEvent, LeaseState, RequestEvent, RequestState, lease_next, request_next

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from omni_actors._errors import OmniError

    from ._admission import Admission
    from ._graph import Plan

__all__ = ["RequestTable", "Settled", "unconfirmed"]


class Settled(msgspec.Struct, frozen=True):
    """What the first settle of a request leaves to be done: tell the engines to forget these leases."""

    record: Record
    terminal: Terminal
    to_abort: tuple[Lease, ...]


class RequestTable:
    """``clock`` gives seconds; ``on_closed`` is called once per record when nothing of it is held anywhere any more.

    ``salt`` is a part of every key, so that those of two runtimes differ.
    """

    def __init__(
        self,
        admission: Admission,
        *,
        clock: Callable[[], float],
        on_closed: Callable[[Record], None],
        salt: str = "0",
    ) -> None:
        self.admission = admission
        self.records: dict[str, Record] = {}
        self.leases: dict[str, Lease] = {}
        self.load: Counter[tuple[str, int]] = Counter()
        self.late = 0
        self.ended: Counter[Kind] = Counter()
        self.unsettled = 0
        self._by_id: dict[str, dict[str, Record]] = {}
        self._clock, self._on_closed = clock, on_closed
        self._count = 0
        self._salt = salt

    # ------------------------------------------------------------------ requests

    def admit(
        self,
        view: RequestView,
        plan: Plan,
        *,
        slots: int,
        nbytes: int,
        priority: int = 0,
        options: Mapping[str, Any] | None = None,
    ) -> Record:
        """Take credits and make a record. Raises Overloaded or ShuttingDown; then nothing has changed."""
        self.admission.enter(slots, nbytes, request_id=view.request_id)
        self._count += 1
        record = Record(
            key=f"{self._count:x}-{self._salt}",
            view=view,
            plan=plan,
            stages={n.name: StageProgress(n, total=None if n.name in plan.partitioned else 1) for n in plan.order},
            slots=slots,
            nbytes=nbytes,
            submitted_at=self._clock(),
            priority=priority,
            options=options or {},
        )
        self.records[record.key] = record
        self._by_id.setdefault(view.request_id, {})[record.key] = record
        self.unsettled += 1
        return record

    def widen(self, record: Record, slots: int, nbytes: int) -> None:
        """Take credits for the companions of a request that has no lease yet. Nothing for one that has ended.

        Raises Overloaded or ShuttingDown; then nothing has changed, and the request is to be withdrawn: they come in
        together or not at all.
        """
        if record.settled:
            return
        self.admission.enter(slots, nbytes, request_id=record.request_id)
        record.slots += slots
        record.nbytes += nbytes

    def begin(self, record: Record) -> None:
        """Its first work is about to be forwarded."""
        record.state = request_next(record.state, RequestEvent.BEGIN, record.key)

    def withdraw(self, record: Record) -> None:
        """The submit was refused: as if it had never come."""
        before = record.state
        record.state = request_next(before, RequestEvent.WITHDRAW, record.key)
        if before is RequestState.ADMITTED:
            self.unsettled -= 1
            self._forget(record)

    def find(self, request_id: str) -> tuple[Record, ...]:
        """Every record that carries this user id."""
        return tuple(self._by_id.get(request_id, {}).values())

    def settle(
        self,
        record: Record,
        kind: Kind,
        *,
        error: OmniError | None = None,
        reason: str | None = None,
        stage: str | None = None,
    ) -> Settled | None:
        """Decide the terminal. None if it was decided before: the first call wins (I5)."""
        record.state = request_next(record.state, RequestEvent.SETTLE, record.key)
        if record.terminal is not None or record.state is RequestState.CLOSED:
            return None
        record.terminal = self._terminal(record, kind, error, reason, stage)
        self.unsettled -= 1
        self.ended[kind] += 1
        live = tuple(lease for lease in record.leases.values() if lease.state is LeaseState.LIVE)
        for lease in live:
            lease.state = lease_next(lease.state, LeaseEvent.ABORT, lease.key)
        self._close_if_empty(record)
        return Settled(record, record.terminal, live)

    def _terminal(
        self, record: Record, kind: Kind, error: OmniError | None, reason: str | None, stage: str | None
    ) -> Terminal:
        results = {name: progress.results() for name, progress in record.stages.items() if progress.parts}
        return Terminal(
            kind=kind,
            request_id=record.request_id,
            stage=stage or record.plan.last,
            reason=reason or (str(error) if error else None),
            error=error,
            results=results,
            timings=tuple(progress.timing() for progress in record.stages.values()),
            submitted_at=record.submitted_at,
            at=self._clock(),
            prompt_tokens=record.prompt_tokens,
        )

    # ------------------------------------------------------------------ leases

    def lease_key(self, record: Record, stage: str, part: int, index: int) -> str:
        """The key of a lease to come: at most 32 characters of ``[a-z0-9-]``, never user text."""
        key = f"{record.key}-{record.plan.index[stage]}"
        if part:
            key += f"-p{part}"
        if index < 0:
            return f"{key}-c{~index}"
        return f"{key}-s{index}" if index else key

    def open_lease(self, record: Record, stage: str, part: int, index: int, replica: int, generation: int) -> Lease:
        """Bind work to a replica. The caller has tested the fence in the same synchronous block."""
        assert record.state is RequestState.RUNNING, "a lease for a request that is not running"
        key = self.lease_key(record, stage, part, index)
        assert key not in self.leases, f"lease {key} exists already"
        lease = Lease(key, record, stage, part, index, replica, generation)
        self.leases[key] = record.leases[key] = lease
        self.load[stage, replica] += 1
        progress = record.stages[stage]
        if progress.submitted_at is None:
            progress.submitted_at, progress.replica = self._clock(), replica
        return lease

    def extend(self, record: Record, stage: str, nbytes: int) -> Lease | None:
        """Take another piece of a request's input, of ``nbytes``, for its one main lease on ``stage``.

        None: the request, or this lease, has ended. Raises Overloaded or ShuttingDown; then nothing has changed.
        """
        mine = (lease for lease in record.leases.values() if lease.stage == stage and lease.index >= 0)
        live = [lease for lease in mine if lease.state is LeaseState.LIVE]
        if record.settled or not live:
            return None
        (lease,) = live
        self.admission.enter(0, nbytes, request_id=record.request_id)
        record.nbytes += nbytes
        self.step(lease, LeaseEvent.EXTEND)
        return lease

    def lease_of(self, key: str, stage: str, replica: int, generation: int) -> Lease | None:
        """The lease that a message speaks of, or None for a late one or one that is not its sender's (I8, I20)."""
        lease = self.leases.get(key)
        if lease is None or lease.generation != generation or lease.replica != replica or lease.stage != stage:
            self.late += 1
            return None
        return lease

    def step(self, lease: Lease, event: LeaseEvent) -> None:
        """Apply one event; an ended lease is forgotten, and its request with it if it was the last."""
        lease.state = lease_next(lease.state, event, lease.key)
        if lease.state is LeaseState.ENDED:
            record = lease.record
            del self.leases[lease.key], record.leases[lease.key]
            place = (lease.stage, lease.replica)
            self.load[place] -= 1
            if not self.load[place]:
                del self.load[place]
            self._close_if_empty(record)

    def bound_to(self, stage: str, replica: int, generation: int) -> list[Lease]:
        """The leases that die with this generation (I17)."""
        place = (stage, replica, generation)
        return [lease for lease in self.leases.values() if (lease.stage, lease.replica, lease.generation) == place]

    # ------------------------------------------------------------------ the end

    def _close_if_empty(self, record: Record) -> None:
        if record.state is RequestState.SETTLED and not record.leases:
            record.state = request_next(record.state, RequestEvent.EMPTY, record.key)
            self._forget(record)

    def _forget(self, record: Record) -> None:
        del self.records[record.key]
        same = self._by_id[record.request_id]
        del same[record.key]
        if not same:
            del self._by_id[record.request_id]
        self.admission.leave(record.slots, record.nbytes)
        self._on_closed(record)

    def check(self) -> None:
        """The integrity check for a quiet moment: the sums agree, and with no request nothing is left (I12)."""
        assert set(self.leases) == {key for record in self.records.values() for key in record.leases}
        assert self.load == Counter((lease.stage, lease.replica) for lease in self.leases.values())
        assert self.admission.slots == sum(record.slots for record in self.records.values())
        assert self.admission.bytes == sum(record.nbytes for record in self.records.values())
        assert self.unsettled == sum(not record.settled for record in self.records.values())
        assert {key for same in self._by_id.values() for key in same} == set(self.records)
        for lease in self.leases.values():
            fenced = lease.state is LeaseState.ABORTING
            assert lease.state is LeaseState.FINISHED or fenced == lease.record.settled, lease.key


def unconfirmed(records: Iterable[Record]) -> tuple[Lease, ...]:
    """The leases whose release is still awaited."""
    return tuple(lease for record in records for lease in record.leases.values())
