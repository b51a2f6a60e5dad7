"""The collectors of `volplane.cloud.measured`, which every process registers: the core does not import the kit."""

from __future__ import annotations

from typing import Final

from prometheus_client import Counter, Histogram
from prometheus_client.metrics import MetricWrapperBase

__all__ = ["COLLECTORS", "ERRORS", "SECONDS"]

SECONDS: Final = Histogram(
    "volplane_cloud_request_duration_seconds",
    "How long calls of a cloud's API took, failed ones included",
    ("cloud", "request"),
    buckets=(0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 60.0),
    registry=None,
)
ERRORS: Final = Counter(
    "volplane_cloud_request_errors_total",
    "Calls of a cloud's API that gave no result, by the code of the error; throttling has codes too",
    ("cloud", "request", "error"),
    registry=None,
)
COLLECTORS: Final[tuple[tuple[MetricWrapperBase, tuple[str, ...]], ...]] = (
    (SECONDS, ("cloud", "request")),
    (ERRORS, ("cloud", "request", "error")),
)
"""Each with the names of its labels. They stand in no registry of their own: a process has one set of them."""
