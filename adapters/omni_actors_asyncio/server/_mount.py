"""The server's routes inside a trio program: ``mounted(omni)`` gives an ASGI app for a server that runs on trio.

The app is written for asyncio. It runs on trio-asyncio's loop, in the thread and under the nurseries of the program
that mounts it; each of its calls is a task there, which ends before its caller does. ``receive`` and ``send`` cross one
message at a time, so that a client that reads slowly holds up its own answer and nothing else. The runtime, the server
and its signals are the program's.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from trio_asyncio import aio_as_trio, trio_as_aio

from omni_actors_asyncio import AsyncOmni

from ._application import application
from ._limits import HttpLimits
from ._loop_in_trio import asyncio_loop
from ._options import ServeOptions

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping, Sequence

    from omni_actors import OmniRuntime

    Message = MutableMapping[str, Any]
    Receive = Callable[[], Awaitable[Message]]
    Send = Callable[[Message], Awaitable[None]]
    App = Callable[[Message, Receive, Send], Awaitable[None]]

__all__ = ["mounted", "on_trio"]


@asynccontextmanager
async def mounted(
    omni: OmniRuntime, *, extra: Sequence[str] = (), limits: HttpLimits | None = None
) -> AsyncIterator[App]:
    """vLLM's OpenAI app and the omni routes on this runtime: ``async with mounted(omni) as app: await serve(app, …)``.

    ``extra``: options of vLLM's server, as on its command line; those of its sockets have no effect. A lifespan that
    the trio server offers is answered and means nothing: the app's own is the block. While the runtime shuts down the
    app answers on, with 503 to what is new; stop the server after it. Leaving the block aborts what is running in it.
    Raises UsageError; the body's exception leaves as itself.
    """
    options = ServeOptions(spec=omni.spec, extra=tuple(extra), limits=limits or HttpLimits())
    async with asyncio_loop(), aio_as_trio(AsyncOmni.over(omni)) as client:
        app = await aio_as_trio(application)(client, options)
        async with aio_as_trio(app.router.lifespan_context(app)):
            yield on_trio(app)


def on_trio(app: App) -> App:
    """An asyncio ASGI app as one for trio; to be called inside of ``asyncio_loop``.

    Cancelled, it cancels the app's task and waits for it: as long as the app takes, which for ours is ``abort_s``.
    """

    async def on_trio(scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _live(receive, send)
        else:
            await aio_as_trio(app)(scope, trio_as_aio(receive), trio_as_aio(send))

    return on_trio


async def _live(receive: Receive, send: Send) -> None:
    """A server's lifespan: its start and its end are none of ours."""
    for step in ("startup", "shutdown"):
        await receive()
        await send({"type": f"lifespan.{step}.complete"})
