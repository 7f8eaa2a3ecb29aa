"""The server's life: bind, open the pipeline, build vLLM's app, serve, drain, close.

vLLM's server is used as it is: its app, its state, its uvicorn. Three things are ours: the omni routes, put in front of
its own; the stage's default sampling params as the server's; and signals, of which the second one counts too.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import attrs

from omni_actors import RuntimeClosed, ShutdownReport, UsageError
from omni_actors_asyncio import AsyncOmni

from ._door import Door
from ._options import ServeOptions, is_loopback, vllm_args
from ._routes import put_in_front
from ._signals import Signals
from ._vllm_chat import VllmChats

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import AsyncIterator, Callable, Coroutine


__all__ = ["Served", "serve"]

CLOSE_S = 5
"""For answers that are still being read when the engines are gone."""
_DEFAULTS = ("repetition_penalty", "presence_penalty", "frequency_penalty", "temperature", "top_k", "top_p", "min_p")


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
        self._omni = AsyncOmni(options.spec, on_event=options.on_event)
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
        if not hasattr(self._omni, "vllm_config"):
            await self._omni.close(drain_s=0)
            raise UsageError(f"pipeline {self.options.spec.name} has no vLLM stage that takes the prompt")
        return not self._signals.count

    async def _serve(self, sock: socket.socket) -> None:
        from vllm.entrypoints.launchers.api_server.entry import build_app, get_uvicorn_log_config, init_app_state
        from vllm.entrypoints.launchers.launcher import serve_http

        omni, args = self._omni, self._args
        tasks = await omni.get_supported_tasks()
        _use_stage_settings(omni, self.options, args)
        app = build_app(args, tasks, omni.model_config)
        await init_app_state(omni, app.state, args, tasks)
        put_in_front(app, self._door(app))
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

    def _door(self, app: Any) -> Door:
        return Door(
            omni=self._omni,
            models=tuple(self._args.served_model_name or [self._args.model]),
            makes_text=any(stage.output == "text" for stage in self.options.spec.stages),
            limits=self.options.limits,
            draining=lambda: self._drained is not None,
            render=VllmChats(lambda: app.state.openai_serving_chat),
        )

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
            self._drained = asyncio.ensure_future(self._omni.close())
            self._drained.add_done_callback(self._exit)
        else:
            self.options.say("stopping now")
            self._omni._bridge.request_close(drain_s=0, abort_s=0, stop_s=0)

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


def _use_stage_settings(omni: AsyncOmni, options: ServeOptions, args: Namespace) -> None:
    """vLLM's server fills what a client leaves out from the model's generation config; the stage's params go first.

    It looks for the reasoning parser in its own arguments; here it is one of the stage's engine arguments.
    """
    args.structured_outputs_config = omni.vllm_config.structured_outputs_config
    front = options.spec.stage(omni._front or "")
    defaults = {name: front.params[name] for name in _DEFAULTS if name in front.params}
    config = omni.model_config
    config.override_generation_config = {**defaults, **config.override_generation_config}
