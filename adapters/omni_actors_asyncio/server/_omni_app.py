"""vLLM-Omni's own OpenAI app on a ModelOmni: its routes and its state as they are.

The order of the steps is that of vLLM-Omni's ``omni_run_server_worker``, which would also make an AsyncOmni of its own.
In front of its routes stand two of ours: ``/ready`` and ``/v1/omni/abort``.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from starlette.routing import Route

from ._http import Endpoint
from ._routes_omni import Abort, Ready

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import AsyncIterator

    from omni_actors_asyncio.drop_in import ModelOmni

    from ._door import Door

__all__ = ["omni_app"]

_REPLACED = (("/v1/chat/completions", "POST"), ("/v1/chat/completions/batch", "POST"), ("/v1/models", "GET"))
"""vLLM's routes that vLLM-Omni has its own for; and ``/health``."""


async def omni_app(omni: ModelOmni, args: Namespace, door: Door) -> Any:
    """A FastAPI app, with its lifespan; runs in the loop that this is called in."""
    from vllm_omni.config.endpoint_policy import shutdown_unsupported_routes
    from vllm_omni.entrypoints.openai import api_server as theirs
    from vllm_omni.entrypoints.openai.storage import STORAGE_MANAGER
    from vllm_omni.entrypoints.serve.profile.utils import _should_enable_profiler_endpoints

    app = theirs.build_openai_app(args, await omni.get_supported_tasks())
    app.state.api_server_count = 1
    for path, method in (*_REPLACED, ("/health", "GET")):
        theirs.remove_route_from_app(app, path, {method})
    app.include_router(theirs.router)
    theirs._register_omni_exception_handlers(app)
    await theirs.omni_init_app_state(omni, app.state, args)
    shutdown_unsupported_routes(app, omni.endpoint_restrictions)
    await STORAGE_MANAGER.start()
    if _should_enable_profiler_endpoints(omni.stage_configs):
        for path in ("/start_profile", "/stop_profile"):
            theirs.remove_route_from_app(app, path, {"POST"})
        app.include_router(theirs.profiler_router)
    app.router.routes[:0] = [
        Route("/ready", Endpoint(Ready(door)), methods=["GET"], name="ready"),
        Route("/v1/omni/abort", Endpoint(Abort(door)), methods=["POST"], name="omni_abort"),
    ]
    _end_with(app, ("openai_serving_video", "openai_serving_speech"))
    return app


def _end_with(app: Any, names: tuple[str, ...]) -> None:
    """What vLLM-Omni's server shuts down when it ends."""
    theirs = app.router.lifespan_context

    @asynccontextmanager
    async def lifespan(app: Any) -> AsyncIterator[Any]:
        try:
            async with theirs(app) as state:
                yield state
        finally:
            for served in (getattr(app.state, name, None) for name in names):
                if served is not None:
                    served.shutdown()

    app.router.lifespan_context = lifespan
