"""``POST /v1/audio/speech``: what the pipeline answers to a text, as sound, while it is being made.

A pipeline that reads texts out answers with the text itself; tiny-omni answers sums. The sound is streamed: the first
bytes leave with the first samples. An error before them has its own status; one after them cuts the body off.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import attrs
import msgspec

from omni_actors import Kind

from ._audio import CONTENT_TYPES, Encoder, encoder, pcm16
from ._body import decoded
from ._door import Door
from ._refusals import ClientGone, HttpError

if TYPE_CHECKING:
    from omni_actors_asyncio import OmniStream

    from ._http import Exchange

__all__ = ["Speech"]


class _SpeechBody(msgspec.Struct):
    """OpenAI's fields. ``voice`` is taken as it comes: a pipeline has the voice that its stages were started with."""

    input: str
    model: str | None = None
    voice: object = None
    response_format: Literal["wav", "pcm", "flac", "mp3", "opus"] = "wav"
    speed: float = 1.0
    instructions: str | None = None
    stream_format: Literal["audio"] = "audio"


@attrs.frozen
class Speech:
    """The route. ``X-Sample-Rate`` says what pcm does not."""

    door: Door

    async def __call__(self, exchange: Exchange) -> None:
        asked = self._checked(decoded(await exchange.body(self.door.limits.body_bytes), _SpeechBody))
        with self.door.keys.one(exchange.key):
            await exchange.unless_gone(self._speak(asked, exchange))

    def _checked(self, asked: _SpeechBody) -> _SpeechBody:
        self.door.model(asked.model)
        if not asked.input.strip():
            raise HttpError(400, "the input is empty", param="input")
        if len(asked.input) > self.door.limits.input_chars:
            words = f"the input has {len(asked.input)} characters; {self.door.limits.input_chars} are allowed"
            raise HttpError(400, words, param="input")
        if asked.speed != 1.0:
            raise HttpError(400, "this pipeline speaks at its own speed: 1.0", param="speed")
        if asked.instructions:
            raise HttpError(400, "this pipeline's voice takes no instructions", param="instructions")
        return asked

    async def _speak(self, asked: _SpeechBody, exchange: Exchange) -> None:
        stream = self.door.omni.generate_omni(
            asked.input,
            request_id=exchange.request_id,
            modalities=["audio"],
            timeout_s=self.door.limits.request_s,
        )
        async with stream:
            sound = await self._copy(stream, asked.response_format, exchange)
        if stream.terminal is None or stream.terminal.kind is not Kind.FINISHED:
            if exchange.started:
                raise ClientGone  # aborted from elsewhere: the body stays incomplete, so that the client sees it
            raise HttpError(409, "the request was aborted")
        if sound is None:
            raise HttpError(500, "the pipeline made no sound of this input")
        await exchange.write(sound.end())
        await exchange.end()

    async def _copy(self, stream: OmniStream, form: str, exchange: Exchange) -> Encoder | None:
        sound: Encoder | None = None
        async for output in stream:
            if output.audio is None:
                continue
            if sound is None:
                sound = encoder(form, output.sample_rate)
                rate = {"x-sample-rate": str(output.sample_rate)}
                await exchange.begin(CONTENT_TYPES[form], headers=rate)
            await exchange.write(sound.add(pcm16(output.audio)))
        return sound
