"""Counters, gauges and histograms for one thread: plain dictionaries that a Prometheus registry collects at a scrape.

The children of prometheus-client, cached by label values, cost 0.4 us per count and 1.2 us per observation (two locks)
against 0.14 and 0.4 us here, and a bound claim is counted and observed some 60 times.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

__all__ = ["Counter", "Counters", "Gauge", "Histogram", "Series"]

Labels = tuple[str, ...]


class Counter:
    """Counts what happened."""

    def __init__(self, name: str, documentation: str, labels: Labels) -> None:
        self.name = name
        self.documentation = documentation
        self.labels = labels
        self._values: dict[Labels, float] = {} if labels else {(): 0.0}

    def add(self, *labels: str) -> None:
        values = self._values
        values[labels] = values.get(labels, 0.0) + 1.0

    def collect(self) -> Metric:
        family = CounterMetricFamily(self.name, self.documentation, labels=self.labels)
        for labels, value in self._values.items():
            family.add_metric(labels, value)
        return family


class Gauge:
    """A value that goes up and down."""

    def __init__(self, name: str, documentation: str, labels: Labels) -> None:
        self.name = name
        self.documentation = documentation
        self.labels = labels
        self._values: dict[Labels, float] = {}

    def set(self, value: float, *labels: str) -> None:
        self._values[labels] = value

    def change(self, by: float, *labels: str) -> None:
        self._values[labels] = self._values.get(labels, 0.0) + by

    def clear(self) -> None:
        """Forget every value."""
        self._values.clear()

    def collect(self) -> Metric:
        family = GaugeMetricFamily(self.name, self.documentation, labels=self.labels)
        for labels, value in self._values.items():
            family.add_metric(labels, value)
        return family


class Histogram:
    """How often an observed value was at most each bound. buckets: upper bounds, ascending."""

    def __init__(self, name: str, documentation: str, buckets: tuple[float, ...], labels: Labels) -> None:
        self.name = name
        self.documentation = documentation
        self.labels = labels
        self._buckets = buckets
        self._counts: dict[Labels, list[int]] = {}
        self._sums: dict[Labels, float] = {}

    def observe(self, value: float, *labels: str) -> None:
        counts = self._counts.get(labels)
        if counts is None:
            counts = self._counts[labels] = [0] * (len(self._buckets) + 1)
            self._sums[labels] = 0.0
        counts[bisect_left(self._buckets, value)] += 1
        self._sums[labels] += value

    def collect(self) -> Metric:
        family = HistogramMetricFamily(self.name, self.documentation, labels=self.labels)
        for labels, counts in self._counts.items():
            family.add_metric(labels, buckets=list(self._cumulative(counts)), sum_value=self._sums[labels])
        return family

    def _cumulative(self, counts: Iterable[int]) -> Iterator[tuple[str, float]]:
        total = 0
        for bound, count in zip((*map(str, self._buckets), "+Inf"), counts, strict=True):
            total += count
            yield bound, total


Series = Counter | Gauge | Histogram


class Counters:
    """Makes counters, gauges and histograms, and shows them to a registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._all: list[Series] = []
        registry.register(self)

    def __iter__(self) -> Iterator[Series]:
        return iter(self._all)

    def counter(self, name: str, documentation: str, *labels: str) -> Counter:
        made = Counter(name, documentation, labels)
        self._all.append(made)
        return made

    def gauge(self, name: str, documentation: str, *labels: str) -> Gauge:
        made = Gauge(name, documentation, labels)
        self._all.append(made)
        return made

    def histogram(self, name: str, documentation: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
        made = Histogram(name, documentation, buckets, labels)
        self._all.append(made)
        return made

    def collect(self) -> Iterator[Metric]:
        """Called by the registry at a scrape."""
        for series in self._all:
            yield series.collect()
