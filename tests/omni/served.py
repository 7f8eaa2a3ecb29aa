"""vLLM-Omni's app on a ModelOmni, over HTTP, in a thread of its own."""

from __future__ import annotations

import asyncio
import socket
import threading
from concurrent.futures import Future
from contextlib import contextmanager

import httpx
import uvicorn

START_S = 120.0

__all__ = ["served"]


class _Server(uvicorn.Server):
    def __init__(self, config, ready):
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets=None):
        await super().startup(sockets)
        self._ready.set_result(self)


def _live(omni, sock, ready):
    from omni_actors_asyncio.server import ServeOptions, application

    async def live():
        app = await application(omni, ServeOptions(spec=omni._bridge.omni.spec))
        app.state.server = server = _Server(uvicorn.Config(app, log_level="error"), ready)
        await server.serve(sockets=[sock])

    try:
        asyncio.run(live())
    except BaseException as error:
        if not ready.done():
            ready.set_exception(error)
        raise


@contextmanager
def served(omni):
    """A client for it; ``http.base_url`` is where it is."""
    ready = Future()
    with socket.create_server(("127.0.0.1", 0)) as sock:
        thread = threading.Thread(target=_live, args=(omni, sock, ready))
        thread.start()
        server = ready.result(START_S)
        try:
            address = f"http://127.0.0.1:{sock.getsockname()[1]}"
            with httpx.Client(base_url=address, timeout=START_S, trust_env=False) as http:
                yield http
        finally:
            server.should_exit = True
            thread.join(START_S)
            assert not thread.is_alive()
