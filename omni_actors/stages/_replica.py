"""A replica: one running copy of a stage, one generation at a time.

A generation is a process group, a client and, in the end, a verdict. Three detectors watch it (the process's exit, the
wire's own word that the engine is dead or broken, silence where an answer is owed); the first to speak concludes. Then
always in this order: what had arrived is applied, the generation is declared dead (I20), its whole group is destroyed,
its sockets are closed; only then may the supervisor start the next one (I18).
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import attrs
import trio

from omni_actors._buggify import chance, pause
from omni_actors._errors import ActorDied, EngineDead, OmniError, ProtocolError
from omni_actors.config.specs import StageSpec
from omni_actors.lifecycle.events import Batch, Event, ReplicaDied
from omni_actors.transport import Transport

from ._interface import EngineKind, Frontend, Launcher
from ._shield import bounded_shield
from ._verdict import dead, how_it_ended, startup_failed

if TYPE_CHECKING:
    from omni_actors.actors import Life

    from ._interface import Process, StageClient

__all__ = ["Ending", "Generation", "Replica", "StageContext"]

_LATE = 0.2
"""Of ``silence_s``: a later wake-up than this is not this process's usual jitter."""
_SOONEST_S = 0.1
"""How soon, at the soonest, is looked again where a ping has no answer yet."""


@attrs.frozen(kw_only=True)
class StageContext:
    """What a stage's replicas share. ``send`` hands a batch to the router; ``frontend`` waits until it is made.

    ``standing``: calls (a method, its arguments) that each new generation gets before any work, by a name of their own.
    """

    spec: StageSpec
    kind: EngineKind
    launcher: Launcher
    transport: Transport
    send: Callable[[Batch], Awaitable[None]]
    frontend: Callable[[], Awaitable[Frontend]]
    standing: Mapping[str, tuple[str, tuple[Any, ...]]] = attrs.field(factory=dict)

    @property
    def hang_s(self) -> float:
        """Seconds of silence, while something is owed, after which an engine counts as hung."""
        return self.spec.deadlines.hang_s if self.spec.deadlines.hang_s is not None else self.kind.hang_s

    @property
    def step_s(self) -> float:
        """Seconds that an engine may be inside one step, alive as it may look."""
        return self.spec.deadlines.step_s if self.spec.deadlines.step_s is not None else self.kind.step_s


@attrs.frozen(kw_only=True)
class Ending:
    """How one generation's process ended: for the shutdown report. ``how``: stopped, terminated, killed or died."""

    stage: str
    replica: int
    generation: int
    pid: int
    how: str
    seconds: float
    unreaped: tuple[int, ...] = ()


class Replica:
    """``live`` is the supervised child; everything else is for the request handler, synchronous, and about now."""

    def __init__(self, context: StageContext, number: int) -> None:
        self.number = number
        self.ready = False
        self.endings: list[Ending] = []
        self.stop_by = math.inf
        self._context = context
        self._generation: Generation | None = None

    @property
    def generation(self) -> int:
        """The number of the generation that ``client`` speaks with; 0 before the first."""
        return self._generation.number if self._generation else 0

    @property
    def client(self) -> StageClient:
        """The current generation's client."""
        assert self._generation is not None, "a replica is used before its first start"
        return self._generation.client

    @property
    def pid(self) -> int | None:
        """The current process, if there is one."""
        return self._generation.process.pid if self._generation and self._generation.process else None

    @property
    def stalled_s(self) -> float:
        """For how many seconds it has owed something and made nothing; 0 while it owes nothing or is not ready."""
        if not self.ready or (owed := self.client.owed_since) is None:
            return 0.0
        return trio.current_time() - max(owed, self.client.last_made)

    def suspect(self, generation: int) -> None:
        """An abort was not confirmed in time: ask for a sign of life now. The hang detector does the rest."""
        if self.ready and self.generation == generation:
            self.client.ping()

    def hurry(self, stop_by: float) -> None:
        """Let a stop, now or later, take no longer than until this absolute time."""
        self.stop_by = min(self.stop_by, stop_by)
        if self._generation is not None:
            self._generation.hurry(self.stop_by)

    async def live(self, life: Life) -> None:
        """One generation, from start to burial. Raises its verdict; cancelling it stops the engine in order."""
        self._generation = generation = Generation(self._context, self.number, life.generation)
        try:
            await generation.run(lambda: self._started(life))
        finally:
            self.ready = False
            self.endings.append(await generation.end(lambda: self.stop_by))
            del self.endings[:-4]

    def _started(self, life: Life) -> None:
        for method, args in self._context.standing.values():
            self.client.tell(method, *args)
        self.ready = True
        life.started(self)


