"""A light HTTP client for ``bench serve``: streamed completions over kept-alive connections, and their times.

h11 reads and writes the protocol; the body is looked at only as far as the times need it, because this client shares
its cores with the server that it measures.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import attrs
import h11
import msgspec
import trio

from omni_actors._errors import OmniError
from omni_actors.cli.benches._work import PARAMS, Answer, Job, Round, run_round

__all__ = ["HttpLoad"]

_HOST = "127.0.0.1"
_REQUEST_S = 120.0
_LOOK_S = 0.25
"""Between two questions to a server that starts: it has no other way to say that it is ready."""


class _Connection:
    """One connection, one request at a time."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream, self._http = stream, h11.Connection(h11.CLIENT)

    async def answer(self, port: int, model: str, prompt: str) -> Answer:
        """One streamed completion. Raises OmniError for anything but 200, ``trio.TooSlowError``, OSError."""
        began_at, first_at, body = time.perf_counter(), 0.0, bytearray()
        await self._send(port, {"model": model, "prompt": prompt, "stream": True, **PARAMS})
        with trio.fail_after(_REQUEST_S):
            while not isinstance(event := await self._next(), h11.EndOfMessage):
                if isinstance(event, h11.Response) and event.status_code != 200:
                    raise OmniError(f"the server answered {event.status_code}")
                if isinstance(event, h11.Data):
                    first_at = first_at or time.perf_counter()
                    body += event.data
        self._http.start_next_cycle()
        total_s = time.perf_counter() - began_at
        return Answer(_text(bytes(body)), [], first_at - began_at, total_s)

    async def healthy(self, port: int) -> bool:
        """Whether ``/health`` says so. Raises OSError."""
        request = h11.Request(method="GET", target="/health", headers=[("host", f"{_HOST}:{port}")])
        await self._send_all(request, h11.EndOfMessage())
        return isinstance(response := await self._next(), h11.Response) and response.status_code == 200

    async def _send(self, port: int, asked: dict[str, Any]) -> None:
        body = msgspec.json.encode(asked)
        headers = [
            ("host", f"{_HOST}:{port}"),
            ("content-type", "application/json"),
            ("content-length", str(len(body))),
        ]
        request = h11.Request(method="POST", target="/v1/completions", headers=headers)
        await self._send_all(request, h11.Data(data=body), h11.EndOfMessage())

    async def _send_all(self, *events: h11.Event) -> None:
        parts = [self._http.send(event) for event in events]
        await self._stream.send_all(b"".join(part for part in parts if part))

    async def _next(self) -> Any:
        while (event := self._http.next_event()) is h11.NEED_DATA:
            self._http.receive_data(await self._stream.receive_some(1 << 16))
        return event


class _Choice(msgspec.Struct):
    text: str


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []


_CHUNKS = msgspec.json.Decoder(_Chunk)


def _text(body: bytes) -> str:
    """What was said, after the measuring. Raises OmniError for a stream that did not come to its end."""
    lines = [line.removeprefix(b"data: ") for line in body.split(b"\n\n") if line]
    if not lines or lines[-1].strip() != b"[DONE]":
        raise OmniError(f"a stream broke off: {lines[-1:]}")
    return "".join(choice.text for line in lines[:-1] for choice in _CHUNKS.decode(line).choices)


@attrs.frozen
class HttpLoad:
    """What ``Pair`` takes for a front-end: a server on loopback. ``cpu_s``: what the server has used so far."""

    port: int
    model: str
    cpu_s: Callable[[], float]

    async def ready(self) -> None:
        """Wait until it serves. No deadline: the caller has one."""
        while True:
            try:
                stream = await trio.open_tcp_stream(_HOST, self.port)
                async with stream:
                    if await _Connection(stream).healthy(self.port):
                        return
            except (OSError, h11.RemoteProtocolError):
                pass  # it does not listen yet, or gives up its start: its own end is seen by who started it
            await trio.sleep(_LOOK_S)

    async def run(self, job: Job) -> Round:
        """Raises as ``answer`` does."""
        streams = [await trio.open_tcp_stream(_HOST, self.port) for _ in range(job.concurrent)]
        try:
            asks = [partial(_Connection(stream).answer, self.port, self.model) for stream in streams]
            return await run_round(job, asks, self.cpu_s)
        finally:
            for stream in streams:
                await trio.aclose_forcefully(stream)
