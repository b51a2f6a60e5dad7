"""How metrics are made: in the registry of one process, with a description for the documentation."""

from __future__ import annotations

from typing import Final, NamedTuple, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics
from prometheus_client.metrics import MetricWrapperBase

__all__ = ["LATENCY", "OPERATION", "Children", "Description", "Families", "MetricsPart"]

LATENCY: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
OPERATION: Final = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 25.0, 50.0, 120.0, 300.0, 600.0)
"""The reference controller's buckets for volume operations."""

disable_created_metrics()  # type: ignore[no-untyped-call]  # a second series, "_created", for each counter and histogram

M = TypeVar("M", bound=MetricWrapperBase)


class Description(NamedTuple):
    """What a metric is, as the documentation shows it. type: "counter", "gauge" or "histogram"."""

    name: str
    type: str
    labels: tuple[str, ...]
    documentation: str


class Children(dict[tuple[str, ...], M]):
    """The children of one metric by the values of its labels. `labels()` of prometheus-client takes 2 us every time."""

    def __init__(self, metric: M) -> None:
        super().__init__()
        self._metric = metric

    def __missing__(self, labels: tuple[str, ...]) -> M:
        child = self[labels] = self._metric.labels(*labels) if labels else self._metric
        return child

    def forget(self) -> None:
        """Remove every child."""
        self._metric.clear()
        self.clear()


class Families:
    """Makes metrics in a registry, and describes them."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        self.descriptions: list[Description] = []

    def counter(self, name: str, documentation: str, *labels: str) -> Children[Counter]:
        self.descriptions.append(Description(name, "counter", labels, documentation))
        return Children(Counter(name, documentation, labels, registry=self.registry))

    def gauge(self, name: str, documentation: str, *labels: str) -> Children[Gauge]:
        self.descriptions.append(Description(name, "gauge", labels, documentation))
        return Children(Gauge(name, documentation, labels, registry=self.registry))

    def histogram(self, name: str, documentation: str, buckets: tuple[float, ...], *labels: str) -> Children[Histogram]:
        self.descriptions.append(Description(name, "histogram", labels, documentation))
        return Children(Histogram(name, documentation, labels, buckets=buckets, registry=self.registry))

    def shared(self, metric: MetricWrapperBase, labels: tuple[str, ...]) -> None:
        """Show a metric that is made elsewhere."""
        [family] = metric.describe()
        name = f"{family.name}_total" if family.type == "counter" else family.name
        self.descriptions.append(Description(name, family.type, labels, family.documentation))
        self.registry.register(metric)


class MetricsPart:
    """The metrics of one subject. `Metrics` inherits from every part."""

    def __init__(self, make: Families) -> None:
        """Make the metrics. Each part makes its own, and then calls the next one."""
