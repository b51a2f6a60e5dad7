"""The table of delays before retries, one row for each kind of failure.

A row is a `Backoff`: the first delay, its growth, ceiling and jitter, how it treats a delay that the other side asks
for, and what resets the count. The caller counts the failures in a row and calls `Backoff.delay`. Periods (probes, leak
checks, resyncs) are no delays and are defined where they are used. docs/explanation/delays.md shows the table.
"""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass
from random import Random
from typing import Final, Literal

LONGEST_ASKED_BY_SERVER: Final = 300.0
"""Upper bound of a delay that an API server asks for: a longer silence looks like a broken controller."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """One row of the table. All times are seconds."""

    reason: str
    """The kind of failure."""
    _: KW_ONLY
    first: float
    """The delay after the first failure in a row."""
    reset: str = "-"
    """The event after which a failure counts as the first again; "-": each one counts as the first."""
    factor: float = 2.0
    """Each further failure multiplies the delay by this."""
    ceiling: float = math.inf
    """The longest delay."""
    threshold: int = 1
    """The first failure in a row that has a delay."""
    jitter: tuple[float, float] = (1.0, 1.0)
    """The delay is multiplied by a random number between these two."""
    asked: Literal["ignored", "floor", "instead"] = "ignored"
    """How a delay that the other side asks for (`retry_after`) counts: not at all, as the minimum, or exactly."""
    asked_within: tuple[float, float] = (0.0, LONGEST_ASKED_BY_SERVER)
    """The bounds of that delay. Other values are moved to the nearest bound."""
    tries: int | None = None
    """Failures in a row after which the caller gives up; None: never."""
    forget_after: float = math.inf
    """Time without a try after which the count is dropped."""

    def delay(self, failures: int = 1, *, asked: float | None = None, random: Random | None = None) -> float:
        """Return the seconds to wait after the `failures`-th failure in a row, counted from 1.

        asked: the delay that the other side asked for; ignored if it is None or not finite. random: source of the
        jitter; None: no jitter.
        """
        floor = 0.0
        if asked is not None and math.isfinite(asked) and self.asked != "ignored":
            shortest, longest = self.asked_within
            floor = min(max(asked, shortest), longest)
            if self.asked == "instead":
                return floor
        growths = failures - self.threshold
        if growths < 0:
            return 0.0
        seconds = min(self.ceiling, self.first * self.factor ** min(growths, 64))
        if random is not None:
            low, high = self.jitter
            seconds *= low + (high - low) * random.random()
        return max(seconds, floor)


# Runner: one count of failures per key for these four.

_PASSED: Final = "a pass without an error"

RECONCILE_FAILED: Final = Backoff(
    "a pass over an object: conflicts, no end of steps, an internal error", first=0.005, ceiling=1000.0, reset=_PASSED
)
API_UNAVAILABLE: Final = Backoff(
    "a pass over an object: the API server gave no usable answer",
    first=0.005,
    ceiling=30.0,
    asked="floor",
    reset=_PASSED,
)
API_REFUSED: Final = Backoff(
    "a pass over an object: the API server refused a call", first=0.1, ceiling=300.0, reset=_PASSED
)
REGISTRY_CLOSED: Final = Backoff(
    "a pass over an object: its driver takes no operations any more", first=1.0, ceiling=1000.0, reset=_PASSED
)

# Operations: one count of failures per operation.

HOOK_FAILED: Final = Backoff(
    "an operation: a hook or one of its live checks failed",
    first=0.5,
    ceiling=120.0,
    asked="instead",
    asked_within=(0.5, 3600.0),
    forget_after=600.0,
    reset="a success; the claim's class or node changed; another operation on the asset",
)
HOOK_FAILED_SLOW: Final = Backoff(
    "an operation: the error is one that only a change elsewhere ends (retry policy slow)",
    first=300.0,
    factor=1.0,
    asked="instead",
    asked_within=(0.5, 3600.0),
    forget_after=600.0,
    reset="a success; the claim's class or node changed; another operation on the asset",
)
LONG_CALL: Final = Backoff(
    "no failure: a hook answered `InProgress`", first=1.0, factor=1.0, asked="instead", asked_within=(0.2, 3600.0)
)
LIVE_STATE_FORBIDS: Final = Backoff("an operation: the live state forbids it for now", first=1.0, factor=1.0)
SCRUB_FAILED: Final = Backoff(
    "an attempt to erase a volume failed",
    first=2.0,
    ceiling=64.0,
    reset="the volume is released again; the count and the time are on the volume, by the wall clock",
)
RECORD_OVERWRITTEN: Final = Backoff(
    "a record of ours on a claim or volume was written over by somebody else",
    first=1.0,
    ceiling=300.0,
    threshold=2,
    forget_after=30.0,
    reset="a record of ours stood for 30 s; the record has ended",
)
RECORD_OF_OTHERS: Final = Backoff(
    "the record on a claim is sealed by another installation, and does not change",
    first=60.0,
    ceiling=3600.0,
    reset="the record has ended; it becomes ours",
)
RETRY_RATE: Final = 10.0
"""Retries a second of one driver and class together. This and the burst are those of client-go's default limiter."""
RETRY_BURST: Final = 100.0
"""The most of them that can be saved up."""
RETRIES_PER_SUCCESS: Final = 2.0
"""Further ones that each success allows."""

# The API server.

WATCH_ENDED: Final = Backoff(
    "a list or a watch ended with an error, or at once and without an event",
    first=0.8,
    ceiling=30.0,
    jitter=(0.5, 1.0),
    asked="floor",
    reset="an event, or a watch that lasted a second",
)
CIRCUIT_OPEN: Final = Backoff(
    "calls of the API server had no usable answer",
    first=0.15,
    factor=1.5,
    ceiling=1.0,
    threshold=10,
    asked="floor",
    asked_within=(0.0, 25.0),
    reset="a usable answer",
)
EVENT_NOT_WRITTEN: Final = Backoff(
    "an Event was not written: the API server gave no usable answer",
    first=1.0,
    ceiling=60.0,
    asked="floor",
    reset="it is written",
)
EVENT_REFUSED: Final = Backoff(
    "an Event was refused (403), in a namespace that stays",
    first=1.0,
    factor=4.0,
    ceiling=16.0,
    tries=4,
    reset="it is written",
)
LEASE_NOT_HELD: Final = Backoff(
    "the lease is another's, or can be neither read nor taken", first=1.0, factor=1.0, jitter=(1.0, 1.2)
)
LEASE_NOT_RENEWED: Final = Backoff("the lease was not renewed", first=1.0, factor=1.0)
PREPARE_FAILED: Final = Backoff(
    "at the start of a process: the API server gave no usable answer", first=1.0, factor=1.0, asked="floor"
)

NODE_GROWTH_REFUSED: Final = Backoff("a kubelet cannot grow a file system, and gave up", first=300.0, factor=1.0)

# Drivers and leak check.

DRIVER_NOT_STARTED: Final = Backoff("a driver did not start", first=1.0, ceiling=30.0, reset="the driver is ready")
LEAK_CHECK_FAILED: Final = Backoff("a leak check failed", first=60.0, factor=1.0, jitter=(1.0, 1.1))
LEAK_CHECK_WITHOUT_DRIVER: Final = Backoff("a leak check is due and its driver is not ready", first=10.0, factor=1.0)

TABLE: Final = tuple(row for row in list(vars().values()) if isinstance(row, Backoff))
"""Every row, in the order of the documentation: that of this module."""
