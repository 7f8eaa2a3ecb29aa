"""A fake engine that speaks the omni stage wire, over any transport and on trio's clock, and misbehaves as told.

``FakeBehaviour`` is data: it travels as the stage's ``engine_args``. The same callable runs as a task of a simulation
(in memory, on virtual time) and as a real process (``python -m omni_actors.testing.fake_omni``).
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any, Literal, NoReturn

import msgspec
import trio

from omni_actors.testing._exit import Exit
from omni_actors.testing._fake_painter import StepHost
from omni_actors.wire import omni as wire
from omni_actors.wire.omni import State

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from omni_actors.stages._interface import Launch
    from omni_actors.transport import Message, Transport

__all__ = ["FakeBehaviour", "FakeChunk", "FakeExit", "FakeOmni", "FakeTensor", "fake_omni"]

HEARTBEAT_S = 1.0
FakeExit = Exit
"""What a fake engine raises to end its process with ``code``; negative: by that signal."""
GARBAGE = b"\xffgarbage"


def _unnoted(what: str, key: str) -> None:
    """Nobody takes notes."""


class FakeTensor(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A tensor of a script: ``data`` is in base64 where bytes cannot stand, in engine arguments and in JSON."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes


class FakeChunk(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """One chunk of a script: tensors by name, and plain values (``text``, ``sample_rate``) beside them."""

    tensors: dict[str, FakeTensor] = {}
    meta: dict[str, Any] = {}


class FakeBehaviour(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a fake engine behaves. Times are seconds; chunks are counted per lease, from 0.

    ``echo``: input i (a number up to 255, of the prompt or of its ``inputs``) becomes chunk i, one byte; then
    ``chunks`` is not used. ``text``: chunks are text. ``capacity``: leases at work, others queue. ``exit_code``: of a
    death at ``die_at_chunk``, negative for a signal. ``stall_at_chunk``: the process freezes, hears and says nothing
    more. ``stuck_at_chunk``: the lease makes nothing more, the process lives. ``garbage_at_chunk``: bytes that are no
    message. ``release`` and ``release_s``: how, and how late, it confirms. ``stderr``: a line written at the start.
    ``script``: lists of chunks; the prompt decides which of them it makes, and ``chunks`` is not used.

    ``steps``: it denoises (``FakePainter``). All leases at work take their steps together, ``chunk_s`` each, and the
    chunks come after so many. What is said to happen at a chunk happens at a step, and a stuck step is everybody's.
    """

    chunks: int = 3
    steps: int | None = None
    chunk_s: float = 0.01
    start_s: float = 0.0
    capacity: int = 8
    echo: bool = False
    text: bool = False
    signed: bool = False
    die_at_chunk: int | None = None
    exit_code: int = 3
    stall_at_chunk: int | None = None
    stuck_at_chunk: int | None = None
    garbage_at_chunk: int | None = None
    fail_at_chunk: int | None = None
    release: Literal["normal", "double", "missing"] = "normal"
    release_s: float = 0.0
    silent_at_start: bool = False
    exit_at_start: int | None = None
    ignore_sigterm: bool = False
    stderr: str = ""
    script: tuple[tuple[FakeChunk, ...], ...] = ()


