"""The table of delays before retries, one row for each kind of failure.

A row is a `Backoff`: the first delay, its growth, ceiling and jitter, and how it treats a delay that the other side
asks for. The caller counts the failures in a row and calls `Backoff.delay`. Periods (probes, leak checks, resyncs) are
no delays and are defined where they are used. docs/explanation/delays.md shows the table, with what resets each count.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from random import Random
from typing import Final, Literal

LONGEST_ASKED_BY_SERVER: Final = 300.0
"""Upper bound of a delay that an API server asks for: a longer silence looks like a broken controller."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """One row of the table. All times are seconds."""

    first: float
    """The delay after the first failure in a row."""
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


# A pass over an object: one count of failures per key for these four, until a pass without an error.

RECONCILE_FAILED: Final = Backoff(first=0.005, ceiling=1000.0)
"""Conflicts, no end of steps, or an internal error."""
API_UNAVAILABLE: Final = Backoff(first=0.005, ceiling=30.0, asked="floor")
API_REFUSED: Final = Backoff(first=0.1, ceiling=300.0)
REGISTRY_CLOSED: Final = Backoff(first=1.0, ceiling=1000.0)
"""The driver takes no operations any more."""

# An operation: one count of failures per operation, until a success, another operation on the asset, or a change of the
# claim's class or node.

HOOK_FAILED: Final = Backoff(first=0.5, ceiling=120.0, asked="instead", asked_within=(0.5, 3600.0), forget_after=600.0)
"""A hook, or one of the live checks."""
HOOK_FAILED_SLOW: Final = replace(HOOK_FAILED, first=300.0, factor=1.0, ceiling=math.inf)
"""With an error that only a change elsewhere ends (retry policy slow)."""
LONG_CALL: Final = Backoff(first=1.0, factor=1.0, asked="instead", asked_within=(0.2, 3600.0))
"""No failure: a hook answered `InProgress`."""
LIVE_STATE_FORBIDS: Final = Backoff(first=1.0, factor=1.0)
SOURCE_AWAITED: Final = Backoff(first=1.0, ceiling=60.0)
"""The data source of a claim cannot be used yet. The delay is about the age of the claim."""
SCRUB_FAILED: Final = Backoff(first=2.0, ceiling=64.0)
"""An attempt to erase a volume. The count and the time are on the volume, by the wall clock."""
RECORD_OVERWRITTEN: Final = Backoff(first=1.0, ceiling=300.0, threshold=2, forget_after=30.0)
"""A record of ours on a claim or volume, by somebody else. The count ends if a record of ours stands for 30 s."""
RECORD_OF_OTHERS: Final = Backoff(first=60.0, ceiling=3600.0)
"""The record on a claim is sealed by another installation, and does not change."""
RETRY_RATE: Final = 10.0
"""Retries a second of one driver and class together. This and the burst are those of client-go's default limiter."""
RETRY_BURST: Final = 100.0
"""The most of them that can be saved up."""
RETRIES_PER_SUCCESS: Final = 2.0
"""Further ones that each success allows."""

# The API server.

WATCH_ENDED: Final = Backoff(first=0.8, ceiling=30.0, jitter=(0.5, 1.0), asked="floor")
"""A list or a watch, with an error, or at once and without an event."""
CIRCUIT_OPEN: Final = Backoff(
    first=0.15, factor=1.5, ceiling=1.0, threshold=10, asked="floor", asked_within=(0.0, 25.0)
)
"""Calls in a row had no usable answer."""
EVENT_NOT_WRITTEN: Final = Backoff(first=1.0, ceiling=60.0, asked="floor")
EVENT_REFUSED: Final = Backoff(first=1.0, factor=4.0, ceiling=16.0, tries=4)
"""With 403, in a namespace that stays."""
LEASE_NOT_HELD: Final = Backoff(first=1.0, factor=1.0, jitter=(1.0, 1.2))
"""It is another's, or can be neither read nor taken."""
LEASE_NOT_RENEWED: Final = Backoff(first=1.0, factor=1.0)
PREPARE_FAILED: Final = Backoff(first=1.0, factor=1.0, asked="floor")
"""At the start of a process."""

NODE_GROWTH_REFUSED: Final = Backoff(first=300.0, factor=1.0)
"""A kubelet cannot grow a file system, and gave up."""

# Drivers and leak check.

DRIVER_NOT_STARTED: Final = Backoff(first=1.0, ceiling=30.0)
LEAK_CHECK_FAILED: Final = Backoff(first=60.0, factor=1.0, jitter=(1.0, 1.1))
LEAK_CHECK_WITHOUT_DRIVER: Final = Backoff(first=10.0, factor=1.0)
