"""When a message may be said: the omni stage wire as state tables, one for each side.

Theory
------
The conversation is two kinds of small machine, and each side runs its own copy of both:

- *one connection*: ``hello → ready → serving → stopping → dead``. ``hello``: the engine has not said Hello.
  ``ready``: it has; the host answers with its own and waits for Ready, while the model loads. ``serving``: work.
  ``stopping``: Stop was said, or the engine was told by a signal; only ends are spoken now. ``dead``: nothing is said.
- *one lease per key*: ``submitted → producing → finished → (gone)``, or from either of the first two
  ``→ aborting → (gone)``. A lease that is gone is not in the map, so a live lease is an entry and nothing else.

A table maps (state, event) to the next state. An event is a message seen from one side: sent or received. The tables
of the two sides are not mirror images, because messages cross: the host may say Abort while the engine says its last
Output. So whoever says Abort accepts outputs after it (and drops them), and whoever has said its last word ignores the
Abort that crossed it. What cannot be explained by crossing is an error, and the error says whose: ``ProtocolError`` for
a received message, ``IllegalTransition`` for one that we were about to send.

What the two tables give together: every lease ends in exactly one Released or Failed, outputs of a key are gapless
(``seq``), nothing of a key follows its end. One thing is forgiven, since it is harmless (I11): a Released for a key
that is gone is counted in ``late_releases`` and ignored.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Literal

from omni_actors._errors import IllegalTransition, ProtocolError
from omni_actors.wire.omni._messages import (
    Abort,
    Call,
    CallResult,
    Failed,
    Heartbeat,
    Hello,
    Message,
    Output,
    Ping,
    Progress,
    Ready,
    Released,
    Stop,
    Submit,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["MAX_PENDING_CALLS", "EngineSide", "HostSide", "LeaseState", "State"]


class State(Enum):
    """Where a connection is."""

    HELLO = "hello"
    READY = "ready"
    SERVING = "serving"
    STOPPING = "stopping"
    DEAD = "dead"


class LeaseState(Enum):
    """Where a live lease is; GONE is never stored."""

    SUBMITTED = "submitted"
    PRODUCING = "producing"
    FINISHED = "finished"
    ABORTING = "aborting"
    GONE = "gone"


MAX_PENDING_CALLS = 1024
"""Bound of the calls that a host leaves unanswered on one connection."""

Direction = Literal["sends", "receives"]
Row = dict[tuple[Direction, type], State]

_WORK = (Submit, Abort, Call, Ping)
_ANSWERS = (Output, Progress, Released, Failed, CallResult, Heartbeat)


def _stay(direction: Direction, kinds: Iterable[type], state: State) -> Row:
    return {(direction, kind): state for kind in kinds}


HOST_CONNECTION: dict[State, Row] = {
    State.HELLO: {("receives", Hello): State.READY},
    State.READY: {("sends", Hello): State.READY, ("receives", Ready): State.SERVING},
    State.SERVING: {
        **_stay("sends", _WORK, State.SERVING),
        **_stay("receives", _ANSWERS, State.SERVING),
        ("sends", Stop): State.STOPPING,
    },
    State.STOPPING: _stay("receives", _ANSWERS, State.STOPPING),
    State.DEAD: {},
}

ENGINE_CONNECTION: dict[State, Row] = {
    State.HELLO: {("sends", Hello): State.HELLO, ("receives", Hello): State.READY},
    State.READY: {("sends", Ready): State.SERVING},
    State.SERVING: {
        **_stay("receives", _WORK, State.SERVING),
        **_stay("sends", _ANSWERS, State.SERVING),
        ("receives", Stop): State.STOPPING,
    },
    # A signal stops the engine without the host's knowledge, so work may still come; it is not taken.
    State.STOPPING: {
        **_stay("receives", (*_WORK, Stop), State.STOPPING),
        **_stay("sends", _ANSWERS, State.STOPPING),
    },
    State.DEAD: {},
}

LeaseEvent = Literal["abort", "output", "last output", "progress", "released", "failed", "unsend"]
LeaseTable = dict[LeaseState, dict[LeaseEvent, LeaseState]]

_S, _P, _F, _A, _GONE = LeaseState

HOST_LEASE: LeaseTable = {
    _S: {"output": _P, "last output": _F, "progress": _S, "failed": _GONE, "abort": _A, "unsend": _GONE},
    _P: {"output": _P, "last output": _F, "progress": _P, "failed": _GONE, "abort": _A},
    # Its release is on the way: an abort needs no message.
    _F: {"released": _GONE},
    _A: {"output": _A, "last output": _A, "progress": _A, "failed": _GONE, "released": _GONE},
}

ENGINE_LEASE: LeaseTable = {
    _S: {"output": _P, "last output": _F, "progress": _S, "failed": _GONE, "abort": _A},
    _P: {"output": _P, "last output": _F, "progress": _P, "failed": _GONE, "abort": _A},
    # Our last output crossed the host's abort: what follows is a release either way.
    _F: {"released": _GONE, "abort": _F},
    _A: {"released": _GONE, "failed": _GONE, "abort": _A},
}


class _Lease:
    """One live lease; owned by its side."""

    __slots__ = ("next_seq", "state")

    def __init__(self) -> None:
        self.state = LeaseState.SUBMITTED
        self.next_seq = 0


class _Side:
    """One side of one conversation. Owns the connection's state and the live leases; does no I/O."""

    _connection: dict[State, Row]
    _lease_table: LeaseTable

    def __init__(self) -> None:
        self.state = State.HELLO
        self.late_releases = 0
        self._leases: dict[str, _Lease] = {}
        self._calls: set[int] = set()

    @property
    def calls(self) -> frozenset[int]:
        """The ids of unanswered calls."""
        return frozenset(self._calls)

    @property
    def live(self) -> int:
        """How many leases are live."""
        return len(self._leases)

    @property
    def owed(self) -> bool:
        """Whether the engine owes the host something: an end of a lease, or an answer."""
        return bool(self._leases or self._calls)

    def keys(self) -> Iterator[str]:
        """The live leases' keys, oldest first."""
        return iter(tuple(self._leases))

    def lease(self, key: str) -> LeaseState:
        """A lease's state; GONE for a key that is not live."""
        lease = self._leases.get(key)
        return lease.state if lease else LeaseState.GONE

    def receive(self, message: Message) -> None:
        """Take note of a message that the peer sent. Raises ProtocolError, and changes nothing then."""
        if isinstance(message, Released) and message.key not in self._leases and self.state is not State.DEAD:
            self.late_releases += 1
            return
        self._step("receives", message)

    def send(self, message: Message) -> None:
        """Take note of a message that we are about to send. Raises IllegalTransition, and changes nothing then."""
        self._step("sends", message)

    def die(self) -> None:
        """The connection is over; so is every lease. Idempotent."""
        self.state = State.DEAD
        self._leases.clear()
        self._calls.clear()

    def _step(self, direction: Direction, message: Message) -> None:
        following = self._connection[self.state].get((direction, type(message)))
        if following is None:
            raise self._illegal(direction, type(message).__name__, self.state.value)
        match message:
            case Submit(key=key):
                self._open(direction, key)
            case Abort(keys=keys):
                self._abort(direction, keys)
            case Output(key=key, seq=seq, finished=finished):
                self._output(direction, key, seq, "last output" if finished else "output")
            case Progress(key=key):
                self._move(direction, key, "progress")
            case Released(key=key):
                self._move(direction, key, "released")
            case Failed(key=key):
                self._move(direction, key, "failed")
            case Call(id=call):
                self._ask(direction, call)
            case CallResult(id=call):
                self._answer(direction, call)
        self.state = following

    def _open(self, direction: Direction, key: str) -> None:
        if key in self._leases:
            raise self._illegal(direction, "Submit", self._leases[key].state.value, key)
        self._leases[key] = _Lease()

    def _abort(self, direction: Direction, keys: list[str]) -> None:
        # The host names live leases only; the engine may have ended some of them meanwhile.
        live = keys if direction == "sends" else [key for key in keys if key in self._leases]
        for key in live:
            self._check(direction, key, "abort")
        for key in live:
            self._move(direction, key, "abort")

    def _output(self, direction: Direction, key: str, seq: int, event: LeaseEvent) -> None:
        self._check(direction, key, event)
        lease = self._leases[key]
        if seq != lease.next_seq:
            raise self._illegal(direction, f"Output {seq} instead of {lease.next_seq}", lease.state.value, key)
        lease.next_seq += 1
        self._move(direction, key, event)

    def _ask(self, direction: Direction, call: int) -> None:
        if call in self._calls or len(self._calls) >= MAX_PENDING_CALLS:
            raise self._illegal(direction, f"Call {call}", f"{len(self._calls)} calls unanswered")
        self._calls.add(call)

    def _answer(self, direction: Direction, call: int) -> None:
        if call not in self._calls:
            raise self._illegal(direction, f"CallResult {call}", "no such call")
        self._calls.remove(call)

    def _check(self, direction: Direction, key: str, event: LeaseEvent) -> LeaseState:
        state = self.lease(key)
        following = self._lease_table.get(state, {}).get(event)
        if following is None:
            raise self._illegal(direction, event, state.value, key)
        return following

    def _move(self, direction: Direction, key: str, event: LeaseEvent) -> None:
        following = self._check(direction, key, event)
        if following is LeaseState.GONE:
            del self._leases[key]
        else:
            self._leases[key].state = following

    def _illegal(
        self, direction: Direction, event: str, state: str, key: str = ""
    ) -> ProtocolError | IllegalTransition:
        where = f"{state}, key {key!r}" if key else state
        if direction == "receives":
            return ProtocolError(f"the peer said {event} in state {where}")
        return IllegalTransition(f"{type(self).__name__} may not say {event} in state {where}")


class HostSide(_Side):
    """The stage client's side."""

    _connection = HOST_CONNECTION
    _lease_table = HOST_LEASE

    def unsend(self, key: str) -> None:
        """A Submit never left: its lease is gone. Raises IllegalTransition unless it is ``submitted``."""
        self._move("sends", key, "unsend")


class EngineSide(_Side):
    """The engine's side."""

    _connection = ENGINE_CONNECTION
    _lease_table = ENGINE_LEASE

    def stop(self) -> None:
        """The engine was told to stop by a signal, in whatever state."""
        if self.state is not State.DEAD:
            self.state = State.STOPPING

    def overtaken(self, message: Message) -> bool:
        """Whether this was made before an abort (or an end) that has been heard since: nobody wants it any more."""
        match message:
            case Output(key=key) | Progress(key=key):
                return self.lease(key) not in (LeaseState.SUBMITTED, LeaseState.PRODUCING)
        return False

    def ends(self) -> list[Released | Failed]:
        """The last word about every live lease, for a stop: what is not over has failed. Does not send them."""
        over = (LeaseState.FINISHED, LeaseState.ABORTING)
        return [
            Released(key) if lease.state in over else Failed(key, "the engine was stopped before this was finished")
            for key, lease in self._leases.items()
        ]
