"""Restart accounting, sans-I/O: who restarts after a child's end, when, and when it is enough.

Owns every count and time that a supervisor decides by; ``at`` is the caller's time in seconds. Keeps I19: of the
failures answered by a restart, no window of ``within_s`` holds more than ``max_restarts``; or, per child, the failure
number ``max_failures + 1`` since the child last stayed ready for ``stable_s`` marks it down.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Literal

import attrs

__all__ = ["Accounts", "Backoff", "Intensity", "PerChild", "Restart", "Strategy", "Verdict"]

Strategy = Literal["one_for_one", "rest_for_one", "one_for_all"]
Restart = Literal["permanent", "transient", "temporary"]
Kinds = Mapping[str, Restart]

_natural = attrs.validators.and_(attrs.validators.instance_of(int), attrs.validators.ge(0))
_positive = attrs.validators.gt(0.0)


@attrs.frozen
class Intensity:
    """At most ``max_restarts`` restarts of all children together within ``within_s`` seconds; the next one gives up.

    A restart is dated by the failure it answers; both ends of the window belong to it (OTP's rule).
    """

    max_restarts: int = attrs.field(validator=_natural)
    within_s: float = attrs.field(validator=_positive)


@attrs.frozen
class PerChild:
    """Each child may fail ``max_failures`` times; its next failure marks it down, and nothing escalates.

    Having stayed ready for ``stable_s`` seconds forgives a child all its failures.
    """

    max_failures: int = attrs.field(default=3, validator=_natural)
    stable_s: float = attrs.field(default=60.0, validator=_positive)


@attrs.frozen
class Backoff:
    """Seconds to wait before a restart: ``first_s``, then ``factor`` times as long each time, never over ``max_s``.

    It grows with the child's failures since it last stayed ready for ``stable_s`` (``Intensity``: ``within_s``).
    """

    first_s: float = attrs.field(validator=_positive)
    factor: float = attrs.field(default=2.0, validator=attrs.validators.ge(1.0))
    max_s: float = attrs.field(kw_only=True, validator=_positive)

    def delay_s(self, failures: int) -> float:
        """The wait after the ``failures``-th consecutive failure (1, 2, …), in seconds."""
        try:
            return min(self.max_s, self.first_s * self.factor ** (failures - 1))
        except OverflowError:
            return self.max_s


@attrs.frozen
class Verdict:
    """What to do about a child's end. To restart: end the siblings in ``stop``, then start those in ``restart``."""

    action: Literal["nothing", "restart", "down", "give_up"]
    stop: tuple[str, ...] = ()
    restart: tuple[str, ...] = ()
    not_before: float = 0.0


class Accounts:
    """The books of one run of one supervisor, and the only place that decides about restarts."""

    def __init__(self, kinds: Kinds, strategy: Strategy, policy: Intensity | PerChild, backoff: Backoff | None) -> None:
        self._kinds, self._strategy, self._policy, self._backoff = kinds, strategy, policy, backoff
        self._stable_s = policy.stable_s if isinstance(policy, PerChild) else policy.within_s
        self._ready_at: dict[str, float] = {}
        self._failures = dict.fromkeys(kinds, 0)
        self._down: set[str] = set()
        # More than max_restarts of them are never asked for.
        self._restarts: deque[float] = deque(maxlen=policy.max_restarts if isinstance(policy, Intensity) else 0)

    def ready(self, name: str, at: float) -> None:
        """The child reported readiness."""
        self._ready_at[name] = at

    def stopped(self, name: str, at: float) -> None:
        """The supervisor stopped the child: not a failure, but the time it was ready counts."""
        ready_at = self._ready_at.pop(name, None)
        if ready_at is not None and at >= ready_at + self._stable_s:
            self._failures[name] = 0

    def ended(self, name: str, *, failed: bool, at: float) -> Verdict:
        """The child ended by itself, ``failed`` if with an error or before it was ready."""
        self.stopped(name, at)
        if self._kinds[name] == "temporary" or (self._kinds[name] == "transient" and not failed):
            return Verdict("nothing")
        self._failures[name] += 1
        if isinstance(self._policy, PerChild):
            if self._failures[name] > self._policy.max_failures:
                self._down.add(name)
                return Verdict("down")
        elif self._policy.max_restarts == len([t for t in self._restarts if at <= t + self._policy.within_s]):
            return Verdict("give_up")
        self._restarts.append(at)
        return self._restart(name, at)

    def _restart(self, name: str, at: float) -> Verdict:
        names = tuple(self._kinds)
        reach = {"one_for_one": (name,), "rest_for_one": names[names.index(name) :], "one_for_all": names}
        group = [n for n in reach[self._strategy] if n not in self._down]
        delay_s = self._backoff.delay_s(self._failures[name]) if self._backoff else 0.0
        restart = tuple(n for n in group if self._kinds[n] != "temporary")
        return Verdict("restart", tuple(n for n in group if n != name), restart, at + delay_s)
