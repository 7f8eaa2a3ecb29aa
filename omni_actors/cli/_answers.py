"""What a request brought, as the command line shows it: text, sentences of sound, pictures, and when each arrived.

Pure: fed with outputs and seconds since the request was submitted. One ``Answer`` per request, owned by its reader.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import attrs

from omni_actors.lifecycle.events import StepChunk, TensorChunk
from omni_actors.observe import StageTiming, request_stats

if TYPE_CHECKING:
    from array import array

    from omni_actors.lifecycle import Terminal
    from omni_actors.lifecycle.events import Output
    from omni_actors.observe import RequestStats

__all__ = ["Answer", "Picture", "Sentence", "stats_of", "stats_rows"]

_TICK_US = 100
"""The resolution of the printed table: tenths of a millisecond."""


@attrs.define
class Sentence:
    """The sound of one part: its pieces as they came. Seconds count from the request's begin."""

    part: int
    index: int
    sample_rate: int
    first_s: float
    last_s: float
    pieces: list[Any] = attrs.field(factory=list, repr=False)
    done: bool = False

    def samples(self) -> array[float]:
        """All of it, float32 in [-1, 1]."""
        from omni_actors.pipelines._sound import float_samples

        return float_samples(self.pieces)

    @property
    def seconds(self) -> float:
        """How long it sounds."""
        count = sum(piece.shape[0] for piece in self.pieces)
        return count / self.sample_rate if self.sample_rate else 0.0


@attrs.frozen
class Picture:
    """A picture of one part, by ``stage``, or a film. ``image``: a tensor of uint8, shape (height, width, 3), of a film
    (frames, height, width, 3); ``meta``: how it was made.
    """

    part: int
    index: int
    at_s: float
    image: Any = attrs.field(repr=False)
    meta: Mapping[str, Any]
    stage: str = ""


@attrs.define
class Answer:
    """Everything one request said so far. ``texts`` by choice; ``sentences``, ``pictures`` and ``films`` by choice and
    part.
    """

    texts: dict[int, str] = attrs.field(factory=dict)
    sentences: dict[tuple[int, int], Sentence] = attrs.field(factory=dict)
    pictures: dict[tuple[int, int], Picture] = attrs.field(factory=dict)
    films: dict[tuple[int, int], Picture] = attrs.field(factory=dict)
    other: dict[str, int] = attrs.field(factory=dict)
    finish_reason: str | None = None
    first_text_s: float | None = None
    last_text_s: float | None = None

    @property
    def text(self) -> str:
        """What the first choice said."""
        return self.texts.get(0, "")

    @property
    def first_audio_s(self) -> float | None:
        """When the first sound was here."""
        return min((sentence.first_s for sentence in self.sentences.values()), default=None)

    @property
    def audio_s(self) -> float:
        """Seconds of sound."""
        return sum(sentence.seconds for sentence in self.sentences.values())

    def spoken(self, index: int = 0) -> list[Sentence]:
        """The sentences of one choice, in order."""
        return [sentence for (choice, _), sentence in sorted(self.sentences.items()) if choice == index]

    def painted(self, index: int = 0) -> list[Picture]:
        """The pictures of one choice, in order."""
        return [picture for (choice, _), picture in sorted(self.pictures.items()) if choice == index]

    def take(self, output: Output, at_s: float) -> Sentence | Picture | None:
        """Add one output; returns the sentence that it completed or the picture that it is."""
        if output.modality == "text":
            self._take_text(output, at_s)
        elif output.audio is not None:
            return self._take_audio(output, at_s)
        elif output.image is not None:
            return self._take_image(output, at_s)
        elif output.video is not None:
            self.films[output.index, output.part] = _picture(output, output.video, at_s)
        elif not isinstance(output.payload, StepChunk):
            self.other[output.modality] = self.other.get(output.modality, 0) + 1
        return None

    def _take_text(self, output: Output, at_s: float) -> None:
        if output.text:
            self.first_text_s = at_s if self.first_text_s is None else self.first_text_s
            self.last_text_s = at_s
        self.texts[output.index] = self.texts.get(output.index, "") + output.text
        self.finish_reason = output.payload.finish_reason or self.finish_reason

    def _take_audio(self, output: Output, at_s: float) -> Sentence | None:
        key = (output.index, output.part)
        sentence = self.sentences.get(key)
        if sentence is None:
            sentence = Sentence(output.part, output.index, output.sample_rate, at_s, at_s)
            self.sentences[key] = sentence
        sentence.pieces.append(output.audio)
        sentence.last_s = at_s
        sentence.done = output.payload.finish_reason is not None
        return sentence if sentence.done else None

    def _take_image(self, output: Output, at_s: float) -> Picture:
        picture = self.pictures[output.index, output.part] = _picture(output, output.image, at_s)
        return picture


def _picture(output: Output, image: Any, at_s: float) -> Picture:
    assert isinstance(output.payload, TensorChunk)
    return Picture(output.part, output.index, at_s, image, output.payload.meta, output.stage)


def stats_of(terminal: Terminal) -> RequestStats:
    """The request's time by stage, at the resolution that is printed."""
    timings = [
        StageTiming(
            stage=timing.stage,
            ready_at=timing.ready_at,
            submitted_at=timing.submitted_at,
            first_at=timing.first_at,
            finished_at=timing.finished_at,
            tokens=timing.tokens or None,
            audio_s=timing.audio_s or None,
            steps=timing.steps or None,
        )
        for timing in terminal.timings
    ]
    return request_stats(timings, began_at=terminal.submitted_at, tick_us=_TICK_US)


def stats_rows(stats: RequestStats) -> dict[str, Any]:
    """The table as data, in milliseconds."""
    rows = [
        {
            "stage": row.stage,
            "start_ms": row.start_us / 1000,
            "queue_ms": row.queue_us / 1000,
            "first_ms": row.first_us / 1000,
            "rest_ms": row.rest_us / 1000,
            "total_ms": row.total_us / 1000,
            "tokens": row.tokens,
            "audio_s": row.audio_s,
            "rtf": row.rtf,
            "steps": row.steps,
        }
        for row in stats.rows
    ]
    return {"stages": rows, "whole_ms": stats.whole_us / 1000}
