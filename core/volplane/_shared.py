"""What the kits share with the core, which does not import them: a token bucket, and collectors of metrics."""

from __future__ import annotations

from typing import Final

from prometheus_client import Counter, Gauge, Histogram
from prometheus_client.metrics import MetricWrapperBase

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
_VOLUME: Final = ("driver", "persistentvolume")
USED_BYTES: Final = Gauge(
    "volplane_volume_used_bytes",
    "Bytes used in volumes of directories, where the storage counts",
    _VOLUME,
    registry=None,
)
USED_INODES: Final = Gauge(
    "volplane_volume_used_inodes", "Files, directories and links in them", _VOLUME, registry=None
)
COLLECTORS: Final[tuple[tuple[MetricWrapperBase, tuple[str, ...]], ...]] = (
    (SECONDS, ("cloud", "request")),
    (ERRORS, ("cloud", "request", "error")),
    (USED_BYTES, _VOLUME),
    (USED_INODES, _VOLUME),
)
"""The collectors of `volplane.cloud.measured` and `volplane.directory.UsageReport`, with the names of their labels.
Every process registers them."""


class TokenBucket:
    """`rate` tokens per second, at most `burst` saved up (default: a second's). Times are seconds of any one clock."""

    def __init__(self, rate: float, now: float, *, burst: float | None = None) -> None:
        self._rate = rate
        self._burst = max(1.0, rate if burst is None else burst)
        self._tokens = self._burst
        self._filled = now

    def wait(self, now: float) -> float:
        """Return the seconds until there is a token; 0.0: there is one now."""
        self._fill(now)
        return 0.0 if self._tokens >= 1.0 - 1e-9 else (1.0 - self._tokens) / self._rate

    def take(self, now: float) -> None:
        """Take a token; if there is none, the next one that comes."""
        self._fill(now)
        self._tokens -= 1.0

    def give(self, tokens: float) -> None:
        """Add tokens, as far as the burst allows."""
        self._tokens = min(self._burst, self._tokens + tokens)

    def full(self, now: float) -> bool:
        """Tell whether no more tokens can be saved up."""
        self._fill(now)
        return self._tokens >= self._burst

    def _fill(self, now: float) -> None:
        self._tokens = min(self._burst, self._tokens + (now - self._filled) * self._rate)
        self._filled = now
