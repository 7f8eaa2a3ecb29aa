"""A pipeline of your own: two Python classes, each in its own process, with sentences going from one to the other."""

import time
from collections.abc import Iterator

import trio

from omni_actors import InputSpec, PipelineSpec, StageSpec, open_omni
from omni_actors.engines.generation import Chunk, Item


class Poet:
    """Runs in a process of its own, chunk by chunk; an abort takes effect between two of them."""

    def start(self, item: Item) -> Iterator[Chunk]:
        for word in f"{item.prompt} is a word. So is this one. And that is all.".split():
            time.sleep(0.05)  # thinking
            yield Chunk(meta={"text": f"{word} "})


class Shouter:
    """Gets one sentence at a time, while the poet still writes."""

    def start(self, item: Item) -> Iterator[Chunk]:
        yield Chunk(meta={"text": item.prompt.upper() + "! "})


def sentences(text: str, finished: bool) -> tuple[list[str], str]:  # the complete ones, and the rest to keep
    *complete, rest = text.split(". ")
    return (complete, "") if finished else (complete, rest)


def shout(upstream, request):  # the transform: the producer's sentence becomes the consumer's prompt
    return upstream["poet"].text


PIPELINE = PipelineSpec(
    name="own",
    stages=[
        StageSpec(name="poet", engine="generation", model="own_pipeline:Poet", output="text"),
        StageSpec(
            name="shouter",
            engine="generation",
            model="own_pipeline:Shouter",
            inputs=[InputSpec(stage="poet", mode="segments", split="own_pipeline:sentences")],
            transform="own_pipeline:shout",
            output="text",
        ),
    ],
)


async def main() -> None:
    async with open_omni(PIPELINE) as omni, omni.generate("Trio") as stream:
        async for output in stream:
            print(f"{output.stage:8} part {output.part}: {output.text}")


if __name__ == "__main__":
    trio.run(main)
