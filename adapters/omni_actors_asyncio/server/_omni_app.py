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
    from collections.abc import AsyncIterator, Sequence

    from omni_actors_asyncio.drop_in import ModelOmni

    from ._door import Door

__all__ = ["bare_app", "omni_app"]

_REPLACED = (
    ("/v1/chat/completions", "POST"), ("/v1/chat/completions/batch", "POST"), ("/v1/models", "GET"), ("/health", "GET"),
)  # fmt: skip
"""vLLM's routes that vLLM-Omni has its own for."""
_PROFILER = (("/start_profile", "POST"), ("/stop_profile", "POST"))


async def omni_app(omni: ModelOmni, args: Namespace, door: Door) -> Any:
    """A FastAPI app, with its lifespan; runs in the loop that this is called in."""
    from vllm_omni.config.endpoint_policy import shutdown_unsupported_routes
    from vllm_omni.entrypoints.openai import api_server as theirs
    from vllm_omni.entrypoints.openai.storage import STORAGE_MANAGER
    from vllm_omni.entrypoints.serve.profile.utils import _should_enable_profiler_endpoints

    app = bare_app(
        args, await omni.get_supported_tasks(), profiler=_should_enable_profiler_endpoints(omni.stage_configs)
    )
    await theirs.omni_init_app_state(omni, app.state, args)
    shutdown_unsupported_routes(app, omni.endpoint_restrictions)
    await STORAGE_MANAGER.start()
    app.router.routes[:0] = [
        Route("/ready", Endpoint(Ready(door)), methods=["GET"], name="ready"),
        Route("/v1/omni/abort", Endpoint(Abort(door)), methods=["POST"], name="omni_abort"),
    ]
    _end_with(app, STORAGE_MANAGER)
    return app


def bare_app(args: Namespace, tasks: Sequence[str], *, profiler: bool) -> Any:
    """vLLM-Omni's routes over vLLM's, with nothing behind them yet."""
    from vllm_omni.entrypoints.openai import api_server as theirs

    app = theirs.build_openai_app(args, tuple(tasks))
    app.state.api_server_count = 1
    replaced = _REPLACED + (_PROFILER if profiler else ())
    for path, method in replaced:
        theirs.remove_route_from_app(app, path, {method})
    app.include_router(theirs.router)
    if profiler:
        app.include_router(theirs.profiler_router)
    theirs._register_omni_exception_handlers(app)
    return app


def _end_with(app: Any, storage: Any) -> None:
    """What vLLM-Omni's server, or nobody, ends with its life. vLLM's lifespan takes the app's state away at its end."""
    theirs = app.router.lifespan_context
    served = (app.state.openai_serving_video, app.state.openai_serving_speech)

    @asynccontextmanager
    async def lifespan(app: Any) -> AsyncIterator[Any]:
        try:
            async with theirs(app) as state:
                yield state
        finally:
            for each in served:
                if each is not None:
                    each.shutdown()
            await storage.stop()

    app.router.lifespan_context = lifespan
