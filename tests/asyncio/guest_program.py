"""A program whose loop has trio as its guest, with fake engine processes, and that does not close it properly.

What AsyncOmni is made of, without AsyncOmni: that would import vLLM, for seconds.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import threading

import uvloop
from omni_actors_asyncio._bridge import Bridge
from omni_actors_asyncio._hosts import GuestHost
from omni_actors_asyncio._loop import LoopTicket, Outboxes
from omni_actors_asyncio._stream import OmniStream
from omni_actors_asyncio._tenure import Owned
from omni_actors_asyncio._ticket import Ask

from omni_actors.testing.rigs import core, pipeline

SPEC = pipeline(core("llm", output="text", tokens=8_000, token_s=0.002, params={"max_tokens": None}))


async def begin():
    bridge = Bridge(Owned(SPEC), GuestHost())
    bridge.start()
    omni = await asyncio.wrap_future(bridge.opened)
    outbox = Outboxes(bridge, lambda _: None).of(asyncio.get_running_loop())
    ticket = LoopTicket(bridge, Ask(prompt="x"), outbox, limit=1 << 30)
    bridge.submit(ticket)
    stream = OmniStream(ticket, 2.0)
    await anext(stream)
    print(*omni.pids().values(), flush=True)
    return bridge, stream


def closed(new_loop) -> None:
    """The loop ends, and the program with it."""
    global kept
    loop = new_loop()
    kept = loop.run_until_complete(begin())
    loop.close()


def stopped(new_loop) -> None:
    """The loop is left as it is."""
    global kept
    loop = new_loop()
    kept = (loop, loop.run_until_complete(begin()))


def error(new_loop) -> None:
    global kept
    kept = new_loop().run_until_complete(begin())
    raise SystemExit(7)


def elsewhere(new_loop) -> None:
    """The loop runs on in a daemon thread, which the end of the program stops in the middle of anything."""
    loop, begun = new_loop(), threading.Event()

    def live() -> None:
        global kept
        kept = loop.run_until_complete(begin())
        begun.set()
        loop.run_forever()

    threading.Thread(target=live, daemon=True).start()
    assert begun.wait(60)


def busy(new_loop) -> None:
    """Until a signal comes."""
    signal.signal(signal.SIGINT, signal.default_int_handler)

    async def main() -> None:
        _, stream = await begin()
        async for _ in stream:
            pass

    new_loop().run_until_complete(main())


globals()[sys.argv[1]]({"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}[sys.argv[2]])
