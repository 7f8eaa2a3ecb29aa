"""How far a picture is, in the stream of a reader who lags: the latest news only, and every preview."""

from __future__ import annotations

from omni_actors.lifecycle import Kind, Terminal
from omni_actors.lifecycle.events import Output, StepChunk, TensorChunk, TextChunk
from omni_actors.runtime._stream import Stream
from omni_actors.wire.omni import Tensor

PREVIEW = Tensor("uint8", (1, 1, 3), b"abc")


def step(done, preview=None, index=0):
    return Output("r", "painter", "image", StepChunk(done=done, total=9, preview=preview), index)


def text(words):
    return Output("r", "thinker", "text", TextChunk(text=words))


async def unread(*outputs):
    stream = Stream("r", "k", 10_000)
    assert all(stream.push(output) for output in outputs)
    bytes_unread = stream.unread_bytes
    stream.close(Terminal(kind=Kind.FINISHED, request_id="r", stage="painter"))
    read = [output async for output in stream]
    assert bytes_unread == sum(output.payload.nbytes for output in read)
    return [getattr(output.payload, "done", output.text) for output in read]


async def test_the_latest_step_is_all_that_waits():
    assert await unread(step(1), step(2), step(3)) == [3]


async def test_a_preview_is_not_overtaken():
    assert await unread(step(1), step(2, PREVIEW), step(3), step(4)) == [2, 4]


async def test_steps_of_others_and_what_lies_between_stay():
    assert await unread(step(1), step(1, index=1), step(2), text("a"), step(3)) == [1, 1, 2, "a", 3]


async def test_the_picture_itself_takes_no_steps_place():
    picture = Output("r", "painter", "image", TensorChunk(tensors={"image": PREVIEW}, finish_reason="stop"))
    assert await unread(step(8), picture) == [8, ""]
    assert picture.image is PREVIEW
    assert step(1, PREVIEW).image is None
