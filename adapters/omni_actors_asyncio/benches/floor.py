"""The floor of ``bench asyncio`` as a program: ``python -m omni_actors_asyncio.benches.floor BENCH FOLDER``.

vLLM's AsyncLLM in a thread and on a uvloop of its own, used from the main thread's uvloop. What it costs more than the
same AsyncLLM in the main thread is what any front-end costs whose engine client lives in another thread. Nothing is
here but what a correct crossing takes: requests go one way and outputs the other, both in batches, and whoever leaves
early has aborted. Attaches itself to the engine that ``ours`` has started.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from functools import partial
from threading import Thread
from typing import TYPE_CHECKING, Any, Generic, TextIO, TypeVar

import uvloop

from omni_actors.cli.benches._reference import attached, on_uvloop, run_rounds
from omni_actors.cli.benches._sharing import FLOOR_INDEX
from omni_actors.cli.benches._work import pipeline

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    from vllm.v1.engine.output_processor import RequestOutputCollector

    _Ask = Callable[[], Awaitable[None]]

__all__ = ["Threaded", "main"]

_ASKS = 8
"""Requests in a batch, as in AsyncOmni: one by one the threads contend for each, all at once the engine waits."""

T = TypeVar("T")


def main() -> None:
    """Run until stdin ends."""
    on_uvloop(_serve)


async def _serve(loop: Any, bench: str, folder: Path, channel: TextIO) -> None:
    (stage,) = pipeline(bench).stages
    llm = Threaded(loop, partial(attached, stage, folder, FLOOR_INDEX))
    await llm.start()
    try:
        await run_rounds(loop, [llm], channel)
    finally:
        llm.stop()


class _Batches(Generic[T]):
    """What leaves one loop's thread, gathered: sent when ``most`` are there, or at the end of the loop's pass.

    Owned by that thread. ``send`` crosses.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, send: Callable[[list[T]], object], most: int | None) -> None:
        self._loop, self._send, self._most = loop, send, most
        self._items: list[T] = []

    def add(self, item: T) -> None:
        self._items.append(item)
        if len(self._items) == self._most:
            self._flush()
        elif len(self._items) == 1:
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        items, self._items = self._items, []
        if items:
            self._send(items)


class Threaded:
    """As much of an EngineClient as ``run_rounds`` uses: an AsyncLLM that ``make`` makes in a thread of its own.

    Used in ``loop`` only. Errors of the engine's, and of one request's, leave ``generate``.
    """

    model_config: Any
    renderer: Any

    def __init__(self, loop: asyncio.AbstractEventLoop, make: Callable[[], Any]) -> None:
        self._loop, self._ready = loop, Future[Any]()
        self._thread = Thread(target=self._run, args=(make,), name="engine client")

    async def start(self) -> None:
        """Raises what ``make`` raises. Waits without a deadline: the benchmark has one for its front-ends."""
        self._thread.start()
        llm = await asyncio.wrap_future(self._ready)
        self.model_config, self.renderer = llm.model_config, llm.renderer

    def stop(self) -> None:
        """Blocks until the thread has ended; the benchmark kills a front-end that does not."""
        self._there.call_soon_threadsafe(self._asks.put_nowait, None)
        self._thread.join()

    async def generate(self, prompt: Any, params: Any, request_id: str, **more: Any) -> AsyncIterator[Any]:
        """See vLLM's. ``more``: of its ``add_request``.

        Whatever ends it before the last output posts the abort and waits for nothing.
        """
        from vllm.v1.engine.output_processor import RequestOutputCollector

        reader, finished = RequestOutputCollector(params.output_kind, request_id), False
        self._inward.add(partial(self._submit, reader, prompt, params, more))
        try:
            while not finished:
                output = reader.get_nowait() or await reader.get()
                finished = output.finished
                yield output
        finally:
            if not finished:
                self._inward.add(partial(self._llm.abort, request_id))

    # ------------------------------------------------------------------ in the engine client's thread

    def _run(self, make: Callable[[], Any]) -> None:
        self._there: asyncio.AbstractEventLoop = uvloop.new_event_loop()
        self._there.run_until_complete(self._live(make))
        self._there.close()

    async def _live(self, make: Callable[[], Any]) -> None:
        # Bounded by the requests of a round, which are bounded by the benchmark.
        self._asks: asyncio.Queue[list[_Ask] | None] = asyncio.Queue()
        self._inward = _Batches(self._loop, self._send_inward, _ASKS)
        self._outward = _Batches(self._there, self._send_outward, None)
        try:
            self._llm = make()
        except BaseException as error:
            self._ready.set_exception(error)
            return
        self._ready.set_result(self._llm)
        while (asks := await self._asks.get()) is not None:
            for ask in asks:  # in order: no abort overtakes its request
                await ask()
        self._llm.shutdown()

    async def _submit(self, reader: RequestOutputCollector, prompt: Any, params: Any, more: dict[str, Any]) -> None:
        deliver = partial(self._hand_over, reader)
        try:
            collector = await self._llm.add_request(reader.request_id, prompt, params, **more)
            if (early := collector.get_nowait()) is not None:
                deliver(early)
        except Exception as error:
            deliver(error)
        else:
            collector.put = deliver

    def _hand_over(self, reader: RequestOutputCollector, output: Any) -> None:
        self._outward.add((reader, output))

    # ------------------------------------------------------------------ the crossings

    def _send_inward(self, asks: list[_Ask]) -> None:
        self._there.call_soon_threadsafe(self._asks.put_nowait, asks)

    def _send_outward(self, outputs: list[tuple[RequestOutputCollector, Any]]) -> None:
        self._loop.call_soon_threadsafe(_deliver, outputs)


def _deliver(batch: list[tuple[RequestOutputCollector, Any]]) -> None:
    for reader, output in batch:
        reader.put(output)


if __name__ == "__main__":
    main()
