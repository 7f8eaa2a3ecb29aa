"""Trio inside an asyncio app's own loop: no second thread does any work, and no lock is needed between the two.

``python guest_mode.py``. A callback that the runtime calls while it starts writes into a list of the app's.
"""

from __future__ import annotations

import asyncio
import threading

from omni_actors_asyncio import AsyncOmni

QUESTIONS = ["What is two plus three?", "What is nine minus four?"]


async def answer(omni: AsyncOmni, question: str) -> str:
    async with omni.generate_omni(question, modalities=["text"]) as stream:
        return "".join([output.text async for output in stream])


async def main() -> None:
    started = []

    def on_event(event) -> None:
        assert threading.current_thread() is threading.main_thread()
        if event.kind == "ready":
            started.append(event.stage)

    async with AsyncOmni("tiny-omni", guest=True, on_event=on_event) as omni:
        print("started:", ", ".join(sorted(started)))
        for question, text in zip(QUESTIONS, await asyncio.gather(*(answer(omni, q) for q in QUESTIONS)), strict=True):
            print(question, text)


asyncio.run(main())
