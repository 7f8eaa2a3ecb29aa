"""``omni-actors serve``: vLLM's own OpenAI server on AsyncOmni, with the omni routes in front of it.

``serve(options)`` runs it until a signal. For who embeds: ``application(omni, options)`` is the whole app, on asyncio;
``mounted(omni)`` is the same in a trio program; ``routes(door)`` are the omni routes alone. What is for trio needs
trio-asyncio, and is loaded when first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ._application import application
from ._door import Door
from ._limits import HttpLimits
from ._options import ServeOptions
from ._routes import routes
from ._run import serve

if TYPE_CHECKING:
    from ._loop_in_trio import asyncio_loop as asyncio_loop
    from ._mount import mounted as mounted
    from ._mount import on_trio as on_trio

_ON_TRIO = {"asyncio_loop": "_loop_in_trio", "mounted": "_mount", "on_trio": "_mount"}

__all__ = [
    "Door", "HttpLimits", "ServeOptions", "application", "asyncio_loop", "mounted", "on_trio", "routes", "serve",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _ON_TRIO:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_ON_TRIO[name]}"), name)
