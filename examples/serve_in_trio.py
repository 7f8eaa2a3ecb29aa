"""A trio service of your own, with an OpenAI server in it: ``python examples/serve_in_trio.py 8000``

``/ask?question=What+is+two+plus+three`` is the service's own; ``/v1/…``, ``/ready`` and the others are mounted.
"""

import signal
import sys
from collections.abc import AsyncIterator

import trio
from hypercorn.config import Config
from hypercorn.trio import serve
from omni_actors_asyncio.server import mounted
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Mount, Route

from omni_actors import OmniError, OmniRuntime, PipelineSpec, open_omni


def service(omni: OmniRuntime, openai_app) -> Starlette:
    async def words(question: str) -> AsyncIterator[str]:
        # Whoever disconnects leaves this block, which aborts the request in every engine.
        async with omni.generate(question, modalities=["text"], timeout_s=30) as stream:
            async for output in stream:
                yield output.text

    async def ask(request: Request) -> StreamingResponse:  # trio, as all of this file
        return StreamingResponse(words(request.query_params.get("question", "What is one plus one?")))

    return Starlette(routes=[Route("/ask", ask), Mount("/", openai_app)])


async def stopped(omni: OmniRuntime) -> None:
    """Return when a signal has come and the engines are gone. Until then the server answers: 503 to what is new."""

    async def now() -> None:
        await anext(signals)
        omni.request_shutdown(drain_s=0, abort_s=0, stop_s=0)

    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        await anext(signals)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(now)
            await omni.shutdown()  # running requests finish, within the pipeline's drain_s
            nursery.cancel_scope.cancel()


async def main(port: str, pipeline: str | PipelineSpec = "tiny-omni") -> None:
    config = Config.from_mapping(bind=[f"127.0.0.1:{port}"])
    async with open_omni(pipeline) as omni, mounted(omni) as openai_app:
        await serve(service(omni, openai_app), config, shutdown_trigger=lambda: stopped(omni))


if __name__ == "__main__":
    try:
        trio.run(main, sys.argv[1] if len(sys.argv) > 1 else "8000")
    except OmniError as error:
        sys.exit(str(error))
