"""The supervisor: starts its children in order, restarts them by the books, stops them in reverse.

Its ``run`` task owns every child's record and alone changes it. Children only set flags of their own ``Life`` and wake
it; then it looks at all of them, does what may be done now, and sleeps until the next wake-up or deadline. Keeps I18:
the next generation starts only when the last one's task has ended, and groups stop completely before they start again.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

import attrs
import trio

from omni_actors._errors import ActorNotReady, GaveUp, UsageError
from omni_actors.actors._accounting import Accounts, Backoff, Intensity, PerChild, Strategy, Verdict
from omni_actors.actors._child import ChildEvent, ChildSpec, EventKind, Life

__all__ = ["ChildState", "Supervisor"]

ChildState = Literal["starting", "ready", "backing_off", "down", "stopped"]
Observe = Callable[[ChildEvent], None]
_log = logging.getLogger("omni_actors.actors")


@attrs.define(eq=False)
class _Child:
    """One child's record. ``wanted``: it should run; ``doomed``: the life it has must end first."""

    spec: ChildSpec
    generation: int = 0
    life: Life | None = None
    state: ChildState = "stopped"
    wanted: bool = True
    doomed: bool = False
    been_ready: bool = False
    not_before: float = -math.inf
    overdue_at: float = math.inf


class Supervisor:
    """Children that are started, watched, restarted and stopped together; OTP's rules, in one trio task.

    ``strategy``: a failure restarts the child alone, with the later ones, or with all; transient ones that had ended
    too, temporary ones not (as in OTP). ``intensity``: ``Intensity`` ends everything with GaveUp if restarts come too
    fast, ``PerChild`` gives up on one child at a time. ``start_order`` and ``stop_order`` hold for the first start,
    group restarts and stops. ``observe`` is called in the ``run`` task, must not raise, and is ``logging`` by default.
    """

    def __init__(
        self,
        children: Sequence[ChildSpec],
        *,
        strategy: Strategy = "one_for_one",
        intensity: Intensity | PerChild,
        backoff: Backoff | None = None,
        start_order: Literal["sequence", "together"] = "sequence",
        stop_order: Literal["reverse", "together"] = "reverse",
        observe: Observe | None = None,
    ) -> None:
        self._children = {spec.name: _Child(spec) for spec in children}
        if len(self._children) < len(children):
            raise UsageError("two children of one supervisor have the same name")
        self._kinds = {spec.name: spec.restart for spec in children}
        self._strategy, self._policy, self._backoff = strategy, intensity, backoff
        self._start_order, self._stop_order = start_order, stop_order
        self._observe = observe or _log_event
        self._ended: trio.Event | None = None

    def state(self, name: str) -> ChildState:
        """Where the child is; "stopped" from the moment it is asked to stop. Raises KeyError for an unknown name."""
        return self._children[name].state

    def value(self, name: str) -> Any:
        """What the ready generation gave to ``started``. Raises ActorNotReady if none is, KeyError if unknown."""
        child = self._children[name]
        if child.state != "ready" or child.life is None:
            raise ActorNotReady(f"child {name!r} is {child.state}", generation=child.generation)
        return child.life.value

    async def stop(self) -> None:
        """Stop all children in order and return when ``run`` is over (or at once, if it is not running). Idempotent.

        Cancelling it ends only the waiting. No deadline: a task can't be abandoned, so it takes what cleanups take.
        """
        if (ended := self._ended) is not None:
            self._stop_asked = True
            self._wake.set()
            await ended.wait()

    async def run(self, task_status: trio.TaskStatus[Supervisor] = trio.TASK_STATUS_IGNORED) -> None:
        """Supervise until stopped; reports itself started when every child has been ready.

        It is a ``ChildSpec.start`` too, and may be run again: generations count on. Cancelled, it stops its
        children in order first. Raises the error of a child that fails in the first start, GaveUp, a child's
        KeyboardInterrupt or SystemExit, each as itself when all children have ended; ActorNotReady if stopped while
        somebody still waits for ``task_status``; UsageError if already running.
        """
        if self._ended is not None:
            raise UsageError("this supervisor is already running")
        ended = self._ended = trio.Event()
        self._reset()
        crash: BaseException | None = None
        try:
            async with trio.open_nursery(strict_exception_groups=True) as self._nursery:
                try:
                    await self._serve(task_status)
                finally:
                    for child in self._children.values():
                        if child.life is not None:  # only after a bug here, and shielded: it would never end
                            child.life.let_go()
        except BaseExceptionGroup as group:
            crash = group.exceptions[0] if len(group.exceptions) == 1 else group
        finally:
            for child in self._children.values():
                child.life, child.state = None, "down" if child.state == "down" else "stopped"
            self._ended = None
            ended.set()
        if crash is not None:
            raise crash

    def _reset(self) -> None:
        self._children = {name: _Child(old.spec, old.generation) for name, old in self._children.items()}
        self._accounts = Accounts(self._kinds, self._strategy, self._policy, self._backoff)
        self._stop_asked = self._closing = self._announced = False
        self._error: BaseException | None = None
        self._wake, self._now = trio.Event(), trio.current_time()

    async def _serve(self, task_status: trio.TaskStatus[Supervisor]) -> None:
        try:
            await self._supervise(task_status)
        except trio.Cancelled:
            self._close(None)
            with trio.CancelScope(shield=True):  # as long as the children's cleanups: a task cannot be abandoned
                await self._supervise(task_status)
            if self._error is None:
                raise
        if self._error is not None:
            raise self._error
        if not self._announced and task_status is not trio.TASK_STATUS_IGNORED:
            raise ActorNotReady("the supervisor was stopped before all its children were ready")

    async def _supervise(self, task_status: trio.TaskStatus[Supervisor]) -> None:
        """Look, act, sleep. All of it is on ``self``: cancelled in its sleep, it can be called again."""
        while True:
            self._wake, self._now = trio.Event(), trio.current_time()
            if self._stop_asked and not self._closing:
                self._close(None)
            for child in self._children.values():
                if child.life is not None:
                    self._look(child, child.life)
            self._stop_doomed()
            self._start_wanted()
            if self._closing and not any(child.life for child in self._children.values()):
                return
            if not self._announced and not self._closing and all(c.been_ready for c in self._children.values()):
                self._announced = True
                task_status.started(self)
            with trio.move_on_at(self._next_deadline()):
                await self._wake.wait()

    def _look(self, child: _Child, life: Life) -> None:
        if life.is_ready and child.state == "starting":
            child.state, child.been_ready = "ready", True
            self._accounts.ready(life.name, self._now)
            self._emit("ready", child)
        if life.is_over:
            self._over(child, life)
        elif self._now >= child.overdue_at:
            child.overdue_at = math.inf
            self._emit("overdue", child)

    def _over(self, child: _Child, life: Life) -> None:
        expected = child.doomed
        child.life, child.state, child.doomed, child.overdue_at = None, "stopped", False, math.inf
        self._emit("stopped" if life.is_stopping else "exited", child, life.error)
        if life.error is not None and not isinstance(life.error, Exception):
            self._close(life.error)
        elif expected:
            self._accounts.stopped(life.name, self._now)
        elif not child.been_ready:
            self._close(life.error)
            for other in reversed(self._children.values()):  # nobody depends on what is not ready yet: no order
                if other.state == "starting":
                    self._stop(other)
        else:
            verdict = self._accounts.ended(life.name, failed=life.error is not None, at=self._now)
            self._apply(verdict, child, life.error)

    def _apply(self, verdict: Verdict, child: _Child, error: BaseException | None) -> None:
        child.wanted = verdict.action == "restart"
        if verdict.action == "down":
            child.state = "down"
            self._emit("down", child, error)
        elif verdict.action == "give_up":
            gave_up = GaveUp(f"child {child.spec.name!r} failed once more than {self._policy} allows")
            gave_up.__cause__ = error
            self._close(gave_up)
        elif verdict.action == "restart":
            for name in {*verdict.stop, *verdict.restart}:
                self._doom(self._children[name], verdict)
            if verdict.not_before > self._now:
                child.state = "backing_off"
                self._emit("backing_off", child, error)

    def _doom(self, member: _Child, verdict: Verdict) -> None:
        member.doomed = member.life is not None
        # A temporary child is not restarted, but its first start is still owed if it has never been ready.
        member.wanted = member.spec.name in verdict.restart or not member.been_ready
        member.not_before = max(member.not_before, verdict.not_before)

    def _close(self, error: BaseException | None) -> None:
        """Begin to stop everything, for good. The first error is kept, unless a graver one comes."""
        if self._error is None or (error is not None and not isinstance(error, Exception)):
            self._error = error
        self._closing = True
        for child in self._children.values():
            child.wanted, child.doomed = False, child.life is not None
            if child.state == "backing_off":
                child.state = "stopped"

    def _stop_doomed(self) -> None:
        for child in reversed(self._children.values()):
            if child.doomed:
                self._stop(child)
                if self._stop_order == "reverse":
                    return

    def _stop(self, child: _Child) -> None:
        if child.life is not None and not child.life.is_stopping:
            child.state, child.overdue_at = "stopped", self._now + child.spec.stop_s
            self._emit("stopping", child)
            child.life.stop()

    def _start_wanted(self) -> None:
        if any(child.doomed for child in self._children.values()):
            return
        together = self._start_order == "together" or (self._announced and self._strategy == "one_for_one")
        for child in self._children.values():
            if child.wanted and child.life is None and self._now >= child.not_before:
                self._start(child)
            if child.wanted and child.state != "ready" and not together:
                return

    def _start(self, child: _Child) -> None:
        child.generation, child.state, child.not_before = child.generation + 1, "starting", -math.inf
        child.life = Life(child.spec, child.generation, lambda: self._wake.set())
        self._emit("starting", child)
        self._nursery.start_soon(child.life.live, name=f"{child.spec.name} #{child.generation}")

    def _next_deadline(self) -> float:
        """Only what lies ahead of this round: a child that waits for another one's readiness is woken by that."""
        due = [c.not_before for c in self._children.values() if c.wanted and c.life is None]
        due += [c.overdue_at for c in self._children.values()]
        return min((at for at in due if at > self._now), default=math.inf)

    def _emit(self, kind: EventKind, child: _Child, error: BaseException | None = None) -> None:
        self._observe(ChildEvent(kind, child.spec.name, child.generation, error, self._now))


def _log_event(event: ChildEvent) -> None:
    level = logging.WARNING if event.error is not None or event.kind in ("down", "overdue") else logging.DEBUG
    _log.log(level, "child %s #%d: %s", event.name, event.generation, event.kind, exc_info=event.error)
