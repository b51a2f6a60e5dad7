"""What may be lost: leaks, and volumes whose nodes are gone."""

from __future__ import annotations

from collections.abc import Mapping

from volplane.controller.metrics.families import Families, MetricsPart

__all__ = ["LossMetrics"]


class LossMetrics(MetricsPart):
    """Methods are named after what happened."""

    def __init__(self, make: Families) -> None:
        self._findings = make.gauge(
            "volplane_leak_findings",
            "What the last leak check found: orphan, ghost, drifted, foreign",
            "driver",
            "verdict",
        )
        self._leak_checks = make.counter(
            "volplane_leak_checks_total", "Leak checks, complete or failed", "driver", "result"
        )
        self._leak_checked = make.gauge(
            "volplane_leak_check_last_success_timestamp_seconds",
            "Unix time at which the last complete leak check ended",
            "driver",
        )
        self._lost = make.gauge("volplane_lost_volumes", "Volumes of distributed drivers whose node is gone", "driver")
        super().__init__(make)

    def leak_checked(self, driver: str, at: float | None) -> None:
        """A check for leaks is over. at: Unix time of its end, None if it failed."""
        self._leak_checks[driver, "failed" if at is None else "complete"].inc()
        if at is not None:
            self._leak_checked[(driver,)].set(at)

    def leak_findings(self, driver: str, verdict: str, count: int) -> None:
        self._findings[driver, verdict].set(count)

    def volumes_lost(self, counts: Mapping[str, int]) -> None:
        """Volumes whose node is gone, by driver; of others than these there are none."""
        self._lost.forget()
        for driver, count in counts.items():
            self._lost[(driver,)].set(count)