class FakeOmni:
    """One running fake engine. Owns its socket and its side of the wire.

    ``note`` hears what only the engine knows: ``("step", key)`` where a step of a lease begins, ``("abort", key)``.
    """

    def __init__(
        self,
        behaviour: FakeBehaviour,
        payload: Mapping[str, Any],
        transport: Transport,
        note: Callable[[str, str], None] = _unnoted,
    ) -> None:
        self.behaviour = behaviour
        self._socket = transport.dealer(payload["address"], payload["identity"].encode())
        self._side = wire.EngineSide()
        self._slots = trio.Semaphore(behaviour.capacity)
        self._work: dict[str, trio.CancelScope] = {}
        self._greeted, self._owed = trio.Event(), trio.Event()
        self._made = 0
        self._painter = self._made_painter(note) if behaviour.steps is not None else None
        # Cancelled when the process ends (with a code) or freezes (without): all its tasks at once.
        self._life = trio.CancelScope()
        self._code: int | None = None

    def _made_painter(self, note: Callable[[str, str], None]) -> StepHost:
        def make(prompt: Any) -> list[tuple[dict[str, wire.Tensor], dict[str, Any]]]:
            return _chunks(self.behaviour, prompt)

        return StepHost(self.behaviour, make, say=self._paint, misbehave=self._misbehave, note=note)

    async def run(self) -> NoReturn:
        """Serve until cancelled. Raises ``Exit`` for each end that an engine process can choose itself."""
        if self.behaviour.exit_at_start is not None:
            self._exit(self.behaviour.exit_at_start)
        try:
            with self._life:
                await self._live()
            if self._code is not None:
                raise Exit(self._code)
            # Frozen, without a deadline: it ends by being killed.
            await trio.sleep_forever()
        finally:
            self._socket.close()
        raise AssertionError("a frozen process went on")

    def stop(self) -> None:
        """What SIGTERM and Stop do: end every lease, exit with 0. A frozen or dying engine does not hear of it."""
        if self._life.cancel_called:
            return
        self._side.stop()
        for end in self._side.ends():
            self._say(end)
        self._exit(0)

    def _exit(self, code: int) -> None:
        self._code = code
        self._life.cancel()

    async def _live(self) -> None:
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            nursery.start_soon(self._load)
            nursery.start_soon(self._beat)
            if self._painter is not None:
                nursery.start_soon(self._painter.run)
            while True:
                for message in await self._socket.receive():
                    self._hear(message, nursery)

    async def _load(self) -> None:
        if self.behaviour.silent_at_start:
            return
        self._say(wire.Hello(pid=0))
        await self._greeted.wait()
        await trio.sleep(self.behaviour.start_s)
        self._say(wire.Ready(capacity=self.behaviour.capacity))

    async def _beat(self) -> None:
        while True:
            await self._owed.wait()
            await trio.sleep(HEARTBEAT_S)
            if self._side.owed:
                self._say(self._sign_of_life())
            else:
                self._owed = trio.Event()

    def _hear(self, frames: Message, nursery: trio.Nursery) -> None:
        message = wire.decode(frames)
        self._side.receive(message)
        if self._side.owed:
            self._owed.set()
        match message:
            case wire.Hello():
                self._greeted.set()
            case wire.Call(method="hang"):
                return
            case wire.Submit() | wire.Abort() | wire.Call() if self._painter is not None:
                self._painter.hear(message)
            case wire.Submit():
                scope = self._work[message.key] = trio.CancelScope()
                nursery.start_soon(self._serve_lease, message, scope)
            case wire.Abort(keys=keys):
                for key in keys:
                    if key in self._work:
                        self._work[key].cancel()
            case wire.Call():
                self._call(message)
            case wire.Ping(id=ping):
                self._say(self._sign_of_life(ping))
            case wire.Stop():
                self.stop()

    async def _serve_lease(self, submit: wire.Submit, scope: trio.CancelScope) -> None:
        with scope:
            async with self._slots:
                if await self._produce(submit):
                    return
        await self._release(submit.key)

    async def _produce(self, submit: wire.Submit) -> bool:
        """Make the chunks; whether the lease failed."""
        chunks = _chunks(self.behaviour, submit.prompt)
        for seq, (tensors, meta) in enumerate(chunks):
            await trio.sleep(self.behaviour.chunk_s)
            await self._misbehave(seq)
            if seq == self.behaviour.fail_at_chunk:
                self._work.pop(submit.key)
                self._say(wire.Failed(submit.key, f"failed at chunk {seq}, as told"))
                return True
            last = seq == len(chunks) - 1
            self._made += 1
            self._say(wire.Output(submit.key, seq, tensors, meta, last, "stop" if last else None))
        return False

    async def _misbehave(self, seq: int) -> None:
        told = self.behaviour
        if seq == told.die_at_chunk:
            self._exit(told.exit_code)
        if seq == told.garbage_at_chunk:
            self._socket.send([GARBAGE])
        if seq == told.stall_at_chunk:
            self._life.cancel()
        if seq in (told.die_at_chunk, told.stall_at_chunk, told.stuck_at_chunk):
            # Ended from outside: by the process's end, or for a stuck lease by its abort.
            await trio.sleep_forever()

    async def _release(self, key: str) -> None:
        await trio.sleep(self.behaviour.release_s)
        self._work.pop(key, None)
        if self.behaviour.release == "missing":
            return
        self._say(wire.Released(key))
        if self.behaviour.release == "double":
            self._socket.send(wire.encode(wire.Released(key)))

    def _call(self, call: wire.Call) -> None:
        match call.method:
            case "echo":
                self._say(wire.CallResult(call.id, call.args))
            case "stats":
                self._say(wire.CallResult(call.id, {"live": self._side.live, "made": self._made}))
            case _:
                self._say(wire.CallResult(call.id, error=f"the fake has no method {call.method!r}"))

    def _sign_of_life(self, ping: int = 0) -> wire.Heartbeat:
        if self._painter is None:
            return wire.Heartbeat(progress=self._made, ping=ping)
        return wire.Heartbeat(self._painter.busy_s, self._painter.status.made, ping)

    def _paint(self, message: wire.Message) -> None:
        """What the batcher says, as the engine's other thread sends it: nothing that an abort has overtaken."""
        if isinstance(message, wire.Released):
            self._nursery.start_soon(self._release, message.key)
        elif not self._side.overtaken(message):
            self._say(message)

    def _say(self, message: wire.Message) -> None:
        self._side.send(message)
        self._socket.send(wire.encode(message))
        if self._side.state is State.SERVING and self._side.owed:
            self._owed.set()


