"""``POST /v1/chat/completions`` with ``"audio"`` or ``"image"`` among its modalities; any other chat is vLLM's own.

Whole: ``message.content`` is the text, ``message.audio`` has ``id``, ``data`` (base64 of a whole file), ``transcript``,
``expires_at``; ``message.images`` are parts of type ``image_url``, each with a data URL and its ``seed``. Streamed:
text in ``delta.content``, sound in ``delta.audio.data`` (base64 of pcm16), each picture in ``delta.images`` when it is
complete, mixed as they are made; the steps of the painting are comments (see ``_routes_images``). The ``data``, put
together, are one valid base64 text; the ``id`` comes with the first of them, the ``transcript`` with the last. The
sample rate is in ``audio.sample_rate`` (not OpenAI's: there it is always 24,000 Hz).
"""

from __future__ import annotations

import asyncio
import base64
import time
from typing import TYPE_CHECKING, Any

import attrs

from omni_actors import Kind
from omni_actors.lifecycle.events import StepChunk

from ._audio import encoder, pcm16, wav
from ._body import plain
from ._chat_asked import Chat, read_chat, wants_more_than_text
from ._http import SSE, Endpoint, Exchange, replay
from ._pictures import content_type, encoded_picture
from ._refusals import HttpError
from ._routes_images import note_step

if TYPE_CHECKING:
    from omni_actors import Output, Terminal, TextChunk
    from omni_actors_asyncio import OmniStream

    from ._door import Door
    from ._http import Message, Receive, Send

__all__ = ["MediaChat"]

_MARK = b'"modalities"'
_UNIT = 6
"""Bytes of sound that go out together: whole samples (2) and whole base64 groups (3)."""


class MediaChat:
    """An ASGI app in front of vLLM's own chat route; without one, for all chats."""

    def __init__(self, door: Door, chat_app: Any) -> None:
        self._door, self._chat_app = door, chat_app

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        theirs: list[bytes] = []

        async def look(exchange: Exchange) -> None:
            body = await exchange.body(self._door.limits.body_bytes)
            ours = self._chat_app is None
            document = plain(body) if ours or _MARK in body else None
            if ours or wants_more_than_text(document):
                await exchange.unless_gone(self._converse(document, exchange))
            else:
                theirs.append(body)

        await Endpoint(look)(scope, receive, send)
        if theirs:
            await self._chat_app(scope, replay(theirs[0], receive), send)

    async def _converse(self, document: Any, exchange: Exchange) -> None:
        chat = await read_chat(document, self._door)
        identity = f"chatcmpl-{exchange.request_id}"
        stream = self._door.omni.generate_omni(
            chat.rendered.prompt,
            chat.rendered.sampling,
            request_id=identity,
            modalities=self._wanted(chat),
            timeout_s=self._door.limits.request_s,
            priority=chat.rendered.priority,
            **chat.rendered.options,
        )
        async with stream:
            reply = _Streamed(identity, chat, exchange) if chat.stream else _Whole(identity, chat, exchange)
            await reply.copy(stream)

    def _wanted(self, chat: Chat) -> list[str]:
        """The text is wanted too, where there is one: a transcript belongs to every sound."""
        return list(dict.fromkeys((*chat.modalities, *(("text",) if self._door.makes("text") else ()))))


@attrs.define
class _Said:
    """What it has said so far. ``pcm``: the sound, or what of it has not gone out yet."""

    texts: list[str] = attrs.field(factory=list)
    pcm: bytearray = attrs.field(factory=bytearray)
    sample_rate: int = 0
    tokens: int = 0
    finish_reason: str | None = None
    sounded: bool = False

    def take(self, output: Output) -> None:
        if output.audio is not None:
            self.pcm += pcm16(output.audio)
            self.sample_rate = output.sample_rate
        elif output.modality == "text":
            chunk: TextChunk = output.payload  # type: ignore[assignment]
            self.texts.append(chunk.text)
            self.tokens += len(chunk.token_ids)
            self.finish_reason = chunk.finish_reason or self.finish_reason


