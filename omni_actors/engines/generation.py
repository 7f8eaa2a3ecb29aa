"""GenerationEngine: hosts any batch function as a stage. ``python -m omni_actors.engines.generation``.

Two threads. This one works: it loads the class and runs the batch. The other (``_engine_io``) owns the socket and
the signals. A third comes for each call of one of the class's methods; this one only listens meanwhile.

The payload on stdin is a msgpack map: ``env``, ``address``, ``identity``, ``class`` (dotted path), ``args`` (its
keyword arguments), ``max_batch``, ``path`` (directories to import from, behind our own).

The process ends with 0 on Stop, SIGTERM or the end of its lifeline; with 1, and one last line on stderr that names
the class, if that cannot be started.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
import traceback
from typing import TYPE_CHECKING, Any, NoReturn

from omni_actors.engines._batcher import Batcher, Called, Inward, Status
from omni_actors.engines._engine_io import EngineIO
from omni_actors.engines._generator import Chunk, Generator, Item, Step, Unloadable, load_generator
from omni_actors.engines._lifeline import read_payload
from omni_actors.wire import omni as wire

if TYPE_CHECKING:
    import queue
    from collections.abc import Callable, Mapping

__all__ = ["Chunk", "Generator", "Item", "Step", "main"]


def main() -> NoReturn:
    """Run the engine. Never returns."""
    payload = read_payload()
    sys.path += [entry for entry in payload.get("path", ()) if entry not in sys.path]
    status = Status()
    io = EngineIO(payload["address"], payload["identity"], status)
    io.start()
    generator = _load(payload)
    max_batch = int(payload.get("max_batch", 8))
    ready = wire.Ready(capacity=max_batch)
    io.post(ready, wire.encode(ready))
    # What loading has made stays for good: a collection need not walk it again and again.
    gc.collect()
    gc.freeze()
    batcher = Batcher(
        generator,
        max_batch=max_batch,
        inbox=lambda: _next(io.inbox),
        post=io.post,
        status=status,
        aside=lambda work: _aside(work, io.inbox),
    )
    try:
        _work(io.inbox, batcher)
    except BaseException:
        traceback.print_exc(file=sys.stderr)
        os._exit(1)


def _load(payload: Mapping[str, Any]) -> Generator:
    try:
        return load_generator(payload["class"], payload["args"])
    except Unloadable as error:
        if not isinstance(error.__cause__, ImportError | AttributeError | None):
            traceback.print_exception(error.__cause__, file=sys.stderr)
        print(error, file=sys.stderr, flush=True)
        # The I/O thread may be inside a send: there is nothing to tidy that the end of the process does not.
        os._exit(1)


def _aside(work: Callable[[], Called], inbox: queue.SimpleQueue[Inward]) -> None:
    """Do this in a thread of its own, and put what comes of it into the inbox."""
    threading.Thread(target=lambda: inbox.put(work()), name="omni-call", daemon=True).start()


def _work(inbox: queue.SimpleQueue[Inward], batcher: Batcher) -> NoReturn:
    while True:
        # No deadline: an idle engine waits for work for as long as it lives, and Stop ends the process around it.
        batcher.take(inbox.get())
        while not batcher.idle:
            batcher.round()


def _next(inbox: queue.SimpleQueue[Inward]) -> Inward | None:
    return None if inbox.empty() else inbox.get_nowait()  # nobody else takes from it


if __name__ == "__main__":
    main()
