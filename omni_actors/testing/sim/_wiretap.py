"""A tap on the host's sockets: what the runtime sent and what it had received, in the history, as it happened.

Wraps any ``Transport``: the in-memory one of a simulation, ZeroMQ's between real processes. Nothing is changed, held
back or reordered. It knows both wires only as far as the history does.
"""

from __future__ import annotations

import re
import zlib
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import trio

from omni_actors._errors import ProtocolError
from omni_actors.lifecycle.events import Payload, StepChunk, TextChunk
from omni_actors.testing._core_wire import ABORT, ADD, UTILITY, FakeOutputs
from omni_actors.wire import omni
from omni_actors.wire.vllm.codec import DEAD, FINISH_ABORT, FINISH_ERROR

from ._history import Wire

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from omni_actors.transport import Frame, Message, Socket, Transport

__all__ = ["TappedTransport", "fingerprint"]

_NAME = re.compile(r"(?P<stage>.+)-(?P<replica>\d+)-(?P<generation>\d+)(?P<socket>-[hio])?$")
_PROBE = "is_sleeping"

Said = tuple[str, str, tuple[int, ...]] | tuple[str, str, tuple[int, ...], int]
"""What, key, data, and how many tensors if any: one line of the history."""


def fingerprint(payload: Payload) -> tuple[int, ...]:
    """What a payload holds, comparable and small: token ids, or the text's code points, or a sum over the tensors."""
    if isinstance(payload, TextChunk):
        return tuple(payload.token_ids or map(ord, payload.text))
    if isinstance(payload, StepChunk):
        return ()
    return _tensors(payload.tensors, dict(payload.meta))


def _tensors(tensors: Any, meta: dict[str, Any]) -> tuple[int, ...]:
    if not tensors and not meta:
        return ()
    total = zlib.crc32(repr(sorted(meta.items())).encode())
    for name in sorted(tensors):
        total = zlib.crc32(bytes(tensors[name].data), zlib.crc32(name.encode(), total))
    return (total,)


class TappedTransport:
    """``record`` is called with every Wire event; ``begun`` is the time that counts as 0."""

    def __init__(self, transport: Transport, record: Callable[[Wire], None], *, begun: float = 0.0) -> None:
        self._transport, self._record, self._begun = transport, record, begun
        self._cores: dict[tuple[str, int, int], _CoreWire] = {}

    def router(self, name: str) -> Socket:
        """A bound ROUTER, tapped."""
        return self._tapped(self._transport.router(name), name)

    def pull(self, name: str) -> Socket:
        """A bound PULL, tapped."""
        return self._tapped(self._transport.pull(name), name)

    def dealer(self, address: str, identity: bytes) -> Socket:
        """As it is: engines are not tapped."""
        return self._transport.dealer(address, identity)

    def push(self, address: str) -> Socket:
        """As it is."""
        return self._transport.push(address)

    def close(self) -> None:
        """Close every socket."""
        self._transport.close()

    def _tapped(self, socket: Socket, name: str) -> Socket:
        found = _NAME.match(name)
        assert found is not None, name
        place = (found["stage"], int(found["replica"]), int(found["generation"]))
        if (suffix := found["socket"]) is None:
            reader: _Reader = _OmniWire()
        elif suffix == "-h":
            reader = _Reader()
        else:
            core = self._cores.setdefault(place, _CoreWire())
            reader = core if suffix == "-o" else _CoreInput(core)

        def write(way: Literal["sent", "heard", "unsent"], lines: Iterator[Said]) -> None:
            at = trio.current_time() - self._begun
            for line in lines:
                stage, replica, generation = place
                self._record(
                    Wire(
                        at=at,
                        way=way,
                        stage=stage,
                        replica=replica,
                        generation=generation,
                        what=line[0],
                        key=line[1],
                        data=line[2],
                        pieces=line[3] if len(line) == 4 else 0,
                    )
                )

        return _Tap(socket, reader, write)


class _Tap:
    """One tapped socket. What the socket raises leaves before anything is written."""

    def __init__(self, socket: Socket, reader: _Reader, write: Callable[..., None]) -> None:
        self._socket, self._reader, self._write = socket, reader, write

    @property
    def address(self) -> str:
        return self._socket.address

    def send(self, frames: Sequence[Frame], *, urgent: bool = False, tag: str | None = None) -> None:
        self._socket.send(frames, urgent=urgent, tag=tag)
        self._write("sent", self._reader.sent(frames))

    def unsend(self, tag: str) -> bool:
        done = self._socket.unsend(tag)
        if done:
            self._write("unsent", iter([("add", tag, ())]))
        return done

    async def receive(self, limit: int = 64) -> list[Message]:
        messages = await self._socket.receive(limit)
        for message in messages:
            self._write("heard", self._reader.heard(message))
        return messages

    def drain(self, limit: int = 1024) -> list[Message]:
        messages = self._socket.drain(limit)
        for message in messages:
            self._write("heard", self._reader.heard(message))
        return messages

    def close(self) -> None:
        self._socket.close()


