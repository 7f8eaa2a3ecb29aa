"""The server's life: bind, open the pipeline, build vLLM's app, serve, drain, close.

vLLM's server is used as it is: its app (see ``_application``), its uvicorn. Ours are signals, of which the second one
counts too.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import attrs

from omni_actors import RuntimeClosed, ShutdownReport, UsageError
from omni_actors_asyncio import AsyncOmni

from ._application import application
from ._options import ServeOptions, is_loopback, vllm_args
from ._signals import Signals

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import AsyncIterator, Callable, Coroutine


__all__ = ["Served", "serve"]

CLOSE_S = 5
"""For answers that are still being read when the engines are gone."""


@attrs.frozen
class Served:
    """How it went. ``started``: whether it came to serve at all; ``report``: the end of the engines."""

    started: bool
    report: ShutdownReport


def serve(options: ServeOptions) -> Served:
    """Serve until a signal. Blocking, in the main thread.

    Raises UsageError (an option, a port in use, no vLLM stage), StartupFailed and what else ``open_omni`` raises.
    """
    args = vllm_args(options)
    address, sock = _bound(args)
    try:
        return _runner()(_Server(options, args, address).run(sock))
    finally:
        sock.close()


def _runner() -> Callable[[Coroutine[Any, Any, Served]], Served]:
    try:
        import uvloop
    except ImportError:
        return asyncio.run
    run: Callable[[Coroutine[Any, Any, Served]], Served] = uvloop.run
    return run


class _Server:
    """One server, in its loop. ``_drained`` is there from the first signal on, if the engines were up."""

    def __init__(self, options: ServeOptions, args: Namespace, address: str) -> None:
        self.options = options
        self._args, self._address = args, address
        self._omni = AsyncOmni(
            options.spec,
            on_event=options.on_event,
            disable_log_stats=args.disable_log_stats,
            served_model_name=(args.served_model_name or [None])[0],
        )
        self._signals = Signals(self._hit)
        self._uvicorn: Any = None
        self._opening: asyncio.Future[Any] | None = None
        self._drained: asyncio.Future[ShutdownReport] | None = None

    async def run(self, sock: socket.socket) -> Served:
        self._signals.listen()
        try:
            if not await self._opened():
                return Served(False, await self._omni.close(drain_s=0))
            try:
                await self._serve(sock)
            except RuntimeClosed:
                if self._drained is None:
                    raise
            finally:
                report = await self._omni.close(drain_s=0)
            return Served(True, report)
        finally:
            self._signals.close()

    async def _opened(self) -> bool:
        """False if a signal came first."""
        self._opening = asyncio.ensure_future(self._omni.__aenter__())
        if self._signals.count:
            self._opening.cancel()
        await asyncio.wait((self._opening,))
        if self._opening.cancelled():
            return False
        self._opening.result()
        return not self._signals.count

    async def _serve(self, sock: socket.socket) -> None:
        from vllm.entrypoints.launchers.api_server.entry import get_uvicorn_log_config
        from vllm.entrypoints.launchers.launcher import serve_http

        args = self._args
        app = await application(self._omni, self.options, args)
        self._wrap_lifespan(app)
        log_config = get_uvicorn_log_config(args)
        closing = await serve_http(
            app,
            sock=sock,
            enable_ssl_refresh=args.enable_ssl_refresh,
            host=args.host,
            port=args.port,
            log_level=args.uvicorn_log_level,
            access_log=not args.disable_uvicorn_access_log,
            ssl_keyfile=args.ssl_keyfile,
            ssl_certfile=args.ssl_certfile,
            ssl_ca_certs=args.ssl_ca_certs,
            ssl_cert_reqs=args.ssl_cert_reqs,
            ssl_ciphers=args.ssl_ciphers,
            h11_max_incomplete_event_size=args.h11_max_incomplete_event_size,
            h11_max_header_count=args.h11_max_header_count,
            timeout_graceful_shutdown=CLOSE_S,
            **({} if log_config is None else {"log_config": log_config}),
        )
        await closing

    def _wrap_lifespan(self, app: Any) -> None:
        """Inside it vLLM's signal handlers are installed, and its server object is there."""
        theirs = app.router.lifespan_context

        @asynccontextmanager
        async def lifespan(app: Any) -> AsyncIterator[Any]:
            self._uvicorn = app.state.server
            self._signals.listen()
            if self._drained is not None:  # stopped while the app was being built
                self._drained.add_done_callback(self._exit)
            async with theirs(app) as state:
                self._say_ready()
                yield state

        app.router.lifespan_context = lifespan

    def _say_ready(self) -> None:
        say, name, address = self.options.say, self.options.spec.name, self._address
        say(f"{name} is served at {address} (an OpenAI base_url: {address}/v1)")
        if not is_loopback(self.options.host):
            say("anybody who reaches this host may use it: --api-key (after --) guards /v1 only")

    # ------------------------------------------------------------------ signals

    def _hit(self, count: int) -> None:
        if self._opening is None or not self._opening.done():
            self.options.say("interrupted: the start is given up")
            if self._opening is not None:
                self._opening.cancel()
        elif count == 1:
            self.options.say("stopping: finishing what is running (again: stop now)")
            # The server answers on until the engines are gone: each request has its end by then.
            self._omni.request_close()
            self._drained = asyncio.ensure_future(self._omni.close())
            self._drained.add_done_callback(self._exit)
        else:
            self.options.say("stopping now")
            self._omni.request_close(drain_s=0, abort_s=0, stop_s=0)

    def _exit(self, drained: asyncio.Future[ShutdownReport]) -> None:
        if not drained.cancelled():
            drained.exception()  # ``run`` raises it
        if self._uvicorn is not None:
            self._uvicorn.should_exit = True


def _bound(args: Namespace) -> tuple[str, socket.socket]:
    from vllm.entrypoints.launchers.launcher import setup_server

    try:
        _try_address(args)
        address, sock = setup_server(args, reuse_port=False)
    except OSError as error:
        where = args.uds or f"{args.host} port {args.port}"
        raise UsageError(f"cannot listen at {where}: {error.strerror or error}") from error
    except KeyError as error:
        raise UsageError(f"vLLM's server refuses its options: {error}") from error
    port = sock.getsockname()[1] if not args.uds else 0
    if not args.uds and args.port != port:  # 0 asks for any
        address, args.port = address.removesuffix(f":{args.port}") + f":{port}", port
    return address, sock


def _try_address(args: Namespace) -> None:
    """Raises OSError. vLLM forgets to close a socket that could not be bound."""
    if not args.uds:
        family = socket.AF_INET6 if ":" in args.host else socket.AF_INET
        with socket.socket(family, socket.SOCK_STREAM) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind((args.host, args.port))
