"""The seams of a stage: what an engine kind provides, what a client does, what a process is.

A *Frontend* is made once per stage (it may import the engine's library: slow). A *StageClient* is made per generation
and owns that generation's sockets. A *Process* is one process group. ``Replica`` puts the three together and owns
the one verdict; it is the only caller of most of these methods.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import attrs
import msgspec

from omni_actors.lifecycle.events import Event

if TYPE_CHECKING:
    from omni_actors.config.specs import StageSpec
    from omni_actors.transport import Transport

__all__ = ["Emit", "EngineKind", "Frontend", "Launch", "Launcher", "Process", "StageClient", "Work"]

Emit = Callable[[list[Event]], Awaitable[None]]
"""Hands one wake-up's events to the router. Bounded, so it may wait; it waits for nothing but the router."""


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """One lease's work, ready to be sent: what ``Frontend.prepare`` made of a prompt and its params.

    ``body`` is the kind's own (vLLM: an EngineCoreRequest; omni wire: a Submit). ``stream``: partial outputs are
    wanted, not only the last one. ``text``: somebody reads its text, so it must be detokenized. ``resumable``: more
    input follows under the same key. ``prompt``: such a piece of input as text, if it is known.
    """

    key: str
    body: Any
    index: int = 0
    stream: bool = True
    text: bool = True
    resumable: bool = False
    prompt: str | None = None


class Frontend(Protocol):
    """A stage's input processing, shared by its replicas and generations. Synchronous, thread-safe for ``prepare``."""

    def samples(self, params: Any) -> int:
        """How many samples (``n``) these params ask for. Raises InvalidRequest for bad ones. Microseconds."""

    def check(self, prompt: Any, params: Any) -> int:
        """The same, for params with their prompt. Raises InvalidRequest for what the stage can't take. Microseconds."""

    def heavy(self, prompt: Any) -> bool:
        """Whether ``prepare`` takes more than about a millisecond, so that it belongs into a thread."""

    def prepare(self, keys: Sequence[str], prompt: Any, params: Any, *, stream: bool, text: bool, priority: int = 0,
                options: Mapping[str, Any] | None = None) -> list[Work]:  # fmt: skip
        """One Work per key (one per sample). Raises InvalidRequest for a bad prompt or bad params."""


class StageClient(Protocol):
    """One generation's conversation with its engine. Every method but the async ones is synchronous and instant."""

    @property
    def addresses(self) -> Mapping[str, str]:
        """What the child must connect to, by name; goes into its launch payload."""

    async def handshake(self, frontend_made: Callable[[], Awaitable[object]] = ...) -> None:
        """Return when the engine is ready and ``frontend_made`` has returned. The caller races it against exit and
        deadline. The engine is answered first: it goes on loading while the front-end is made. Raises ProtocolError.
        """

    async def serve(self, emit: Emit) -> None:
        """Receive, decode, emit one list of events per wake-up; run until cancelled.

        Raises EngineDead (verdict ``sentinel``) or ProtocolError. Cancellation loses nothing: see ``drain``.
        """

    def drain(self) -> list[Event]:
        """What had already arrived when serving ended, decoded and in order. Called once, after the process's end."""

    def submit(self, work: Work) -> None:
        """Send one lease's work. Raises nothing for a dying engine: the verdict will say so."""

    def extend(self, work: Work) -> None:
        """Send one lease's next piece of input; a lease that has ended takes none, and nothing happens.

        Raises InvalidRequest or EngineRejected if it cannot be sent: the lease is to be aborted then.
        """

    def tell(self, method: str, *args: Any) -> None:
        """One utility call whose answer nobody waits for. What is submitted later comes after it."""

    def abort(self, keys: Iterable[str]) -> None:
        """Make the engine forget these leases; each is answered by one Released event. Unknown keys are ignored.

        All aborts of one scheduler pass go out as one message (and, on vLLM's wire, one barrier).
        """

    async def call(self, method: str, *args: Any, timeout_s: float) -> Any:
        """One utility call. Raises EngineRejected (the engine's words), EngineDead, ``trio.TooSlowError``."""

    def ping(self) -> None:
        """Ask for any sign of life (a side-effect-free call); the answer only moves ``last_heard``."""

    @property
    def last_heard(self) -> float:
        """``trio.current_time()`` of the last message of any kind."""

    @property
    def owed_since(self) -> float | None:
        """Since when the engine owes us something (a live lease, a pending call); None: it may be silent."""

    @property
    def step_s(self) -> float:
        """For how many seconds the engine has been inside one step, as it last told; 0: it is not, or nobody knows."""

    @property
    def last_made(self) -> float:
        """``trio.current_time()`` of the last output of any lease; ``-inf`` before the first."""

    @property
    def hang_extension(self) -> float:
        """Absolute time until which a pending call with a deadline of its own excuses silence; ``-inf`` if none."""

    def watch_owed(self, wake: Callable[[], None]) -> None:
        """Call ``wake`` once, at the next moment that ``owed_since`` stops being None (at once if it is not)."""

    def close(self) -> None:
        """Close the sockets. Idempotent."""


