"""The time axis of a timeline: where each event of a history stands, from 0 (the first) to 1 (the last).

Not to scale, on purpose. Between two instants the distance grows with the logarithm of the time, so a silence of a
minute does not squash the tenths of a second around it; equal pauses are equally wide. Within one instant of virtual
time many things happen one after the other: it is as wide as there are things in it, and shows their order.
"""

from __future__ import annotations

import bisect
import itertools
import math
import statistics
from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

__all__ = ["Axis", "Cut", "Tick", "seconds"]

_SAME_S = 1e-9
"""Two times nearer than this are one instant: virtual times are sums of floats."""
_CUT = 10
"""A stretch this many times more compressed than the usual pause is drawn as a cut."""
_STEPS = tuple(digit * 10.0**power for power in range(6, -5, -1) for digit in (5, 2, 1))


@attrs.frozen
class Tick:
    """A label on the axis: seconds, and where."""

    place: float
    at: float

    @property
    def label(self) -> str:
        """The seconds, as short as they are exact."""
        return seconds(self.at)


@attrs.frozen
class Cut:
    """A long silence, drawn short: from ``begin`` to ``end`` on the axis, ``length`` seconds long."""

    begin: float
    end: float
    length: float


def seconds(at: float) -> str:
    """A time for people: at most four decimals, no zeros behind them."""
    return f"{round(at, 4):f}".rstrip("0").rstrip(".") or "0"


class Axis:
    """``shown``: the positions in the history that the picture shows, each with its time. Immutable once built."""

    def __init__(self, shown: Iterable[tuple[int, float]]) -> None:
        points = sorted(set(shown)) or [(0, 0.0)]
        self._numbers = [number for number, _ in points]
        # What is written after the run (a crash of it) may carry any time: it came last all the same.
        self._times = list(itertools.accumulate((at for _, at in points), max))
        self._places = self._placed()
        self.cuts: tuple[Cut, ...] = tuple(self._silences())

    def place(self, number: int) -> float:
        """Where the event at this position of the history stands; for one that is not shown, where it would."""
        found = bisect.bisect_left(self._numbers, number)
        return self._places[min(found, len(self._places) - 1)]

    def ticks(self, apart: float) -> list[Tick]:
        """Round times, the roundest first, no two of them nearer than ``apart``; then the instants themselves."""
        chosen: list[Tick] = []
        for _, at, place in sorted(self._candidates()):
            spot = bisect.bisect_left(chosen, place, key=lambda tick: tick.place)
            near = chosen[max(0, spot - 1) : spot + 1]
            if all(abs(tick.place - place) >= apart for tick in near):
                chosen.insert(spot, Tick(place, at))
        return chosen

    # ------------------------------------------------------------------ building

    def _instants(self) -> Iterator[tuple[int, int]]:
        """The points of one time, as ranges of indices."""
        begin = 0
        for index in range(1, len(self._times) + 1):
            if index == len(self._times) or self._times[index] - self._times[index - 1] > _SAME_S:
                yield begin, index
                begin = index

    def _placed(self) -> list[float]:
        instants = list(self._instants())
        self._unit = _usual([self._times[b] - self._times[a] for (a, _), (b, _) in itertools.pairwise(instants)])
        places, here = list[float](), 0.0
        for begin, end in instants:
            if begin:
                here += self._weight(self._times[begin] - self._times[begin - 1])
            inner = math.log2(end - begin) / 8 / max(1, end - begin - 1)
            places += [here + inner * index for index in range(end - begin)]
            here = places[-1]
        whole = places[-1] or 1.0
        return [place / whole for place in places]

    def _weight(self, pause: float) -> float:
        return math.log1p(pause / self._unit)

    def _silences(self) -> Iterator[Cut]:
        for index in range(1, len(self._times)):
            pause = self._times[index] - self._times[index - 1]
            if pause > self._unit and pause / self._weight(pause) > _CUT * self._unit / self._weight(self._unit):
                yield Cut(self._places[index - 1], self._places[index], pause)

    def _candidates(self) -> Iterator[tuple[float, float, float]]:
        """(how round: less is rounder, time, place): the round times outside of the cuts, and every instant."""
        cut = {item.begin for item in self.cuts}
        for begin, end in self._instants():
            yield math.inf, self._times[begin], self._places[begin]
            for rank, step in enumerate(_STEPS):
                if abs(self._times[begin] - step * round(self._times[begin] / step)) < _SAME_S:
                    yield rank, round(self._times[begin], 6), self._places[begin]
                    break
            if end < len(self._times) and self._places[end - 1] not in cut:
                yield from self._between(end - 1, end)

    def _between(self, left: int, right: int) -> Iterator[tuple[float, float, float]]:
        low, high = self._times[left], self._times[right]
        for rank, step in enumerate(_STEPS):
            first = math.floor(low / step) + 1
            inside = itertools.takewhile(lambda at: at < high - _SAME_S, (n * step for n in range(first, first + 10)))
            for at in inside:
                if at > low + _SAME_S:
                    share = (at - low) / (high - low)
                    yield rank, round(at, 6), self._places[left] + share * (self._places[right] - self._places[left])


def _usual(pauses: Sequence[float]) -> float:
    """The pause that counts as one step."""
    return max(statistics.median_low(pauses), 1e-6) if pauses else 1.0
