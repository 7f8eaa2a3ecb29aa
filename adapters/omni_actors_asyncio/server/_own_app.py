"""The app of a pipeline without a vLLM stage in front: no completions, no tokenize; the omni routes, and chats.

Chats, with sound and pictures or without, go to the stage that takes the prompt as it would get them from Python.
Health, metrics, API keys and CORS are vLLM's, as in its own server.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import attrs

from ._door import Rendered
from ._refusals import HttpError

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Mapping

    from omni_actors_asyncio import AsyncOmni

    from ._door import Door

__all__ = ["PlainChats", "own_app"]

_NOT_SAMPLING = ("model", "messages", "stream", "stream_options", "user", "metadata", "store")


def own_app(omni: AsyncOmni, args: Namespace) -> Any:
    """A FastAPI app without the omni routes."""
    from fastapi import FastAPI
    from vllm.entrypoints.launchers.utils.server_utils import lifespan
    from vllm.entrypoints.serve.exception_handling.register import init_exception_handler
    from vllm.entrypoints.serve.instrumentator.health import router as health
    from vllm.entrypoints.serve.instrumentator.metrics import attach_router as attach_metrics
    from vllm.entrypoints.serve.middleware.register import init_entrypoints_middleware

    app = FastAPI(lifespan=lifespan, openapi_url=None if args.disable_fastapi_docs else "/openapi.json")
    app.root_path = args.root_path
    app.state.args, app.state.engine_client, app.state.log_stats = args, omni, False
    app.include_router(health)
    attach_metrics(app)
    _add_models(app, args.served_model_name or [args.model], args.model)
    init_exception_handler(app)
    init_entrypoints_middleware(args, app, ())
    return app


def _add_models(app: Any, names: list[str], root: str) -> None:
    created = int(time.time())
    cards = [
        {"id": name, "object": "model", "created": created, "owned_by": "omni_actors", "root": root} for name in names
    ]

    @app.get("/v1/models")  # type: ignore[untyped-decorator]
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": cards}


@attrs.frozen
class PlainChats:
    """A ``Door.render``: the messages as the prompt, what else is asked as sampling params, which the stage checks."""

    model: Callable[[str | None], str]

    @classmethod
    def at(cls, door: Door) -> Door:
        """The same door, with this."""
        return attrs.evolve(door, render=cls(door.model))

    async def __call__(self, fields: Mapping[str, Any]) -> Rendered:
        self.model(fields.get("model"))
        messages, options = fields.get("messages"), fields.get("stream_options") or {}
        if not isinstance(messages, list) or not messages or not all(isinstance(each, dict) for each in messages):
            raise HttpError(400, "messages is a list of messages", param="messages")
        if not isinstance(options, dict):
            raise HttpError(400, "stream_options is an object", param="stream_options")
        sampling = {name: value for name, value in fields.items() if name not in _NOT_SAMPLING and value is not None}
        if "max_completion_tokens" in sampling:
            sampling["max_tokens"] = sampling.pop("max_completion_tokens")
        return Rendered(prompt=messages, sampling=sampling or None, usage=bool(options.get("include_usage")))
