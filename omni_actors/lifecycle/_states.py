"""The two state tables of the lifecycle: a request's and a lease's.

A request is *admitted* (it has credits), *running* (its first work is placed), *settled* (its one terminal is
decided, leases may still await their release) and *closed* (nothing of it is held anywhere; credits are back). A
request whose submit is refused after admission is *withdrawn*: closed without a terminal.

A lease is *live* until its engine finished it or was told to forget it; from then on it only waits for the *release*,
the engine's confirmation. Every lease ends exactly once (I11). What an engine says about an ended lease is late: it is
counted and ignored. What it says about an aborting one is dropped, but its end still counts.

A lease may get its input in pieces (EXTEND), while it is live. A piece for any other lease is filtered before: whoever
gives it came too late.

Producing is no event of the table: it changes no state. Both tables hold exactly what can happen once late messages
are filtered; any other pair is a bug of ours.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, TypeVar

from omni_actors._errors import IllegalTransition

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["LeaseEvent", "LeaseState", "RequestEvent", "RequestState", "lease_next", "request_next"]


class _Name(enum.Enum):
    """A member is one object, so that is what its hash can be; an enum's own is a call of Python for each look-up."""

    __hash__ = object.__hash__


class RequestState(_Name):
    """Where a request is."""

    ADMITTED = enum.auto()
    RUNNING = enum.auto()
    SETTLED = enum.auto()
    CLOSED = enum.auto()


class RequestEvent(_Name):
    """What can happen to a request."""

    BEGIN = enum.auto()
    WITHDRAW = enum.auto()
    SETTLE = enum.auto()
    EMPTY = enum.auto()


class LeaseState(_Name):
    """Where a lease is."""

    LIVE = enum.auto()
    FINISHED = enum.auto()
    ABORTING = enum.auto()
    ENDED = enum.auto()


class LeaseEvent(_Name):
    """What can happen to a lease. EXTEND is another piece of its input. RELEASE covers "never sent"; FAIL is the
    engine's refusal of this lease alone.
    """

    EXTEND = enum.auto()
    FINISH = enum.auto()
    ABORT = enum.auto()
    RELEASE = enum.auto()
    FAIL = enum.auto()
    DIE = enum.auto()


_REQUEST: Mapping[tuple[RequestState, RequestEvent], RequestState] = {
    (RequestState.ADMITTED, RequestEvent.BEGIN): RequestState.RUNNING,
    (RequestState.ADMITTED, RequestEvent.WITHDRAW): RequestState.CLOSED,
    (RequestState.ADMITTED, RequestEvent.SETTLE): RequestState.SETTLED,
    (RequestState.RUNNING, RequestEvent.SETTLE): RequestState.SETTLED,
    (RequestState.SETTLED, RequestEvent.SETTLE): RequestState.SETTLED,  # the first one won
    (RequestState.SETTLED, RequestEvent.EMPTY): RequestState.CLOSED,
    (RequestState.CLOSED, RequestEvent.SETTLE): RequestState.CLOSED,
    (RequestState.CLOSED, RequestEvent.WITHDRAW): RequestState.CLOSED,  # aborted while it was being prepared: it had
    (RequestState.CLOSED, RequestEvent.BEGIN): RequestState.CLOSED,  # no lease, so it was closed in the same step
}

_L, _E = LeaseState, LeaseEvent
_LEASE: Mapping[tuple[LeaseState, LeaseEvent], LeaseState] = {
    (_L.LIVE, _E.EXTEND): _L.LIVE,
    (_L.LIVE, _E.FINISH): _L.FINISHED,
    (_L.LIVE, _E.ABORT): _L.ABORTING,
    (_L.LIVE, _E.RELEASE): _L.ENDED,
    (_L.LIVE, _E.FAIL): _L.ENDED,
    (_L.LIVE, _E.DIE): _L.ENDED,
    (_L.FINISHED, _E.RELEASE): _L.ENDED,
    (_L.FINISHED, _E.FAIL): _L.ENDED,
    (_L.FINISHED, _E.DIE): _L.ENDED,
    (_L.ABORTING, _E.FINISH): _L.ABORTING,  # too late to count; the release is still to come
    (_L.ABORTING, _E.RELEASE): _L.ENDED,
    (_L.ABORTING, _E.FAIL): _L.ENDED,
    (_L.ABORTING, _E.DIE): _L.ENDED,
}

_S = TypeVar("_S", RequestState, LeaseState)


def request_next(state: RequestState, event: RequestEvent, key: str) -> RequestState:
    """The request table. Raises IllegalTransition."""
    return _look(_REQUEST.get((state, event)), state, event, key)


def lease_next(state: LeaseState, event: LeaseEvent, key: str) -> LeaseState:
    """The lease table. Raises IllegalTransition (late events must be filtered before: an ENDED lease is forgotten)."""
    return _look(_LEASE.get((state, event)), state, event, key)


def _look(found: _S | None, state: enum.Enum, event: enum.Enum, key: str) -> _S:
    if found is None:
        raise IllegalTransition(f"{key}: {event.name} cannot happen in state {state.name}")
    return found
