"""``POST /v1/audio/speech``: what the pipeline answers to a text, as sound, while it is being made.

A pipeline that reads texts out answers with the text itself; tiny-omni answers sums. The sound is streamed: the first
bytes leave with the first samples. An error before them has its own status; one after them cuts the body off, or is the
last event of a stream of events (``"stream_format": "sse"``).
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any, Literal

import attrs
import msgspec

from omni_actors import Kind

from ._audio import CONTENT_TYPES, Encoder, encoder, pcm16
from ._body import decoded
from ._door import Door
from ._http import SSE
from ._refusals import ClientGone, HttpError

if TYPE_CHECKING:
    from omni_actors import Output, Terminal

    from ._http import Exchange

__all__ = ["Speech", "SpeechBody"]


class SpeechBody(msgspec.Struct):
    """OpenAI's fields. ``voice`` is taken as it comes: a pipeline has the voice that its stages were started with.

    ``stream_format``: ``audio`` is the sound itself; ``sse`` is events with pieces of it, the last with the usage.
    """

    input: str
    model: str | None = None
    voice: Any = None
    response_format: Literal["mp3", "opus", "flac", "wav", "pcm"] = "mp3"
    speed: float = 1.0
    instructions: str | None = None
    stream_format: Literal["audio", "sse"] = "audio"


@attrs.frozen
class Speech:
    """The route. ``X-Sample-Rate`` says what pcm does not."""

    door: Door

    async def __call__(self, exchange: Exchange) -> None:
        asked = self._checked(decoded(await exchange.body(self.door.limits.body_bytes), SpeechBody))
        await exchange.unless_gone(self._speak(asked, exchange))

    def _checked(self, asked: SpeechBody) -> SpeechBody:
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

    async def _speak(self, asked: SpeechBody, exchange: Exchange) -> None:
        stream = self.door.omni.generate_omni(
            asked.input,
            request_id=exchange.request_id,
            modalities=["audio"],
            timeout_s=self.door.limits.request_s,
        )
        mouth = (_Events if asked.stream_format == "sse" else _Sound)(asked.response_format, exchange)
        async with stream:
            async for output in stream:
                if output.audio is not None:
                    await mouth.say(output)
        terminal = stream.terminal
        if terminal is None or terminal.kind is not Kind.FINISHED:
            if exchange.started:
                raise ClientGone  # aborted from elsewhere: the body stays incomplete, so that the client sees it
            raise HttpError(409, "the request was aborted")
        await mouth.end(terminal)


class _Sound:
    """The body is the sound."""

    content_type: str | None = None

    def __init__(self, form: str, exchange: Exchange) -> None:
        self._form, self._exchange = form, exchange
        self._encoder: Encoder | None = None

    async def say(self, output: Output) -> None:
        if self._encoder is None:
            self._encoder = encoder(self._form, output.sample_rate)
            rate = {"x-sample-rate": str(output.sample_rate)}
            await self._exchange.begin(self.content_type or CONTENT_TYPES[self._form], headers=rate)
        await self._write(self._encoder.add(pcm16(output.audio)))

    async def end(self, terminal: Terminal) -> None:
        if self._encoder is None:
            raise HttpError(400, "the pipeline has nothing to say to this input", param="input")
        await self._write(self._encoder.end())
        await self._finish(terminal)
        await self._exchange.end()

    async def _write(self, data: bytes) -> None:
        await self._exchange.write(data)

    async def _finish(self, terminal: Terminal) -> None:
        """Nothing to add: the sound is complete."""


class _Events(_Sound):
    """The body is events, as OpenAI names them."""

    content_type = SSE

    async def _write(self, data: bytes) -> None:
        if data:
            await self._exchange.event({"type": "speech.audio.delta", "audio": base64.b64encode(data).decode()})

    async def _finish(self, terminal: Terminal) -> None:
        asked, made = terminal.prompt_tokens, sum(len(r.token_ids) for rs in terminal.results.values() for r in rs)
        usage = {"input_tokens": asked, "output_tokens": made, "total_tokens": asked + made}
        await self._exchange.event({"type": "speech.audio.done", "usage": usage})
