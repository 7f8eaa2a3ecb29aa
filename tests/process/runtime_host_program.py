"""A host to be killed, frozen or interrupted: three fake stages, one endless request; says on stdout how it goes."""

from __future__ import annotations

import json
import sys
import time

import attrs
import trio

from omni_actors import open_omni
from omni_actors.testing.rigs import SHORT, speech

LONG = {"max_tokens": 1_000_000}
DEADLINES = attrs.evolve(SHORT, silence_s=0.5, hang_s=2.0)


def say(words: str, **more: object) -> None:
    print(json.dumps({"said": words, "at": time.monotonic(), **more}), flush=True)


async def main(start_s: float) -> None:
    thinker = {"tokens": 1_000_000, "params": LONG, "deadlines": DEADLINES}

    def said(event) -> None:
        if (event.stage, event.kind) == ("vocoder", "ready"):
            say("the vocoder is ready")

    async with open_omni(speech(thinker=thinker, talker={"start_s": start_s}), on_event=said) as omni:
        async with omni.generate("hello") as stream:
            await anext(stream)
            say("it streams", pids=dict(omni.pids()))
            async for _ in stream:
                say("it streams on")


if __name__ == "__main__":
    trio.run(main, float(sys.argv[1]))
