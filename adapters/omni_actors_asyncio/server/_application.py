"""vLLM's OpenAI app on an AsyncOmni, with the omni routes in front of its own.

vLLM's app and its state are used as they are. Ours are the omni routes, and the front stage's settings as the server's.
What serves the app (uvicorn, hypercorn) and what ends it is the caller's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from ._door import Door
from ._gate import guard
from ._openapi import describe
from ._options import ServeOptions, vllm_args
from ._own_app import PlainChats, own_app
from ._routes import put_in_front
from ._vllm_chat import VllmChats

if TYPE_CHECKING:
    from argparse import Namespace

    from omni_actors_asyncio import AsyncOmni

__all__ = ["application"]

_DEFAULTS = ("repetition_penalty", "presence_penalty", "frequency_penalty", "temperature", "top_k", "top_p", "min_p")


async def application(omni: AsyncOmni, options: ServeOptions, args: Namespace | None = None) -> Any:
    """A FastAPI app, which runs in the loop that this is called in; its lifespan is the caller's to run.

    ``args``: vLLM's arguments, if they were made before; of ``options`` the host and the port have no effect here.
    Where no vLLM stage takes the prompt, the app is our own (see ``_own_app``); that of a model of vLLM-Omni is
    vLLM-Omni's (see ``_omni_app``). Raises UsageError for options that would have no effect.
    """
    args = args or vllm_args(options)
    door = _door(omni, options, args)
    if hasattr(omni, "stage_configs"):
        app = await _app_of_a_model(omni, args, door)
        guard(app, options.limits)
        return app
    if hasattr(omni, "vllm_config"):
        app = await _vllm_app(omni, options, args)
        door = attrs.evolve(door, render=VllmChats(lambda: app.state.openai_serving_chat))
    else:
        app, door = own_app(omni, args), PlainChats.at(door)
    put_in_front(app, door)
    describe(app)
    guard(app, options.limits)
    return app


async def _app_of_a_model(omni: Any, args: Namespace, door: Door) -> Any:
    from ._omni_app import omni_app

    return await omni_app(omni, args, door)


async def _vllm_app(omni: AsyncOmni, options: ServeOptions, args: Namespace) -> Any:
    from vllm.entrypoints.launchers.api_server.entry import build_app, init_app_state

    tasks = await omni.get_supported_tasks()
    _use_stage_settings(omni, options, args)
    app = build_app(args, tasks, omni.model_config)
    await init_app_state(omni, app.state, args, tasks)
    return app


def _door(omni: AsyncOmni, options: ServeOptions, args: Namespace) -> Door:
    return Door(
        omni=omni,
        models=tuple(args.served_model_name or [args.model]),
        limits=options.limits,
    )


def _use_stage_settings(omni: AsyncOmni, options: ServeOptions, args: Namespace) -> None:
    """vLLM's server fills what a client leaves out from the model's generation config; the stage's params go first.

    It looks for the reasoning parser in its own arguments; here it is one of the stage's engine arguments.
    """
    args.structured_outputs_config = omni.vllm_config.structured_outputs_config
    front = options.spec.stage(omni.front_stage or "")
    defaults = {name: front.params[name] for name in _DEFAULTS if name in front.params}
    config = omni.model_config
    config.override_generation_config = {**defaults, **config.override_generation_config}
