"""A supervisor's child: its spec, one life of it, and what is told about it.

A ``Life`` is one generation: one run of ``ChildSpec.start`` in its own shielded scope, so that nothing but its
supervisor (or its own ``start_s``) ends it. The child's code may call ``started``; everything else is the supervisor's.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import Any, Literal

import attrs
import trio

from omni_actors._errors import ActorError, ActorNotReady
from omni_actors.actors._accounting import Restart

__all__ = ["ChildEvent", "ChildSpec", "EventKind", "Life"]

EventKind = Literal["starting", "ready", "exited", "backing_off", "down", "stopping", "stopped", "overdue"]

_kind = attrs.validators.in_(("permanent", "transient", "temporary"))
_seconds = attrs.validators.gt(0.0)


@attrs.frozen
class ChildEvent:
    """One step of one generation. ``at`` is trio's time in seconds; ``error`` what ended it, if an error did.

    ``exited``: it ended by itself; ``stopped``: after it was asked to (``stopping``). ``overdue``: its cleanup has
    taken ``stop_s``, and is still waited for.
    """

    kind: EventKind
    name: str
    generation: int
    error: BaseException | None
    at: float


@attrs.frozen
class ChildSpec:
    """How to start a child and when to start it again.

    ``start`` is called once per generation and is the child: it returns or raises when the child is over. Within
    ``start_s`` seconds it calls ``life.started()``. Stopping cancels it; its cleanup should end within ``stop_s``
    seconds. ``restart``: ``permanent`` always, ``transient`` after an error, ``temporary`` never.
    """

    name: str
    start: Callable[[Life], Awaitable[None]]
    restart: Restart = attrs.field(default="permanent", validator=_kind)
    start_s: float = attrs.field(kw_only=True, validator=_seconds)
    stop_s: float = attrs.field(kw_only=True, validator=_seconds)


class Life:
    """One generation of a child. It is a ``trio.TaskStatus`` too: ``nursery.start``-able functions can be children."""

    def __init__(self, spec: ChildSpec, generation: int, wake: Callable[[], None]) -> None:
        self.name, self.generation = spec.name, generation
        self.value: Any = None
        self.is_ready = self.is_over = self.is_stopping = False
        self.error: BaseException | None = None
        self._spec, self._wake = spec, wake
        self._scope = trio.CancelScope(shield=True, deadline=trio.current_time() + spec.start_s)

    def started(self, value: Any = None) -> None:
        """Report readiness; ``Supervisor.value`` hands ``value`` on. Ignored if late. ActorError the second time."""
        if self.is_ready:
            raise ActorError(f"child {self.name!r} called started() twice", generation=self.generation)
        if not self.is_over and not self._scope.cancel_called:
            self._scope.deadline = math.inf
            self.is_ready, self.value = True, value
            self._wake()

    async def live(self) -> None:
        """Run the generation to its end and keep its error."""
        try:
            with self._scope:
                await self._spec.start(self)
        except trio.Cancelled:
            raise  # not ours: the supervisor has let go, and what is around it was cancelled
        except BaseException as error:
            self.error = error
            if not self._scope.shield:
                raise  # let go: nobody reads self.error any more
        finally:
            self.is_over = True
            self._wake()
        if not self.is_ready and not self.is_stopping:
            self._fail_start(self.error)

    def stop(self) -> None:
        """Ask the generation to end; ``is_over`` says when it has."""
        self.is_stopping = True
        self._scope.cancel()

    def let_go(self) -> None:
        """Cancel it and let outer cancellation reach it: its supervisor is about to be gone."""
        self._scope.shield = False
        self.stop()

    def _fail_start(self, error: BaseException | None) -> None:
        late = self._scope.cancel_called
        if error is None or (late and isinstance(error, Exception)):
            why = f"was not ready within {self._spec.start_s:g} s" if late else "ended before it was ready"
            self.error = ActorNotReady(f"child {self.name!r} {why}", generation=self.generation)
            self.error.__cause__ = error
