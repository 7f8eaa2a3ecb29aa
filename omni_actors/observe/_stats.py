"""One request's time, stage by stage: where it went, in parts that sum to the whole.

Pure functions over marks that the runtime took. Times are whole microseconds from the request's begin, so that
queue + first + rest = total holds exactly in every row, start + total ≤ whole, and the whole is the last stage's end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["RequestStats", "StageRow", "StageTiming", "request_stats"]


@attrs.frozen(kw_only=True)
class StageTiming:
    """One stage's marks in one request, in absolute seconds of one clock; None for what never happened.

    ``ready_at``: its input was complete. ``submitted_at``: a replica was sent it. ``first_at``: its first output came.
    ``finished_at``: it ended, well or not. ``audio_s``: seconds of audio it made.
    ``steps``: those of all pictures it made.
    """

    stage: str
    ready_at: float | None = None
    submitted_at: float | None = None
    first_at: float | None = None
    finished_at: float | None = None
    tokens: int | None = None
    audio_s: float | None = None
    steps: int | None = None


@attrs.frozen(kw_only=True)
class StageRow:
    """One line of the table. ``start_us`` counts from the request's begin; ``total_us`` = queue + first + rest.

    ``rtf`` is seconds of compute (first and rest) per second of audio; None where no audio was made.
    """

    stage: str
    start_us: int
    queue_us: int
    first_us: int
    rest_us: int
    tokens: int | None = None
    audio_s: float | None = None
    steps: int | None = None

    @property
    def total_us(self) -> int:
        """From the stage's input to its end."""
        return self.queue_us + self.first_us + self.rest_us

    @property
    def end_us(self) -> int:
        """When the stage ended, from the request's begin."""
        return self.start_us + self.total_us

    @property
    def rtf(self) -> float | None:
        """The real-time factor: below 1 the stage is faster than its audio plays."""
        return (self.first_us + self.rest_us) / 1e6 / self.audio_s if self.audio_s else None


@attrs.frozen(kw_only=True)
class RequestStats:
    """The table: a row per stage that the request reached, by their start, and the whole."""

    rows: tuple[StageRow, ...]

    @property
    def whole_us(self) -> int:
        """The end of the last stage; 0 if none was reached."""
        return max((row.end_us for row in self.rows), default=0)


def request_stats(timings: Iterable[StageTiming], *, began_at: float | None = None, tick_us: int = 1) -> RequestStats:
    """The table of one request. Stages that never got their input have no row.

    ``began_at`` is when the request was submitted (default: the first ``ready_at``). Marks are snapped to multiples of
    ``tick_us`` before they are subtracted: a table printed at that resolution adds up on paper too.
    """
    reached = [timing for timing in timings if timing.ready_at is not None]
    begins = [timing.ready_at for timing in reached if timing.ready_at is not None]
    origin = min(begins, default=0.0) if began_at is None else began_at
    rows = (_row(timing, origin, tick_us) for timing in reached)
    return RequestStats(rows=tuple(sorted(rows, key=lambda row: row.start_us)))


def _row(timing: StageTiming, origin: float, tick_us: int) -> StageRow:
    ready, submitted, first, finished = _marks(timing, origin, tick_us)
    return StageRow(
        stage=timing.stage,
        start_us=ready,
        queue_us=submitted - ready,
        first_us=first - submitted,
        rest_us=finished - first,
        tokens=timing.tokens,
        audio_s=timing.audio_s,
        steps=timing.steps,
    )


def _marks(timing: StageTiming, origin: float, tick_us: int) -> tuple[int, int, int, int]:
    """The four marks as ticks, never falling.

    A mark that is missing is where the next known one is, and the end of all where none follows: a stage that was
    never submitted spent its time in the queue, one without output spent it on the first.
    """
    known = (timing.ready_at, timing.submitted_at, timing.first_at, timing.finished_at)
    offsets = [None if mark is None else round((mark - origin) * 1e6 / tick_us) * tick_us for mark in known]
    end = max([0, *(offset for offset in offsets if offset is not None)])
    rising: list[int] = []
    for index in range(4):
        mark = next((offset for offset in offsets[index:] if offset is not None), end)
        rising.append(max([0, mark, *rising]))
    return rising[0], rising[1], rising[2], rising[3]
