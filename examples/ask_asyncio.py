"""Several questions at once on uvloop: ``python examples/ask_asyncio.py "What is one plus two?" "…"``"""

import asyncio
import sys

import uvloop
from omni_actors_asyncio import AsyncOmni

from omni_actors import OmniError


async def ask(omni: AsyncOmni, question: str) -> str:
    text, seconds = "", 0.0
    # Leaving this block, for whatever reason, aborts the request in every engine. So does cancelling the task.
    async with omni.generate_omni(question, timeout_s=30) as stream:
        async for output in stream:
            if output.modality == "text":
                text += output.text
            elif output.audio is not None:
                seconds += len(output.audio.numpy()) / output.sample_rate
    return f"{question} {text} ({seconds:.1f} s of speech)"


async def main(questions: list[str]) -> None:
    async with AsyncOmni("tiny-omni") as omni:
        for answer in await asyncio.gather(*(ask(omni, question) for question in questions)):
            print(answer)


if __name__ == "__main__":
    try:
        uvloop.run(main(sys.argv[1:] or ["What is two plus three?", "What is nine minus four?"]))
    except OmniError as error:
        sys.exit(str(error))
