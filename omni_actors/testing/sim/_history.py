"""What was seen of a run, in order: at the user's side, on the host's sockets, of processes, of what was left.

Written at the seams only, never by the runtime: by the readers of streams, by a tap on the host's sockets, by the
launcher, by looks at counters. ``at`` is in (virtual) seconds from the beginning; the order of ``events`` is the order
in which things happened. The checkers of ``invariants`` read nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeVar

import attrs
import msgspec

from omni_actors._errors import OmniError
from omni_actors.config import PipelineSpec

from ._scenario import Scenario

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "AbortCalled", "AbortReturned", "Accepted", "Answered", "Asked", "Closed", "Crashed", "Deadlocked", "Ended",
    "Event", "Exceeded", "Faulted", "Got", "HealthSeen", "History", "Left", "Noted", "Opened", "Place", "Process",
    "Refused", "ShutdownCalled", "ShutdownReturned", "StageSaid", "State", "Submitting", "TerminalSeen", "Wire",
]  # fmt: skip


class Event(msgspec.Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    """Something happened at ``at``."""

    at: float


# ---------------------------------------------------------------------- the user's side


class Submitting(Event, frozen=True, kw_only=True):
    """``generate``'s block is being entered. ``request`` is the scenario's own name; ``id`` the user's id."""

    request: str
    id: str
    modalities: tuple[str, ...] | None = None


class Accepted(Event, frozen=True, kw_only=True):
    """The block was entered. ``key``: the runtime's; the keys of the request's leases begin with it and a dash."""

    request: str
    key: str


class Refused(Event, frozen=True, kw_only=True):
    """Entering raised ``error`` (the name of its class), or was cancelled ("Cancelled")."""

    request: str
    error: str


class Got(Event, frozen=True, kw_only=True):
    """The iteration returned an output. ``data``: see ``fingerprint``; ``step``: of progress, (done, total)."""

    request: str
    stage: str
    modality: str
    data: tuple[int, ...]
    part: int = 0
    index: int = 0
    finish_reason: str | None = None
    step: tuple[int, int] | None = None


class TerminalSeen(Event, frozen=True, kw_only=True):
    """``stream.terminal`` is this one now: seen in the very step in which it was set, and again if it ever changes.

    ``kind`` is ``Kind``'s value. ``error``: its class; ``stage``, ``replica``, ``generation``: where it says it failed.
    ``made``: what it holds of each (stage, part, index), as fingerprints; ``pieces``: how many tensors.
    """

    request: str
    kind: str
    error: str | None = None
    reason: str | None = None
    stage: str | None = None
    replica: int | None = None
    generation: int | None = None
    made: tuple[tuple[str, int, int, tuple[int, ...]], ...] = ()
    pieces: tuple[tuple[str, int, int, int], ...] = ()


class Ended(Event, frozen=True, kw_only=True):
    """The iteration ended. ``how``: "end", or the name of the class that it raised, or why the reader went ("break",
    "raise", "Cancelled").
    """

    request: str
    how: str


class Left(Event, frozen=True, kw_only=True):
    """The block has been left completely: leaving, the abort if it was one, is over."""

    request: str


class AbortCalled(Event, frozen=True, kw_only=True):
    """``abort(id)`` was called; ``call`` numbers the calls. ``live``: requests of this id that had no terminal."""

    call: int
    id: str
    live: tuple[str, ...] = ()


class AbortReturned(Event, frozen=True, kw_only=True):
    """It returned (or raised ``error``). ``kinds``: of the terminals it reports. ``unconfirmed``: lease keys."""

    call: int
    id: str
    known: bool = False
    kinds: tuple[str, ...] = ()
    unconfirmed: tuple[str, ...] = ()
    error: str | None = None


class Asked(Event, frozen=True, kw_only=True):
    """``call(stage, method)`` was called, to answer within ``timeout_s``."""

    call: int
    stage: str
    method: str
    timeout_s: float


class Answered(Event, frozen=True, kw_only=True):
    """It ended: with answers, or with ``error``."""

    call: int
    error: str | None = None


class ShutdownCalled(Event, frozen=True, kw_only=True):
    """``shutdown`` was called, or the block that holds the runtime is being left (``by``: "call", "leave")."""

    call: int
    by: str = "call"
    drain_s: float | None = None
    abort_s: float | None = None
    stop_s: float | None = None


class ShutdownReturned(Event, frozen=True, kw_only=True):
    """It returned. ``report`` is the report, as text: equal reports are equal texts."""

    call: int
    report: str
    killed: tuple[str, ...] = ()
    unreaped: tuple[int, ...] = ()


class Opened(Event, frozen=True, kw_only=True):
    """``open_omni`` has yielded: every stage is ready."""


class Closed(Event, frozen=True, kw_only=True):
    """``open_omni``'s block is over. ``error``: what left it, if anything; ``opened``: whether it had ever begun."""

    opened: bool
    error: str | None = None


class HealthSeen(Event, frozen=True, kw_only=True):
    """Somebody asked for ``health``. ``ready_replicas``: per stage."""

    ready: bool
    ready_replicas: tuple[tuple[str, int], ...] = ()


