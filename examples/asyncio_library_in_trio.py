"""An asyncio library inside a trio program: both use the one runtime that the program has open, in one thread.

``python asyncio_library_in_trio.py``. ``library`` stands for code that was written for vLLM's EngineClient.
"""

from __future__ import annotations

import trio
import trio_asyncio
from omni_actors_asyncio import AsyncOmni
from trio_asyncio import aio_as_trio

from omni_actors import open_omni


async def library(client, question: str) -> str:
    """Asyncio, and knows nothing of trio."""
    messages = [{"role": "user", "content": question}]
    async for output in client.generate(messages, {"temperature": 0.0}, "theirs"):
        answer = output.outputs[0].text
    return answer


async def ours(omni, question: str) -> None:
    async with omni.generate(question, modalities=["text"]) as stream:
        text = "".join([output.text async for output in stream])
    print("trio:", question, text)


async def main() -> None:
    async with open_omni("tiny-omni") as omni, trio_asyncio.open_loop(), trio.open_nursery() as nursery:
        nursery.start_soon(ours, omni, "What is two plus three?")
        async with aio_as_trio(AsyncOmni.over(omni)) as client:
            answer = await aio_as_trio(library)(client, "What is nine minus four?")
            print("asyncio: What is nine minus four?", answer)


trio.run(main)