async def fake_omni(launch: Launch, payload: Mapping[str, Any], transport: Transport) -> NoReturn:
    """A fake engine for ``MemoryLauncher``: what runs for a Launch of ``FakeOmniKind``. Raises ``Exit``."""
    from omni_actors.testing._launcher import current_process  # not where the fake is a process of its own

    behaviour = msgspec.convert(payload["args"], FakeBehaviour)
    process = current_process()
    fake = FakeOmni(behaviour, payload, transport, process.note)
    process.on_terminate(_deaf if behaviour.ignore_sigterm else fake.stop)
    if behaviour.stderr:
        process.say(behaviour.stderr)
    await fake.run()


def _deaf() -> None:
    """What a process that ignores SIGTERM does about it."""


def _chunks(behaviour: FakeBehaviour, prompt: Any) -> list[tuple[dict[str, wire.Tensor], dict[str, Any]]]:
    """What a prompt becomes: a function of it and of the behaviour alone (I7). At least one chunk: the end."""
    if behaviour.echo:
        inputs = prompt["inputs"] if isinstance(prompt, dict) else prompt
        return [({"data": wire.Tensor("uint8", (1,), bytes([value]))}, {}) for value in inputs] or [({}, {})]
    if behaviour.script:
        return _scripted(behaviour, prompt)
    if behaviour.signed:
        sums = [zlib.crc32(f"{prompt!r} {seq}".encode()).to_bytes(4, "little") for seq in range(behaviour.chunks)]
        return [({"data": wire.Tensor("uint8", (4,), data)}, {}) for data in sums] or [({}, {})]
    if behaviour.text:
        return [({}, {"text": f"{seq} "}) for seq in range(behaviour.chunks)] or [({}, {})]
    audio = wire.Tensor("float32", (4,), bytes(16))
    return [({"audio": audio}, {"sample_rate": 24_000}) for _ in range(behaviour.chunks)] or [({}, {})]


def _scripted(behaviour: FakeBehaviour, prompt: Any) -> list[tuple[dict[str, wire.Tensor], dict[str, Any]]]:
    """The line of the script that the prompt, tensors and all, decides."""
    state = 0
    for frame in wire.encode(wire.Submit("", prompt)):
        state = zlib.crc32(frame, state)
    chunks = behaviour.script[state % len(behaviour.script)]
    made = []
    for chunk in chunks:
        tensors = {name: wire.Tensor(each.dtype, each.shape, each.data) for name, each in chunk.tensors.items()}
        made.append((tensors, dict(chunk.meta)))
    return made or [({}, {})]