@attrs.frozen(kw_only=True)
class Launch:
    """What it takes to start one child: data only. ``payload`` goes to its stdin, length-prefixed (u64, little).

    ``nice``: what is added to the niceness that we have ourselves.
    """

    stage: str
    replica: int
    generation: int
    argv: Sequence[str]
    env: Mapping[str, str]
    payload: bytes
    nice: int = 0

    @property
    def name(self) -> str:
        """``thinker/0`` — as it appears in the log."""
        return f"{self.stage}/{self.replica}"


class Process(Protocol):
    """One process group, led by the child."""

    @property
    def pid(self) -> int: ...

    async def wait(self) -> int:
        """The leader's return code (negative: signal). Any number of waiters; cancellable."""

    def terminate(self) -> None:
        """SIGTERM to the leader. Harmless when it is gone."""

    async def destroy(self, kill_s: float) -> Sequence[int]:
        """SIGKILL what is left of the whole group, wait until it is gone, close the pipes.

        Runs shielded, bounded by ``kill_s`` and the grace of multiprocessing's resource trackers. Returns the pids that
        survived (normally none).
        """

    def tail(self) -> tuple[str, ...]:
        """The last lines it wrote to stderr, complete after ``destroy``."""


class Launcher(Protocol):
    """Starts processes; the real one, or the simulation's."""

    async def spawn(self, launch: Launch) -> Process:
        """Start the child and write its payload. Raises StartupFailed if the program cannot be started."""


class EngineKind(Protocol):
    """One kind of engine, found by entry point ``omni_actors.engines``.

    A kind may have ``request_over(key)``: called when a request that had work for one of its stages has ended, and all
    its engines have confirmed it; where no stages hand each other chunks, only of one that is not finished. ``key`` is
    what the keys of its leases begin with.
    """

    hang_s: float
    step_s: float
    """Defaults of the deadlines that have these names."""
    slow_frontend: bool
    """Whether ``frontend`` takes long enough (imports, files) to belong into a thread."""

    def check(self, spec: StageSpec) -> None:
        """Raise ConfigError for what is wrong with the spec and can be known without starting it (a missing model)."""

    def frontend(self, spec: StageSpec) -> Frontend:
        """Make the stage's front-end; in a thread, beside the engines' start, if it is slow."""

    def client(
        self, spec: StageSpec, frontend: Callable[[], Frontend], transport: Transport, *, replica: int, generation: int
    ) -> StageClient:
        """A client for one generation. ``frontend`` returns it once it is made (see ``handshake``)."""

    def launch(self, spec: StageSpec, addresses: Mapping[str, str], *, replica: int, generation: int) -> Launch:
        """The child for one generation."""
