"""The events of a history in words, for legends and hover titles. Pure."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from omni_actors.testing.sim import _history as seen

from ._timeline_axis import seconds

if TYPE_CHECKING:
    from omni_actors.testing.invariants import Facts
    from omni_actors.testing.invariants._facts import Lease

__all__ = ["describe", "lease_name", "timed"]

_DATA = 12
"""Numbers of a fingerprint that are shown."""


def timed(event: seen.Event, facts: Facts) -> str:
    """When, and what."""
    return f"{seconds(event.at)} s: {describe(event, facts)}"


def lease_name(key: str, lease: Lease | None) -> str:
    """The request's name and the part, as in "a p2"; a lease of nobody goes by its key."""
    if lease is None or lease.request is None:
        return key
    parts = key.split("-")[3:]
    return " ".join([lease.request.name, *parts])


def describe(event: seen.Event, facts: Facts) -> str:
    """One event, without its time."""
    match event:
        case seen.Wire():
            return _wire(event, facts)
        case seen.Process() | seen.StageSaid() | seen.Faulted() | seen.Noted():
            return _engine(event)
        case seen.AbortCalled() | seen.AbortReturned() | seen.Asked() | seen.Answered():
            return _call(event)
        case seen.ShutdownCalled() | seen.ShutdownReturned() | seen.Opened() | seen.Closed():
            return _runtime(event)
        case seen.State() | seen.Exceeded() | seen.Deadlocked() | seen.Crashed() | seen.HealthSeen():
            return _look(event)
        case _:
            return _request(event)


def _request(event: seen.Event) -> str:
    match event:
        case seen.Submitting(request=name, id=user_id, modalities=wanted):
            known = f" as {user_id}" if user_id != name else ""
            return f"{name} is submitted{known}" + (f", wants {', '.join(wanted)}" if wanted is not None else "")
        case seen.Accepted(request=name, key=key):
            return f"{name} is accepted, key {key}"
        case seen.Refused(request=name, error=error):
            return f"{name} is refused: {error}"
        case seen.Got(request=name, stage=stage, step=(done, total)):
            return f"{name} is told: {stage} is at step {done} of {total}"
        case seen.Got(request=name, stage=stage, modality=modality, part=part, index=index):
            last = f", the last: {event.finish_reason}" if event.finish_reason else ""
            return f"{name} gets {modality} of {stage}, part {part}, index {index}{_data(event.data)}{last}"
        case seen.TerminalSeen(request=name, kind=kind):
            why = ": ".join(filter(None, (event.error, event.reason)))
            return f"{name} is {kind}" + (f" ({why})" if why else "")
        case seen.Ended(request=name, how=how):
            return f"the reader of {name} ends: {how}"
        case seen.Left(request=name):
            return f"the block of {name} is left"
        case _:
            return type(event).__name__


def _data(data: tuple[int, ...]) -> str:
    if not data:
        return ""
    more = "…" if len(data) > _DATA else ""
    return ": " + " ".join(map(str, data[:_DATA])) + more


def _wire(event: seen.Wire, facts: Facts) -> str:
    who = f"{event.stage}/{event.replica}#{event.generation}"
    verb = {"sent": "sent to", "heard": "heard from", "unsent": "taken back from"}[event.way]
    if not event.key:
        return f"{verb} {who}: {event.what}"
    name = lease_name(event.key, facts.leases.get(event.key))
    of = f" of {name}" if name != event.key else ""
    return f"{verb} {who}: {event.what}{of} ({event.key}){_data(event.data)}"


def _engine(event: seen.Process | seen.StageSaid | seen.Faulted | seen.Noted) -> str:
    who = f"{event.stage}/{event.replica}#{event.generation}"
    match event:
        case seen.Process(what="signalled", code=code, by=by):
            return f"{who} gets {signal.Signals(code or 0).name if code else 'a signal'} from {by}"
        case seen.Process(what="exited", code=code, pid=pid):
            return f"{who} has exited with {code} (pid {pid})"
        case seen.Process(pid=pid):
            return f"{who} is spawned (pid {pid})"
        case seen.StageSaid(kind=kind):
            why = " ".join(filter(None, (event.error, event.verdict)))
            return f"{who} is {kind.replace('_', ' ')}" + (f" ({why})" if why else "")
        case seen.Noted(what="step", key=key):
            return f"{who} begins a step of {key}"
        case seen.Noted(key=key):
            return f"{who} hears that it is to forget {key}"
        case seen.Faulted(op=op, done=done):
            return f"{op} {who}" if done else f"{op} {event.stage}/{event.replica}: nobody was there"


def _call(event: seen.AbortCalled | seen.AbortReturned | seen.Asked | seen.Answered) -> str:
    match event:
        case seen.AbortCalled(id=user_id, live=live):
            return f"abort({user_id}) is called" + (f"; live: {', '.join(live)}" if live else "; nothing of it is live")
        case seen.AbortReturned(id=user_id):
            said = event.error or ", ".join(event.kinds) or ("known" if event.known else "unknown")
            late = f"; unconfirmed: {', '.join(event.unconfirmed)}" if event.unconfirmed else ""
            return f"abort({user_id}) returns: {said}{late}"
        case seen.Asked(stage=stage, method=method, timeout_s=timeout_s):
            return f"{method} of {stage} is called, within {seconds(timeout_s)} s"
        case seen.Answered(error=error):
            return f"the call ends: {error or 'answered'}"


def _runtime(event: seen.ShutdownCalled | seen.ShutdownReturned | seen.Opened | seen.Closed) -> str:
    match event:
        case seen.ShutdownCalled(by="leave"):
            return "the block that holds the runtime is being left"
        case seen.ShutdownCalled():
            limits = {"drain_s": event.drain_s, "abort_s": event.abort_s, "stop_s": event.stop_s}
            told = ", ".join(f"{name}={value:g}" for name, value in limits.items() if value is not None)
            return f"shutdown({told}) is called"
        case seen.ShutdownReturned(report=report):
            return f"shutdown returns {report}"
        case seen.Opened():
            return "every stage is ready"
        case seen.Closed(opened=opened, error=error):
            return "the runtime is closed" + ("" if opened else ", never opened") + (f": {error}" if error else "")


def _look(event: seen.State | seen.Exceeded | seen.Deadlocked | seen.Crashed | seen.HealthSeen) -> str:
    match event:
        case seen.State(when=when, counts=counts):
            left = ", ".join(f"{name} {count}" for name, count in counts.items() if count)
            return f"when {when}, there is left: {left or 'nothing'}"
        case seen.Exceeded(bound=bound, value=value, limit=limit):
            return f"{bound}: {value}, over the bound of {limit}"
        case seen.Deadlocked(tasks=tasks):
            return f"nothing can ever run again: {tasks}"
        case seen.Crashed(where=where, error=error):
            return f"{where} crashed: {error}"
        case seen.HealthSeen(ready=ready):
            return f"health says {'ready' if ready else 'not ready'}"
