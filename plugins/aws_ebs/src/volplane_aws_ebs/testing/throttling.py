"""Token buckets, one per action."""

from __future__ import annotations

from collections.abc import Mapping

from volplane_aws_ebs.testing.behaviour import Rate
from volplane_aws_ebs.testing.refusals import Refusal

__all__ = ["Throttle"]


class Throttle:
    """Refuses what comes too fast. A refused call takes no token."""

    def __init__(self) -> None:
        self._levels: dict[str, tuple[float, float]] = {}

    def admit(self, action: str, rates: Mapping[str, Rate], now: float) -> None:
        """Take a token of the action's bucket. Raises RequestLimitExceeded when it is empty."""
        rate = rates.get(action)
        if rate is None:
            return
        level, filled = self._levels.get(action, (rate.burst, now))
        level = min(rate.burst, level + (now - filled) * rate.per_second)
        allowed = level >= 1.0 - 1e-9
        self._levels[action] = (level - 1.0 if allowed else level, now)
        if not allowed:
            raise Refusal("RequestLimitExceeded", "Request limit exceeded.")