class _Reply:
    """What both kinds of answer share."""

    def __init__(self, identity: str, chat: Chat, exchange: Exchange) -> None:
        self._id, self._chat, self._exchange = identity, chat, exchange
        self._created = int(time.time())
        self._said = _Said()
        self._pictures = 0

    async def _image(self, output: Output) -> dict[str, Any]:
        wish, meta = self._chat.image, output.payload.meta  # type: ignore[union-attr]  # it has an image
        data = await asyncio.to_thread(encoded_picture, output.image, wish.form, wish.output_compression)
        url = f"data:{content_type(wish.form)};base64,{base64.b64encode(data).decode()}"
        number, self._pictures = self._pictures, self._pictures + 1
        return {"type": "image_url", "image_url": {"url": url}, "index": number, "seed": meta.get("seed")}

    def _envelope(self, kind: str, choices: list[Any]) -> dict[str, Any]:
        model = self._chat.model
        return {"id": self._id, "object": kind, "created": self._created, "model": model, "choices": choices}

    def _usage(self, terminal: Terminal) -> dict[str, int]:
        asked, made = terminal.prompt_tokens, self._said.tokens
        return {"prompt_tokens": asked, "completion_tokens": made, "total_tokens": asked + made}

    def _last_words(self) -> dict[str, Any]:
        """The sound is not kept, so that no later request can refer to it: it expires at once."""
        return {"transcript": "".join(self._said.texts), "expires_at": self._created}

    def _reason(self, terminal: Terminal) -> str:
        if terminal.kind is not Kind.FINISHED:
            return "abort"
        return self._said.finish_reason or "stop"


class _Whole(_Reply):
    async def copy(self, stream: OmniStream) -> None:
        images = []
        async for output in stream:
            self._said.take(output)
            if output.image is not None:
                images.append(await self._image(output))
        terminal = stream.terminal
        assert terminal is not None
        choice = {
            "index": 0,
            "message": self._message() | ({"images": images} if images else {}),
            "logprobs": None,
            "finish_reason": self._reason(terminal),
        }
        answer = self._envelope("chat.completion", [choice])
        await self._exchange.json(answer | {"usage": self._usage(terminal)})

    def _message(self) -> dict[str, Any]:
        content = "".join(self._said.texts) if "text" in self._chat.modalities else None
        return {"role": "assistant", "content": content, "refusal": None, "audio": self._audio()}

    def _audio(self) -> dict[str, Any] | None:
        said = self._said
        if not said.sample_rate:
            return None
        data = base64.b64encode(self._file(bytes(said.pcm))).decode()
        audio = {"id": f"audio-{self._id}", "data": data, "sample_rate": said.sample_rate}
        return audio | self._last_words()

    def _file(self, pcm: bytes) -> bytes:
        if self._chat.form == "wav":
            return wav(pcm, self._said.sample_rate)
        sound = encoder(self._chat.form, self._said.sample_rate)
        return sound.add(pcm) + sound.end()


class _Streamed(_Reply):
    async def copy(self, stream: OmniStream) -> None:
        async for output in stream:
            if not self._exchange.started:
                await self._exchange.begin(SSE, headers={"cache-control": "no-store"})
                await self._delta({"role": "assistant", "content": ""})
            await self._send(output)
        if not self._exchange.started:
            raise HttpError(409, "the request was aborted before it had said anything")
        assert stream.terminal is not None
        await self._finish(stream.terminal)

    async def _send(self, output: Output) -> None:
        if isinstance(output.payload, StepChunk):
            await note_step(output, self._exchange)
            return
        if output.image is not None:
            await self._delta({"images": [await self._image(output)]})
            return
        said = self._said
        said.take(output)
        if output.text and "text" in self._chat.modalities:
            await self._delta({"content": output.text})
        if ready := len(said.pcm) - len(said.pcm) % _UNIT:
            await self._delta({"audio": self._sound(ready)})

    def _sound(self, size: int) -> dict[str, Any]:
        said = self._said
        piece: dict[str, Any] = {"data": base64.b64encode(said.pcm[:size]).decode()} if size else {}
        del said.pcm[:size]
        if not said.sounded:
            said.sounded = True
            piece |= {"id": f"audio-{self._id}", "sample_rate": said.sample_rate}
        return piece

    async def _finish(self, terminal: Terminal) -> None:
        if self._said.sample_rate:
            await self._delta({"audio": self._sound(len(self._said.pcm)) | self._last_words()})
        await self._delta({}, self._reason(terminal))
        if self._chat.rendered.usage:
            chunk = self._envelope("chat.completion.chunk", [])
            await self._exchange.event(chunk | {"usage": self._usage(terminal)})
        await self._exchange.event(b"[DONE]")
        await self._exchange.end()

    async def _delta(self, delta: dict[str, Any], finish_reason: str | None = None) -> None:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        await self._exchange.event(self._envelope("chat.completion.chunk", [choice]))
