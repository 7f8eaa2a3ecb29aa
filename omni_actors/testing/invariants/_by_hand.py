"""Histories written by hand, for tests of checkers: a few words for a request's life, and for doctoring it.

Requests go to the stages of ``ONE``, ``CHAIN`` or ``CUT``; the first of them is an LLM called "t". Doctoring makes a
new list. The words at the end are for I0 to I10.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from omni_actors.testing.sim._history import (
    AbortCalled,
    AbortReturned,
    Accepted,
    Ended,
    Got,
    History,
    Left,
    Submitting,
    TerminalSeen,
    Wire,
)
from omni_actors.testing.sim._scenario import Scenario, Stage

from ._facts import Facts
from ._requests import REQUESTS

if TYPE_CHECKING:
    from omni_actors.testing.sim._history import AnyEvent

    from ._violation import Violation

__all__ = [
    "CHAIN", "CUT", "ONE", "aborted", "after", "before", "begun", "changed", "ended", "finished", "found", "got",
    "index", "names_a", "seen", "terminal", "token", "told", "wire", "without",
]  # fmt: skip

Events = list["AnyEvent"]

_TEXT = Stage(name="t", output="text", behaviour={"tokens": 10})
ONE = (_TEXT,)
CHAIN = (_TEXT, Stage(name="v", wire="omni", inputs=("t",), output="audio"))
CUT = (
    _TEXT,
    Stage(name="k", inputs=("t",), segments=True, behaviour={"tokens": 3}),
    Stage(name="v", wire="omni", inputs=("k",), output="audio", behaviour={"chunks": 2}),
)


def wire(way: Any, what: str, key: str, *data: int, stage: str = "t") -> Wire:
    """One message of the host's to or from stage ``stage``."""
    return Wire(at=0, way=way, stage=stage, replica=0, generation=1, what=what, key=key, data=data)


def got(name: str, *data: int, stage: str = "t", part: int = 0) -> Got:
    """The reader gets an output."""
    modality = "text" if stage == "t" else "audio"
    return Got(at=0, request=name, stage=stage, modality=modality, data=data, part=part)


def begun(name: str = "a", key: str = "1-sim", **asked: Any) -> Events:
    """A request is submitted, sent to the first stage and accepted."""
    return [
        Submitting(at=0, request=name, id=asked.pop("id", name), **asked),
        wire("sent", "add", f"{key}-0"),
        Accepted(at=0, request=name, key=key),
    ]


def token(value: int, name: str = "a", key: str = "1-sim") -> Events:
    """The first stage makes a token, and the reader gets it."""
    return [wire("heard", "output", f"{key}-0", value), got(name, value)]


def ended(key: str, stage: str = "t") -> Events:
    """A lease's engine has made all, and lets go of it."""
    return [wire("heard", "finished", key, stage=stage), wire("heard", "released", key, stage=stage)]


def terminal(kind: str = "finished", *made: int, name: str = "a", reason: str | None = None) -> TerminalSeen:
    """A request ends; ``made`` is what its first stage made."""
    return TerminalSeen(at=0, request=name, kind=kind, reason=reason, made=(("t", 0, 0, made),))


def finished(name: str = "a", key: str = "1-sim") -> Events:
    """A request of two tokens, from its beginning to its end."""
    return [
        *begun(name, key),
        *token(1, name, key),
        *token(2, name, key),
        *ended(f"{key}-0"),
        terminal("finished", 1, 2, name=name),
        Ended(at=0, request=name, how="end"),
        Left(at=0, request=name),
    ]


def aborted(name: str = "a", key: str = "1-sim", *, returned: bool = True) -> Events:
    """One that is aborted after its first token."""
    report = AbortReturned(at=0, call=1, id=name, known=True, kinds=("aborted",))
    return [
        *begun(name, key),
        *token(1, name, key),
        AbortCalled(at=0, call=1, id=name, live=(name,)),
        terminal("aborted", 1, name=name, reason="aborted"),
        wire("sent", "abort", f"{key}-0"),
        wire("heard", "released", f"{key}-0"),
        *([report] if returned else []),
        Ended(at=0, request=name, how="end"),
        Left(at=0, request=name),
    ]


def told(*events: AnyEvent, stages: tuple[Stage, ...] = ONE) -> History:
    """A history of these events, 10 ms apart but where they say otherwise."""
    spaced = [event if event.at else msgspec.structs.replace(event, at=0.01 * n) for n, event in enumerate(events, 1)]
    return History(Scenario(stages=stages).pipeline(), events=spaced)


def index(events: Events, kind: Any) -> int:
    """Where the first event of this kind is."""
    return next(number for number, event in enumerate(events) if isinstance(event, kind))


def without(events: Events, kind: Any) -> Events:
    """All but those of this kind."""
    return [event for event in events if not isinstance(event, kind)]


def changed(events: Events, what: Any, /, **fields: Any) -> Events:
    """The first one of this kind says something else."""
    number = index(events, what)
    return [*events[:number], msgspec.structs.replace(events[number], **fields), *events[number + 1 :]]


def after(events: Events, kind: Any, *more: AnyEvent) -> Events:
    """More happens after the first one of this kind."""
    number = index(events, kind) + 1
    return [*events[:number], *more, *events[number:]]


def before(events: Events, kind: Any, *more: AnyEvent) -> Events:
    """More happens before it."""
    number = index(events, kind)
    return [*events[:number], *more, *events[number:]]


def found(history: History) -> list[Violation]:
    """What the checkers of I0 to I10 find."""
    facts = Facts(history)
    return [violation for checker in REQUESTS.values() for violation in checker(facts)]


def seen(events: Events, *names: str, stages: tuple[Stage, ...] = ONE) -> Violation | None:
    """Exactly these invariants are violated; returns the first one's first violation."""
    violations = found(told(*events, stages=stages))
    assert {violation.invariant for violation in violations} == set(names), [str(each) for each in violations]
    return next((violation for violation in violations if violation.invariant in names[:1]), None)


def names_a(violation: Violation | None) -> bool:
    """Whether it is about request a, and says so."""
    return violation is not None and violation.request == "a" and "request a" in violation.message
