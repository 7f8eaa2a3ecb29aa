"""A stage: its replicas under supervision, its front-end, and the choice of a replica for each piece of work.

The restart logic is the actor library's ``Supervisor`` with one ``Replica`` per child; nothing here restarts anything.
A stage never escalates: a replica whose intensity is exhausted is down, its siblings serve on, and a stage with none is
down, which its requests and the readiness report learn at once (I17, I19).
"""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING, Any

import attrs
import trio

from omni_actors._errors import ActorNotReady, StageUnavailable
from omni_actors.actors import Backoff, ChildEvent, ChildSpec, PerChild, Supervisor

from ._loading import loading
from ._replica import Ending, Replica, StageContext

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from omni_actors.config.specs import Deadlines, StageSpec
    from omni_actors.lifecycle.events import Batch
    from omni_actors.transport import Transport

    from ._interface import EngineKind, Frontend, Launcher

__all__ = ["StageEvent", "StageState", "StageSupervisor"]

logger = logging.getLogger("omni_actors.stage")

MAX_FAILURES = 3


def _backoff(limits: Deadlines) -> Backoff | None:
    """None where one of its times is 0: restart at once."""
    if not (limits.backoff_first_s and limits.backoff_max_s):
        return None
    return Backoff(first_s=limits.backoff_first_s, max_s=limits.backoff_max_s)


@attrs.frozen(kw_only=True)
class StageEvent:
    """Something happened to a replica: ``kind`` is the actor library's (starting, ready, exited, down, …)."""

    stage: str
    replica: int
    generation: int
    kind: str
    error: BaseException | None
    at: float


@attrs.frozen(kw_only=True)
class StageState:
    """A stage, now. ``state`` is starting, ready, restarting or down; ``reason`` says why it isn't ready.

    ``stalled_s``: for how long the slowest of its ready replicas has owed an answer and made nothing.
    """

    stage: str
    state: str
    ready: int
    replicas: int
    reason: str | None = None
    stalled_s: float = 0.0


class _Started(trio.TaskStatus[Any]):
    """Readiness as an event, for a task that is not started by ``nursery.start``."""

    def __init__(self, event: trio.Event) -> None:
        self._event = event

    def started(self, value: Any = None) -> None:
        self._event.set()


