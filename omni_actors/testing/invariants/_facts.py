"""A history, looked at from the other side: what happened to each request, each lease, each generation.

Built once per history, for all checkers. Positions are indices into ``history.events``: they say what came first, where
two things have one time. Nothing here judges.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from omni_actors.testing.sim._history import (
    Accepted,
    Ended,
    Faulted,
    Got,
    History,
    Left,
    Place,
    Process,
    Refused,
    StageSaid,
    Submitting,
    TerminalSeen,
    Wire,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Facts", "Generation", "Lease", "Request", "in_words", "roomy"]


@attrs.define(eq=False)
class Request:
    """One submit. Positions are None for what never happened."""

    name: str
    id: str
    modalities: tuple[str, ...] | None
    submitted: int
    accepted: int | None = None
    key: str = ""
    refused: int | None = None
    terminals: list[int] = attrs.field(factory=list)
    got: list[int] = attrs.field(factory=list)
    ended: int | None = None
    left: int | None = None
    leases: list[Lease] = attrs.field(factory=list)


@attrs.define(eq=False)
class Lease:
    """One add. ``finished``: its engine's last output was heard; ``over``: it had ended, by ``how``: released, failed,
    unsent, died. ``aborts``: when it was told to forget it. ``outputs``, ``progress``: all that was heard for it.
    """

    key: str
    place: Place
    added: int
    request: Request | None = None
    outputs: list[int] = attrs.field(factory=list)
    progress: list[int] = attrs.field(factory=list)
    finished: int | None = None
    aborts: list[int] = attrs.field(factory=list)
    over: int | None = None
    how: str | None = None
    more_ends: list[int] = attrs.field(factory=list)
    adds: int = 1


@attrs.define(eq=False)
class Generation:
    """One life of a replica. ``ready``, ``stopping``, ``dead`` (said to be exited or stopped) are its words."""

    place: Place
    spawned: int | None = None
    starting: int | None = None
    ready: int | None = None
    exited: int | None = None
    stopping: int | None = None
    dead: int | None = None
    verdict: str | None = None
    faults: list[int] = attrs.field(factory=list)


def in_words(place: Place) -> str:
    """As messages name a generation."""
    return "stage {}, replica {}, generation {}".format(*place)


class Facts:
    """``requests`` by the scenario's name, ``leases`` by key, ``generations`` by place, each in order of appearance."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.requests: dict[str, Request] = {}
        self.leases: dict[str, Lease] = {}
        self.generations: dict[Place, Generation] = {}
        self._by_key: dict[str, Request] = {}
        for number, event in enumerate(history.events):
            match event:
                case Submitting() | Accepted() | Refused() | TerminalSeen() | Got() | Ended() | Left():
                    self._of_request(number, event)
                case Wire():
                    self._of_wire(number, event)
                case Process() | StageSaid() | Faulted():
                    self._of_generation(number, event)

    def at(self, number: int) -> float:
        """When the event at this position happened."""
        return self.history.events[number].at

    def event(self, number: int) -> object:
        """The event at this position."""
        return self.history.events[number]

    def stage_of(self, lease: Lease) -> str:
        """The lease's stage."""
        return lease.place[0]

    def main_of(self, lease: Lease) -> Lease | None:
        """A companion's main work, if it was sent. None for what is no companion."""
        main, beside, _ = lease.key.rpartition("-c")
        return self.leases.get(main) if beside else None

    def leases_at(self, place: Place) -> Iterator[Lease]:
        """The leases of one generation, in order."""
        return (lease for lease in self.leases.values() if lease.place == place)

    # ------------------------------------------------------------------ building

    def _of_request(
        self, number: int, event: Submitting | Accepted | Refused | TerminalSeen | Got | Ended | Left
    ) -> None:
        name = event.request
        if isinstance(event, Submitting):
            self.requests[name] = Request(name, event.id, event.modalities, number)
            return
        request = self.requests.setdefault(name, Request(name, name, None, number))
        match event:
            case Accepted(key=key):
                request.accepted, request.key = number, key
                self._by_key[key] = request
                for lease in self.leases.values():
                    self._belongs(lease)
            case Refused():
                request.refused = number
            case TerminalSeen():
                request.terminals.append(number)
            case Got():
                request.got.append(number)
            case Ended():
                request.ended = number
            case Left():
                request.left = number

    def _belongs(self, lease: Lease) -> None:
        """A lease's key is its request's key and more; the first work may leave before the block is entered."""
        if lease.request is None:
            owner = self._by_key.get("-".join(lease.key.split("-")[:2]))
            if owner is not None:
                lease.request = owner
                owner.leases.append(lease)

    def _of_wire(self, number: int, event: Wire) -> None:
        if not event.key:
            return
        if event.what == "add" and event.way == "sent":
            if (known := self.leases.get(event.key)) is not None:
                known.adds += 1
                return
            lease = self.leases[event.key] = Lease(event.key, event.place, number)
            self._belongs(lease)
            return
        found = self.leases.get(event.key)
        if found is None or found.place != event.place:
            return
        if event.way == "unsent":
            self._ends(found, number, "unsent")
        elif event.what == "abort":
            found.aborts.append(number)
        elif event.what == "output":
            found.outputs.append(number)
        elif event.what == "progress":
            found.progress.append(number)
        elif event.what == "finished" and found.finished is None:
            found.finished = number
        elif event.what in ("released", "failed"):
            self._ends(found, number, event.what)

    def _ends(self, lease: Lease, number: int, how: str) -> None:
        if lease.over is None:
            lease.over, lease.how = number, how
        else:
            lease.more_ends.append(number)

    def _of_generation(self, number: int, event: Process | StageSaid | Faulted) -> None:
        place = (event.stage, event.replica, event.generation)
        life = self.generations.setdefault(place, Generation(place))
        match event:
            case Faulted(done=True):
                life.faults.append(number)
            case Process(what="spawned"):
                life.spawned = number
            case Process(what="exited"):
                life.exited = number
            case StageSaid(kind="starting"):
                life.starting = number
            case StageSaid(kind="ready"):
                life.ready = number
            case StageSaid(kind="stopping"):
                life.stopping = number
            case StageSaid(kind="exited" | "stopped", verdict=verdict) if life.dead is None:
                life.dead, life.verdict = number, verdict
                for lease in self.leases_at(place):
                    if lease.over is None:
                        lease.over, lease.how = number, "died"
            case _:
                pass


ROOMY = 100
"""Messages. A queue that holds fewer may be full of control messages too: then one of them may have to wait."""


def roomy(facts: Facts) -> bool:
    """Whether control messages always leave at once."""
    scenario = facts.history.scenario
    return scenario is None or min(scenario.queue_limit, scenario.hwm) >= ROOMY