class StageSaid(Event, frozen=True, kw_only=True):
    """``on_event`` was called: starting, ready, exited, backing_off, down, stopping, …; ``verdict`` of an error."""

    stage: str
    replica: int
    generation: int
    kind: str
    error: str | None = None
    verdict: str | None = None


# ---------------------------------------------------------------------- the wire, at the host's sockets


class Wire(Event, frozen=True, kw_only=True):
    """One message, or one key's share of one. ``way``: the host "sent" or "heard" it, or took it back ("unsent").

    ``what``: add, abort, call, ping, stop, hello | output, finished, released, failed, answer, heartbeat, ready,
    progress, dead, garbage. On vLLM's wire ``released`` is the answer to the barrier behind an ABORT. ``data`` is
    the fingerprint of what was made, or of the work in an ``add``; of ``progress`` (done, total); of ``failed`` on the
    omni wire (1,) where the caller is to blame; of a ``heartbeat`` for how many milliseconds the engine has been inside
    one step, if it is. ``pieces``: how many tensors an output has.
    """

    way: Literal["sent", "heard", "unsent"]
    stage: str
    replica: int
    generation: int
    what: str
    key: str = ""
    data: tuple[int, ...] = ()
    pieces: int = 0

    @property
    def place(self) -> Place:
        """Whose socket it was."""
        return (self.stage, self.replica, self.generation)


Place = tuple[str, int, int]
"""Stage, replica, generation."""


# ---------------------------------------------------------------------- processes, faults, what is left


class Process(Event, frozen=True, kw_only=True):
    """``what``: spawned, exited (with ``code``), or signalled (with ``code``, a signal's number; ``by`` us or fate)."""

    what: Literal["spawned", "exited", "signalled"]
    stage: str
    replica: int
    generation: int
    pid: int
    code: int | None = None
    by: Literal["us", "fate"] = "us"

    @property
    def place(self) -> Place:
        """Whose process it was."""
        return (self.stage, self.replica, self.generation)


class Noted(Event, frozen=True, kw_only=True):
    """A fake engine began a step of a lease ("step"), or heard that it is to forget one ("abort"). Only in memory."""

    what: Literal["step", "abort"]
    stage: str
    replica: int
    generation: int
    key: str


class Faulted(Event, frozen=True, kw_only=True):
    """A fault of the scenario was done to a generation (``done``), or could not be."""

    op: str
    stage: str
    replica: int
    generation: int = 0
    done: bool = True


class Exceeded(Event, frozen=True, kw_only=True):
    """A bound was passed: seen after a step of the scheduler."""

    bound: str
    value: int
    limit: int


class State(Event, frozen=True, kw_only=True):
    """What there was of each thing. ``when``: "quiet" (no request is live), "closed" (the runtime is gone)."""

    when: Literal["quiet", "closed"]
    counts: dict[str, int]


class Deadlocked(Event, frozen=True, kw_only=True):
    """Nothing could ever run again. ``tasks``: who waited."""

    tasks: str


class Crashed(Event, frozen=True, kw_only=True):
    """Something raised what nobody should ever see. ``where``: a request, or "open_omni"."""

    where: str
    error: str


E = TypeVar("E", bound=Event)

AnyEvent = (
    Submitting | Accepted | Refused | Got | TerminalSeen | Ended | Left | AbortCalled | AbortReturned | Asked | Answered
    | ShutdownCalled | ShutdownReturned | Opened | Closed | HealthSeen | StageSaid | Wire | Process | Noted | Faulted
    | Exceeded | State | Deadlocked | Crashed
)  # fmt: skip


@attrs.define
class History:
    """One run. ``steps``: how many the scheduler took, once it is over and if anybody counted. ``slack_s``: by how much
    a deadline may be missed: next to nothing in virtual time.

    Not part of what makes histories equal: ``sites``, those that made something improbable happen; ``failures``, by
    request, as objects: what a function of the pipeline raised, and what a stage said of the prompt it was given.
    """

    pipeline: PipelineSpec
    scenario: Scenario | None = None
    events: list[AnyEvent] = attrs.field(factory=list)
    steps: int = 0
    sites: frozenset[str] = frozenset()
    failures: dict[str, OmniError] = attrs.field(factory=dict)
    slack_s: float = 0.001

    def of(self, *kinds: type[E]) -> Iterator[E]:
        """The events of these kinds, in order."""
        return (event for event in self.events if isinstance(event, kinds))

    def numbered(self, *kinds: type[E]) -> Iterator[tuple[int, E]]:
        """The same with their position in the history: what came before what."""
        return ((number, event) for number, event in enumerate(self.events) if isinstance(event, kinds))

    def to_json(self) -> bytes:
        """The events, one after the other: equal histories are equal bytes."""
        return msgspec.json.encode(self.events)


def events_from_json(data: bytes) -> list[AnyEvent]:
    """The events of ``History.to_json``."""
    return msgspec.json.decode(data, type=list[AnyEvent])