class StageSupervisor:
    """One stage of a running pipeline. ``run`` is its task; the rest is synchronous but for ``place``."""

    def __init__(
        self,
        spec: StageSpec,
        kind: EngineKind,
        *,
        launcher: Launcher,
        transport: Transport,
        send: Callable[[Batch], Awaitable[None]],
        transform: Callable[..., Any] | None = None,
        companions: Callable[..., Any] | None = None,
    ) -> None:
        self.spec, self.transform, self.companions, self.cheap = spec, transform, companions, spec.cheap
        self.standing: dict[str, tuple[str, tuple[Any, ...]]] = {}
        context = StageContext(
            spec=spec,
            kind=kind,
            launcher=launcher,
            transport=transport,
            send=send,
            frontend=self._wait_frontend,
            standing=self.standing,
        )
        self.replicas = tuple(Replica(context, number) for number in range(spec.replicas))
        self.observers: list[Callable[[StageEvent], None]] = []
        self.request_over: Callable[[str], None] | None = getattr(kind, "request_over", None)
        self._kind = kind
        self._frontend: Frontend | None = None
        self._frontend_made = trio.Event()
        self.started = trio.Event()
        self._stop_asked = False
        self._changed = trio.Event()
        self._last_error: BaseException | None = None
        self._supervisor = Supervisor(
            [self._child(replica) for replica in self.replicas],
            strategy="one_for_one",
            intensity=PerChild(max_failures=MAX_FAILURES, stable_s=spec.deadlines.stable_s),
            backoff=_backoff(spec.deadlines),
            start_order="together",
            stop_order="together",
            observe=self._observed,
        )

    def _child(self, replica: Replica) -> ChildSpec:
        limits = self.spec.deadlines
        return ChildSpec(
            name=str(replica.number),
            start=replica.live,
            restart="permanent",
            start_s=math.inf,  # the replica has the deadline itself: it knows the engine's last words
            stop_s=limits.stop_s + 2 * limits.kill_s + 3,
        )

    # ------------------------------------------------------------------ running

    async def run(self) -> None:
        """Start the replicas and the front-end together; ``started`` is set when all are ready.

        Runs until stopped or cancelled. Raises StartupFailed, or what making the front-end raised.
        """
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._make_frontend)
            await self._supervise()
            nursery.cancel_scope.cancel()

    async def _supervise(self) -> None:
        if self._stop_asked:
            return
        try:
            await self._supervisor.run(task_status=_Started(self.started))
        except ActorNotReady:
            if not self._stop_asked:
                raise

    async def _make_frontend(self) -> None:
        if self._kind.slow_frontend:
            self._frontend = await trio.to_thread.run_sync(
                loading, self._kind.frontend, self.spec, abandon_on_cancel=True
            )
        else:
            self._frontend = self._kind.frontend(self.spec)
        self._frontend_made.set()

    async def _wait_frontend(self) -> Frontend:
        await self._frontend_made.wait()
        return self.frontend

    @property
    def frontend(self) -> Frontend:
        """The stage's input processing; there once the stage has been ready."""
        assert self._frontend is not None, "a stage is used before it is ready"
        return self._frontend

    async def stop(self, stop_by: float) -> None:
        """Stop all replicas at once; return when their groups are gone. Later calls join, and may only shorten."""
        self._stop_asked = True
        self.hurry(stop_by)
        await self._supervisor.stop()

    def hurry(self, stop_by: float) -> None:
        """Let no engine take longer than this absolute time to stop by itself."""
        for replica in self.replicas:
            replica.hurry(stop_by)

    @property
    def endings(self) -> tuple[Ending, ...]:
        """How each replica's last process ended."""
        return tuple(replica.endings[-1] for replica in self.replicas if replica.endings)

    # ------------------------------------------------------------------ placement

    def try_place(self, load: Mapping[tuple[str, int], int]) -> Replica | None:
        """The ready replica with the fewest leases, or None. ``load`` is the ledger."""
        ready = [replica for replica in self.replicas if replica.ready]
        if len(ready) < 2:
            return ready[0] if ready else None
        return min(ready, key=lambda replica: load.get((self.spec.name, replica.number), 0))

    async def place(self, load: Mapping[tuple[str, int], int], deadline: float) -> Replica:
        """Wait for a ready replica. Raises StageUnavailable at the deadline, or at once when all are down."""
        with trio.CancelScope(deadline=deadline):
            while (replica := self.try_place(load)) is None:
                state = self.state()
                if state.state == "down":
                    raise StageUnavailable(f"stage {self.spec.name} is down: {state.reason}", stage=self.spec.name)
                await self._changed.wait()
            return replica
        text = f"no replica of stage {self.spec.name} became ready in time: {self.state().reason}"
        raise StageUnavailable(text, stage=self.spec.name)

    def state(self) -> StageState:
        """How the stage is now."""
        ready = sum(replica.ready for replica in self.replicas)
        states = [self._supervisor.state(str(replica.number)) for replica in self.replicas]
        if ready:
            name = "ready"
        elif all(state in ("down", "stopped") for state in states):
            name = "down"
        else:
            name = "restarting" if self._last_error else "starting"
        return StageState(
            stage=self.spec.name,
            state=name,
            ready=ready,
            replicas=len(states),
            reason=None if ready else self._why_not_ready(),
            stalled_s=max(replica.stalled_s for replica in self.replicas),
        )

    def _why_not_ready(self) -> str:
        if self._stop_asked:
            return "it was asked to stop"
        return str(self._last_error or "it is still starting")

    def _observed(self, event: ChildEvent) -> None:
        if event.error is not None:
            self._last_error = event.error
        where = {"stage": self.spec.name, "replica": int(event.name)}
        level = logging.WARNING if event.kind in ("down", "overdue") else logging.INFO
        logger.log(level, "stage %s replica %s: %s", self.spec.name, event.name, event.kind, extra=where)
        self._changed.set()
        self._changed = trio.Event()
        happened = StageEvent(
            stage=self.spec.name,
            replica=int(event.name),
            generation=event.generation,
            kind=event.kind,
            error=event.error,
            at=event.at,
        )
        for observer in self.observers:
            try:
                observer(happened)
            except Exception:  # a user's progress display must not stop a stage
                logger.exception("an observer of stage %s failed", self.spec.name, extra=where)