class Generation:
    """One life of a replica. Owns its process and its client."""

    def __init__(self, context: StageContext, replica: int, number: int) -> None:
        self._context, self._spec = context, context.spec
        self.replica, self.number = replica, number
        self.process: Process | None = None
        self._frontend: Frontend | None = None
        self._verdict: EngineDead | None = None
        self._ready = False
        self._scope: trio.CancelScope | None = None
        self._stopping: trio.CancelScope | None = None
        self.client = context.kind.client(
            self._spec, self._made_frontend, context.transport, replica=replica, generation=number
        )

    def _made_frontend(self) -> Frontend:
        assert self._frontend is not None, "the front-end is used before the engine was ready"
        return self._frontend

    async def _make_sure_of_frontend(self) -> None:
        self._frontend = await self._context.frontend()

    # ------------------------------------------------------------------ alive

    async def run(self, started: Callable[[], None]) -> None:
        """Start, serve, and raise the verdict. Ends only by a verdict or by being cancelled."""
        start_s = self._spec.deadlines.start_s
        deadline = trio.current_time() + start_s
        mine = attrs.evolve(self._spec, devices=self._spec.devices_of(self.replica))
        launch = self._context.kind.launch(mine, self.client.addresses, replica=self.replica, generation=self.number)
        self.process = await self._context.launcher.spawn(attrs.evolve(launch, nice=mine.nice))
        async with trio.open_nursery() as nursery:
            self._scope = nursery.cancel_scope
            nursery.start_soon(self._watch_exit)
            nursery.start_soon(self._talk, started, deadline, start_s)
        assert self._verdict is not None
        raise self._verdict if self._ready else startup_failed(self._verdict)

    def _conclude(
        self, verdict: str, what: str, returncode: int | None = None, cause: BaseException | None = None
    ) -> None:
        """The first detector to speak decides."""
        if self._verdict is None and self._scope is not None and self.process is not None:
            self._verdict = dead(
                self._spec.name,
                self.replica,
                self.number,
                verdict=verdict,
                what=what,
                pid=self.process.pid,
                returncode=returncode,
                tail=self.process.tail(),
            )
            self._verdict.__cause__ = cause
            self._scope.cancel()

    async def _watch_exit(self) -> None:
        assert self.process is not None
        returncode = await self.process.wait()
        before = "" if self._ready else " before it was ready"
        self._conclude("exit", f"{how_it_ended(returncode)}{before}", returncode)

    async def _talk(self, started: Callable[[], None], deadline: float, start_s: float) -> None:
        """Handshake, then serve: the wire's detector."""
        try:
            with trio.move_on_at(deadline) as starting:
                await self.client.handshake(self._make_sure_of_frontend)
            if starting.cancelled_caught:
                self._conclude("hang", f"did not become ready within {start_s:g} s")
                return
            await pause("replica.ready")
            self._ready = True
            started()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._watch_hang)
                await self.client.serve(self._emit)
        except* EngineDead as group:
            self._conclude("sentinel", "reported that its engine is dead", cause=_first(group))
        except* ProtocolError as group:
            self._conclude("protocol", f"broke its wire: {_first(group)}", cause=_first(group))

    async def _watch_hang(self) -> None:
        """The detector of silence, and of steps that never end, which it looks for every ``silence_s`` or so.

        Liveness is owed only while something is owed; an idle engine is let alone.

        A wake-up that comes late shows that this process itself did not run (Ctrl-Z, a starved machine) and could not
        hear: the engine's time begins anew then.
        """
        silence_s, hang_s = self._spec.deadlines.silence_s, self._context.hang_s
        pinged = listening_since = -math.inf
        while True:
            if (owed := self.client.owed_since) is None:
                await _woken_by(self.client.watch_owed)
                listening_since = trio.current_time()
                continue
            heard = max(self.client.last_heard, owed, listening_since)
            limit = max(heard + hang_s, self.client.hang_extension)
            now = trio.current_time()
            if now >= limit:
                self._conclude("hang", f"owed an answer and was silent for {now - heard:.3g} s")
                return
            if self.client.step_s > self._context.step_s and now > self.client.hang_extension:
                self._conclude("hang", f"lives, but has been inside one step for {self.client.step_s:.3g} s")
                return
            if pinged < heard and now >= heard + silence_s:
                self.client.ping()
                pinged = now
            # Also while a ping is under way: its answer may tell of a step that does not end.
            look_at = now + max(silence_s, _SOONEST_S) if pinged >= heard else heard + silence_s
            wake_at = min(look_at, limit)
            await trio.sleep_until(wake_at)
            if trio.current_time() > wake_at + silence_s * _LATE:
                listening_since = trio.current_time()

    async def _emit(self, events: list[Event]) -> None:
        if chance("replica.emit"):  # not ``pause``: once per engine step, a coroutine for nothing is too many
            await trio.lowlevel.checkpoint()
        await self._context.send(Batch(self._spec.name, self.replica, self.number, events))

    # ------------------------------------------------------------------ the end

    async def end(self, stop_by: Callable[[], float]) -> Ending:
        """Stop what still runs, apply what had arrived, declare dead, destroy, close. Shielded and bounded.

        A ready engine is asked (SIGTERM) and given ``stop_s``; one that is not ready has nothing to lose.
        """
        limits = self._spec.deadlines
        begun = trio.current_time()
        deadline = begun + limits.stop_s
        how, pid = "died", 0
        unreaped: tuple[int, ...] = ()
        process = self.process
        if process is not None and self._verdict is None and self._ready:
            how = await self._stop(process, lambda: min(deadline, stop_by()))
        elif self._verdict is None:
            how = "stopped"
        with bounded_shield(trio.current_time() + limits.kill_s):
            await self._declare_dead()
        if process is not None:
            pid = process.pid
            unreaped = tuple(await process.destroy(limits.kill_s))
        self.client.close()
        return Ending(
            stage=self._spec.name,
            replica=self.replica,
            generation=self.number,
            pid=pid,
            how=how,
            seconds=trio.current_time() - begun,
            unreaped=unreaped,
        )

    async def _stop(self, process: Process, stop_by: Callable[[], float]) -> str:
        process.terminate()
        while (deadline := stop_by()) > trio.current_time():
            with bounded_shield(deadline) as self._stopping:
                returncode = await process.wait()
                return "stopped" if returncode == 0 else "terminated"
        return "killed"

    def hurry(self, deadline: float) -> None:
        """Shorten a stop that is under way."""
        if self._stopping is not None:
            self._stopping.deadline = min(self._stopping.deadline, deadline)

    async def _declare_dead(self) -> None:
        await pause("replica.bury")
        error = self._verdict
        if error is None:
            pid = self.process.pid if self.process else None
            error = dead(self._spec.name, self.replica, self.number, verdict="stop", what="was stopped", pid=pid)
        with suppress(ActorDied):  # without a router there is no table left to tell
            await self._emit([*self._last_events(), ReplicaDied(error)])

    def _last_events(self) -> Sequence[Event]:
        try:
            return self.client.drain()
        except OmniError:  # garbage as last words changes nothing about the verdict
            return ()


def _first(group: BaseExceptionGroup[Any]) -> BaseException:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


async def _woken_by(register: Callable[[Callable[[], None]], None]) -> None:
    event = trio.Event()
    register(event.set)
    await event.wait()
