"""Metrics of the calls of clouds, which the process shows at /metrics beside its own."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from prometheus_client import Counter, Histogram
from prometheus_client.metrics import MetricWrapperBase

from volplane.cloud.error_table import CloudError

__all__ = ["COLLECTORS", "measured"]

_SECONDS: Final = Histogram(
    "volplane_cloud_request_duration_seconds",
    "How long calls of a cloud's API took, failed ones included",
    ("cloud", "request"),
    buckets=(0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 60.0),
    registry=None,
)
_ERRORS: Final = Counter(
    "volplane_cloud_request_errors_total",
    "Calls of a cloud's API that gave no result, by the code of the error; throttling has codes too",
    ("cloud", "request", "error"),
    registry=None,
)
COLLECTORS: Final[tuple[tuple[MetricWrapperBase, tuple[str, ...]], ...]] = (
    (_SECONDS, ("cloud", "request")),
    (_ERRORS, ("cloud", "request", "error")),
)
"""Each with the names of its labels. In no registry of their own: a process has one set of them, whatever it runs."""


@contextmanager
def measured(cloud: str, request: str) -> Iterator[None]:
    """Count the call that the block makes, its duration and the `CloudError` that leaves it.

    cloud, request: labels, such as "ec2" and "CreateVolume"; few and fixed, never a name or an id.
    """
    began = time.perf_counter()
    try:
        yield
    except CloudError as error:
        _ERRORS.labels(cloud, request, error.code).inc()
        raise
    finally:
        _SECONDS.labels(cloud, request).observe(time.perf_counter() - began)
