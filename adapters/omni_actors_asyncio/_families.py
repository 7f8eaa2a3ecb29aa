"""Prometheus metrics of several engines with different configurations, in one exposition.

vLLM's PrometheusStatLogger makes prometheus_client's own metrics, once per process: a second one would take the first's
out of the registry. Here each stage has a logger of its own, and what the loggers make are series of shared families,
told apart by the label ``stage``. It is the way that vLLM's loggers for Ray take, with the same three classes to
replace. Histograms may have other buckets in each stage.

One lock: a step's whole record is written under it, and a scrape copies all values under it. Writing is therefore
plain arithmetic; prometheus_client would take a lock per value.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from math import inf
from typing import TYPE_CHECKING, Any

import attrs
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.utils import floatToGoString

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from prometheus_client.metrics_core import Metric

__all__ = ["Families", "Maker"]


class _Series:
    """A gauge, or a counter. Written under the families' lock."""

    __slots__ = ("created_at", "value")

    def __init__(self) -> None:
        self.created_at, self.value = time.time(), 0.0

    def set(self, value: float) -> None:
        self.value = float(value)

    def inc(self, by: float = 1) -> None:
        self.value += by

    def set_to_current_time(self) -> None:
        self.value = time.time()

    def copied(self) -> _Series:
        copy = _Series()
        copy.created_at, copy.value = self.created_at, self.value
        return copy

    def write(self, family: Any, labels: Sequence[str]) -> None:
        family.add_metric(labels, self.value)


class _Histogram:
    """Counts per bucket, not yet added up."""

    __slots__ = ("bounds", "counts", "created_at", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.created_at, self.bounds, self.counts, self.total = time.time(), bounds, [0] * len(bounds), 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def copied(self) -> _Histogram:
        copy = _Histogram(self.bounds)
        copy.created_at, copy.counts, copy.total = self.created_at, list(self.counts), self.total
        return copy

    def write(self, family: Any, labels: Sequence[str]) -> None:
        buckets, below = [], 0
        for bound, count in zip(self.bounds, self.counts, strict=True):
            below += count
            buckets.append((floatToGoString(bound), float(below)))  # type: ignore[no-untyped-call]
        family.add_metric(labels, buckets, self.total)


@attrs.define
class _Family:
    kind: str
    name: str
    documentation: str
    labels: tuple[str, ...]
    series: dict[tuple[str, ...], Any] = attrs.field(factory=dict)


_KINDS = {"gauge": GaugeMetricFamily, "counter": CounterMetricFamily, "histogram": HistogramMetricFamily}


class Families:
    """All series, and the lock to write them under. ``collect`` is for scrapes, from any thread.

    vLLM clears the registry of ``vllm:`` names when it makes metrics of its own: by ``_name`` it finds us as well.
    """

    _name = "vllm:stages"

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._families: dict[str, _Family] = {}

    def family(self, kind: str, name: str, documentation: str, labels: tuple[str, ...]) -> _Family:
        """The family of this name, made if it is new."""
        family = self._families.setdefault(name, _Family(kind, name, documentation, labels))
        assert (family.kind, family.labels) == (kind, labels), f"{name} is a {family.kind} of {family.labels}"
        return family

    def collect(self) -> Iterator[Metric]:
        """A consistent copy, as prometheus_client's families; with the times of their begin, as it shows them."""
        with self.lock:
            copies = [
                attrs.evolve(family, series={labels: series.copied() for labels, series in family.series.items()})
                for family in self._families.values()
            ]
        for family in copies:
            yield _exposed(family)


def _exposed(family: _Family) -> Metric:
    made: Metric = _KINDS[family.kind](family.name, family.documentation, labels=family.labels)
    for labels, series in family.series.items():
        series.write(made, labels)
        if family.kind != "gauge":
            made.add_sample(f"{made.name}_created", dict(zip(family.labels, labels, strict=True)), series.created_at)
    return made


@attrs.frozen
class Maker:
    """Stands for one of prometheus_client's classes: called with the same arguments, it makes one stage's ``_Metric``.

    Every series gets a label ``stage`` (``omni_stage`` where vLLM has a ``stage`` of its own), and ``model_name`` is
    what clients call the pipeline.
    """

    families: Families
    kind: str
    stage: str
    model_name: str

    def __call__(
        self,
        name: str,
        documentation: str = "",
        labelnames: Iterable[str] = (),
        buckets: Sequence[float] = (),
        multiprocess_mode: str = "",
    ) -> _Metric:
        given = tuple(labelnames)
        ours = "omni_stage" if "stage" in given else "stage"
        own = {ours: self.stage}
        if "model_name" in given:
            own["model_name"] = self.model_name
        return _Metric(self.families.family(self.kind, name, documentation, (*given, ours)), given, own, buckets)


class _Metric:
    """A family, and the labels that one stage's series in it have in common."""

    def __init__(
        self, family: _Family, given: tuple[str, ...], own: Mapping[str, str], buckets: Sequence[float]
    ) -> None:
        self._family, self._given, self._own = family, given, own
        self._bounds = (*(float(bound) for bound in buckets if bound != inf), inf)

    def labels(self, *values: Any, **named: Any) -> Any:
        """The series with these values, by position or by name."""
        by_place = dict(zip(self._given, values, strict=True)) if values else {}
        found = {**by_place, **named, **self._own}
        labels = tuple(str(found[name]) for name in self._family.labels)
        series = self._family.series.get(labels)
        if series is None:
            series = _Histogram(self._bounds) if self._family.kind == "histogram" else _Series()
            self._family.series[labels] = series
        return series