class _Reader:
    """Reads one wire's messages, for the history alone. This one: a handshake's."""

    def sent(self, frames: Sequence[Frame]) -> Iterator[Said]:
        yield "hello", "", ()

    def heard(self, frames: Sequence[Frame]) -> Iterator[Said]:
        yield "hello", "", ()


class _CoreWire(_Reader):
    """Both sockets of one generation on vLLM's wire. Knows which probe stands behind which ABORT."""

    def __init__(self) -> None:
        self._aborted: list[str] = []
        self._barriers: dict[int, list[str]] = {}
        self._decoder = msgspec.msgpack.Decoder(FakeOutputs)

    def sent(self, frames: Sequence[Frame]) -> Iterator[Said]:
        kind, body = bytes(frames[1]), frames[2]
        if kind == ADD:
            yield "add", msgspec.msgpack.decode(body)[0], (zlib.crc32(bytes(body)),)
        elif kind == ABORT:
            self._aborted = list(msgspec.msgpack.decode(body))
            yield from (("abort", key, ()) for key in self._aborted)
        elif kind == UTILITY:
            _, call_id, method, _ = msgspec.msgpack.decode(body)
            if method == _PROBE:
                self._barriers[call_id], self._aborted = self._aborted, []
            yield ("ping" if method == _PROBE else "call"), "", ()

    def heard(self, frames: Sequence[Frame]) -> Iterator[Said]:
        if len(frames) == 1 and bytes(frames[0]) == DEAD:
            yield "dead", "", ()
            return
        try:
            step = self._decoder.decode(frames[0])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, IndexError):
            yield "garbage", "", ()
            return
        for output in step.outputs:
            yield from self._output(output)
        if step.utility_output is not None:
            keys = self._barriers.pop(step.utility_output.call_id, None)
            yield "answer", "", ()
            yield from (("released", key, ()) for key in keys or ())

    def _output(self, output: Any) -> Iterator[Said]:
        key, data = output.request_id, tuple(output.new_token_ids)
        if output.finish_reason in (FINISH_ERROR, FINISH_ABORT):
            yield "failed", key, data
            return
        yield "output", key, data
        if output.finish_reason is not None:
            yield "finished", key, ()
            yield "released", key, ()


class _CoreInput(_Reader):
    """The input socket of a generation on vLLM's wire: work goes out, the ready response comes in."""

    def __init__(self, core: _CoreWire) -> None:
        self.sent = core.sent  # type: ignore[method-assign]

    def heard(self, frames: Sequence[Frame]) -> Iterator[Said]:
        yield "ready", "", ()


class _OmniWire(_Reader):
    """The omni stage wire: one socket, the peer's identity in front."""

    def sent(self, frames: Sequence[Frame]) -> Iterator[Said]:
        message = omni.decode(frames[1:])
        match message:
            case omni.Submit(key=key, prompt=prompt):
                yield "add", key, (zlib.crc32(repr(prompt).encode()),)
            case omni.Abort(keys=keys):
                yield from (("abort", key, ()) for key in keys)
            case _:
                yield type(message).__name__.lower(), "", ()

    def heard(self, frames: Sequence[Frame]) -> Iterator[Said]:
        try:
            message = omni.decode(frames[1:])
        except ProtocolError:
            yield "garbage", "", ()
            return
        match message:
            case omni.Output(key=key, tensors=tensors, meta=meta, finished=finished):
                yield "output", key, _made(tensors, meta), len(tensors)
                if finished:
                    yield "finished", key, ()
            case omni.Released(key=key):
                yield "released", key, ()
            case omni.Failed(key=key, invalid=invalid):
                yield "failed", key, (1,) if invalid else ()
            case omni.CallResult():
                yield "answer", "", ()
            case omni.Progress(key=key, done=done, total=total):
                yield "progress", key, (done, total)
            case omni.Heartbeat(busy_s=float() as busy_s):
                yield "heartbeat", "", (int(busy_s * 1000),)
            case _:
                yield type(message).__name__.lower(), "", ()


def _made(tensors: Any, meta: dict[str, Any]) -> tuple[int, ...]:
    if "text" in meta:
        return tuple(meta.get("token_ids", ()) or map(ord, str(meta["text"])))
    return _tensors(tensors, meta)
