"""Metrics of the calls of clouds, which the process shows at /metrics beside its own."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from volplane._cloud_metrics import ERRORS, SECONDS
from volplane.cloud.error_table import CloudError

__all__ = ["measured"]


@contextmanager
def measured(cloud: str, request: str) -> Iterator[None]:
    """Count the call that the block makes, its duration and the `CloudError` that leaves it.

    cloud, request: labels, such as "ec2" and "CreateVolume"; few and fixed, never a name or an id.
    """
    began = time.perf_counter()
    try:
        yield
    except CloudError as error:
        ERRORS.labels(cloud, request, error.code).inc()
        raise
    finally:
        SECONDS.labels(cloud, request).observe(time.perf_counter() - began)
