"""A fake EngineCore: vLLM's engine as seen from its sockets, with faults as data.

It speaks the handshake, ADD, ABORT, UTILITY and the step outputs of vLLM's wire over any ``Transport``: in memory, as a
trio task on virtual time, or as a real process (``python -m omni_actors.testing.fake_core``). Like the real one it
answers calls between two steps, sends one message per step with every running request in it, answers no abort, and is
silent when idle. Its tokens follow from the prompt alone, so any run can be checked against ``fake_tokens``.
"""

from __future__ import annotations

import signal
import zlib
from collections import deque
from typing import TYPE_CHECKING, Any, Literal, NoReturn

import msgspec
import trio

from omni_actors.testing._exit import Exit
from omni_actors.wire.vllm.codec import DEAD
from omni_actors.wire.vllm.handshake import ENGINE_IDENTITY

from ._core_wire import ABORT, ADD, UTILITY, FakeAdd, FakeOutput, FakeOutputs, FakeParams, FakeUtility

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from omni_actors.stages._interface import Launch
    from omni_actors.transport import Message, Socket, Transport

__all__ = ["FakeCore", "FakeCoreBehaviour", "fake_core", "fake_tokens"]

_STOP, _LENGTH, _ABORT, _ERROR = 0, 1, 2, 3
_HOARD_BYTES = 1 << 20
_GARBAGE = b"\xc1 no message"
_ENCODE = msgspec.msgpack.Encoder().encode


class FakeCoreBehaviour(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a fake engine does. Times in seconds; a count of tokens is over the engine's whole life.

    ``tokens``: a request's natural length, ended earlier by its ``max_tokens``. ``echo``: it repeats its prompt instead
    of making tokens up. ``die_at``: the token at which ``death`` happens: ``exit`` (with ``exit_code``), ``kill``,
    ``sentinel`` (the wire's last word, then exit 1), ``garbage`` (undecodable bytes, it lives on), ``stall`` (it
    hangs for good). ``reject``: prompts beginning so are failed by the engine. ``handshake``: ``silent`` says nothing,
    ``exit`` writes ``stderr`` and exits. ``workers``: processes that a real process has below it; it reports itself
    dead when one ends. ``hoard``: a prompt that begins so makes it take 1 MiB at each step. ``model`` is ignored; it is
    there because specs have one. ``script``: what it says instead, texts or token ids; the prompt decides which of
    them, and ``tokens`` is not used.
    """

    tokens: int = 16
    token_s: float = 0.01
    start_s: float = 0.0
    max_running: int = 64
    echo: bool = False
    die_at: int | None = None
    death: Literal["exit", "kill", "sentinel", "garbage", "stall"] = "exit"
    exit_code: int = 3
    stderr: str = ""
    reject: str = ""
    handshake: Literal["speak", "silent", "exit"] = "speak"
    ignore_sigterm: bool = False
    max_model_len: int = 4096
    workers: int = 0
    hoard: str = ""
    model: str = ""
    script: tuple[str | tuple[int, ...], ...] = ()


def fake_tokens(prompt: Sequence[int], behaviour: FakeCoreBehaviour, params: FakeParams | None = None) -> list[int]:
    """Every token that the fake engine makes for a prompt: a prefix of them is what a request has produced."""
    params = params or FakeParams()
    natural = _natural_tokens(prompt, behaviour, params.seed or 0)
    return natural if params.max_tokens is None else natural[: params.max_tokens]


def _natural_tokens(prompt: Sequence[int], behaviour: FakeCoreBehaviour, seed: int) -> list[int]:
    """All that would be made without a limit."""
    if behaviour.echo:
        return list(prompt[: behaviour.tokens])
    state = zlib.crc32(",".join(map(str, prompt)).encode()) ^ (seed * 2654435761)
    if behaviour.script:
        line = behaviour.script[state % len(behaviour.script)]
        return [ord(character) for character in line] if isinstance(line, str) else list(line)
    tokens = []
    for _ in range(behaviour.tokens):
        state = (state * 1103515245 + 12345) & 0x7FFFFFFF
        tokens.append(97 + (state >> 16) % 26)
    return tokens


class _Running:
    """One request in the engine: what it will still produce, and how it ends."""

    __slots__ = ("add", "position", "reason", "stop_reason", "tokens")

    def __init__(self, add: FakeAdd, behaviour: FakeCoreBehaviour) -> None:
        params = add.sampling_params
        self.add, self.position = add, 0
        natural = _natural_tokens(add.prompt_token_ids, behaviour, params.seed or 0)
        self.tokens = natural if params.max_tokens is None else natural[: params.max_tokens]
        self.reason = _LENGTH if len(self.tokens) < len(natural) else _STOP
        self.stop_reason: int | None = None
        end = next((i for i, token in enumerate(self.tokens) if token in params.stop_token_ids), None)
        if end is not None:
            self.stop_reason, self.reason, self.tokens = self.tokens[end], _STOP, self.tokens[: end + 1]

    def step(self) -> FakeOutput:
        token = self.tokens[self.position : self.position + 1]
        self.position += 1
        ended = self.position >= len(self.tokens)
        reason, stop = (self.reason, self.stop_reason) if ended else (None, None)
        return FakeOutput(self.add.request_id, token, finish_reason=reason, stop_reason=stop)

    @property
    def ended(self) -> bool:
        return self.position >= len(self.tokens)


class FakeCore:
    """One fake engine's life. Owns its sockets and its requests."""

    def __init__(self, behaviour: FakeCoreBehaviour, handshake: str, transport: Transport) -> None:
        self.behaviour = behaviour
        self._address, self._transport = handshake, transport
        self._sockets: list[Socket] = []
        self._output: Socket | None = None
        self._inbox: deque[Message] = deque()
        self._wake = trio.Event()
        self._waiting: deque[_Running] = deque()
        self._running: list[_Running] = []
        self._made = 0
        self._hoarding, self._hoard = False, list[bytearray]()
        self._life = trio.CancelScope()
        self._code = 0

    async def run(self) -> NoReturn:
        """Serve until cancelled. Raises ``Exit`` for each end of its own; its sockets are closed at any end."""
        if self.behaviour.handshake == "exit":
            raise Exit(self.behaviour.exit_code)
        try:
            with self._life:
                await self._live()
            raise Exit(self._code)
        finally:
            for socket in self._sockets:
                socket.close()

    async def _live(self) -> None:
        if self.behaviour.handshake == "silent":
            # Ended from outside, by whoever waits for its first word.
            await trio.sleep_forever()
        inbound, hello, self._output = await self._handshake()
        async with trio.open_nursery() as nursery:
            for socket in (hello, self._output):
                nursery.start_soon(_pump, socket)
            nursery.start_soon(self._listen, inbound)
            nursery.start_soon(self._loop)

    async def _exit(self, code: int) -> None:
        self._code = code
        self._life.cancel()
        await trio.lowlevel.checkpoint()

    def stop(self) -> None:
        """What SIGTERM does: the engine says of each request in flight that it is aborted, and exits with 0."""
        if self._life.cancel_called:
            return
        requests = [*self._running, *self._waiting]
        self._running, self._waiting = [], deque()
        if requests:
            self._say([FakeOutput(request.add.request_id, [], finish_reason=_ABORT) for request in requests])
        self._life.cancel()

    async def lose_worker(self) -> None:
        """What the end of a worker does: the wire's last word, then exit 1."""
        self._send([DEAD])
        # The real one also gives its sender thread some time before it exits.
        await trio.sleep(self.behaviour.token_s)
        await self._exit(1)

    async def _handshake(self) -> tuple[Socket, Socket, Socket]:
        """HELLO, the addresses, the ready response on the input socket, READY."""
        said = {"local": True, "headless": False}
        hello = self._open(self._transport.dealer(self._address, ENGINE_IDENTITY))
        hello.send([msgspec.msgpack.encode({"status": "HELLO", **said})])
        (init,) = await hello.receive(1)
        addresses = msgspec.msgpack.decode(init[0])["addresses"]
        await trio.sleep(self.behaviour.start_s)
        inbound = self._open(self._transport.dealer(addresses["inputs"][0], ENGINE_IDENTITY))
        outbound = self._open(self._transport.push(addresses["outputs"][0]))
        inbound.send([msgspec.msgpack.encode(_ready(self.behaviour))])
        hello.send([msgspec.msgpack.encode({"status": "READY", **said})])
        return inbound, hello, outbound

    def _open(self, socket: Socket) -> Socket:
        self._sockets.append(socket)
        return socket

    async def _listen(self, inbound: Socket) -> None:
        while True:
            self._inbox.extend(await inbound.receive())
            self._wake.set()

    async def _loop(self) -> NoReturn:
        """As the real engine's main thread: the whole inbox, then one step of all that runs, then again."""
        while True:
            while self._inbox:
                self._hear(self._inbox.popleft())
            while self._waiting and len(self._running) < self.behaviour.max_running:
                self._running.append(self._waiting.popleft())
            if self._running:
                await trio.sleep(self.behaviour.token_s)
                await self._step()
            else:
                self._wake = trio.Event()
                # Waits without a deadline: an idle engine is silent.
                await self._wake.wait()

    async def _step(self) -> None:
        outputs = [request.step() for request in self._running]
        self._running = [request for request in self._running if not request.ended]
        before, self._made = self._made, self._made + len(outputs)
        if self._hoarding:
            self._hoard.append(bytearray(_HOARD_BYTES))
        if self.behaviour.die_at is not None and before < self.behaviour.die_at <= self._made:
            await self._die()
        self._say(outputs)

    async def _die(self) -> None:
        match self.behaviour.death:
            case "stall":
                # Hears and says nothing more; ended from outside, by whoever finds it hung.
                await trio.sleep_forever()
            case "garbage":
                self._send([_GARBAGE])
            case "kill":
                await self._exit(-signal.SIGKILL)
            case "exit":
                await self._exit(self.behaviour.exit_code)
            case "sentinel":
                await self.lose_worker()

    def _hear(self, message: Message) -> None:
        kind = bytes(message[0])
        if kind == ADD:
            self._add(msgspec.msgpack.decode(message[1], type=FakeAdd))
        elif kind == ABORT:
            keys = set(msgspec.msgpack.decode(message[1]))
            self._running = [request for request in self._running if request.add.request_id not in keys]
            self._waiting = deque(request for request in self._waiting if request.add.request_id not in keys)
        elif kind == UTILITY:
            _, call_id, method, args = msgspec.msgpack.decode(message[1])
            self._send([_ENCODE(FakeOutputs(utility_output=self._call(call_id, method, args)))])

    def _add(self, add: FakeAdd) -> None:
        self._hoarding = self._hoarding or _begins(add, self.behaviour.hoard)
        if _begins(add, self.behaviour.reject):
            self._say([FakeOutput(add.request_id, [], finish_reason=_ERROR)])
        else:
            self._waiting.append(_Running(add, self.behaviour))

    def _call(self, call_id: int, method: str, args: Sequence[Any]) -> FakeUtility:
        match method:
            case "is_sleeping":
                return FakeUtility.answer(call_id, False)
            case "has_work":
                return FakeUtility.answer(call_id, bool(self._running or self._waiting))
            case "reset_prefix_cache":
                return FakeUtility.answer(call_id, not self._running)
            case "echo":
                return FakeUtility.answer(call_id, list(args))
        return FakeUtility(call_id, f"Call to {method} method failed: no such method")

    def _say(self, outputs: list[FakeOutput]) -> None:
        self._send([_ENCODE(FakeOutputs(outputs=outputs, timestamp=trio.current_time()))])

    def _send(self, frames: list[bytes]) -> None:
        if self._output is not None:
            self._output.send(frames)


def _begins(add: FakeAdd, text: str) -> bool:
    """Whether a prompt begins with this text; none does with an empty one."""
    return bool(text) and add.prompt_token_ids[: len(text)] == [ord(character) for character in text]


def _ready(behaviour: FakeCoreBehaviour) -> dict[str, Any]:
    limits = {"max_model_len": behaviour.max_model_len, "max_num_seqs": behaviour.max_running}
    return {**limits, "num_gpu_blocks": 64, "block_size": 16, "vllm_version": "fake", "dtype": "none"}


async def _pump(socket: Socket) -> None:
    """Send what the peer did not take at once. Nothing comes this way."""
    while True:
        await socket.receive()


async def fake_core(launch: Launch, payload: Mapping[str, Any], transport: Transport) -> NoReturn:
    """One fake engine's life as a task: what an in-memory launcher runs for a Launch of ``FakeCoreKind``.

    Raises Exit with the exit code (negative: a signal); cancelled, it is gone at once, as by SIGKILL.
    """
    from omni_actors.testing._launcher import current_process  # not where the fake is a process of its own

    behaviour = msgspec.convert(payload["engine_args"], FakeCoreBehaviour)
    core, process = FakeCore(behaviour, payload["handshake"], transport), current_process()
    if behaviour.stderr:
        process.say(behaviour.stderr)
    process.on_terminate((lambda: None) if behaviour.ignore_sigterm else core.stop)
    await core.run()
