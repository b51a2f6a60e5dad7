"""What is used of volumes that are directories, as metrics: measured in the driver's pace, a slice of each probe."""

from __future__ import annotations

import heapq
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from prometheus_client import Gauge

from volplane._shared import USED_BYTES, USED_INODES

__all__ = ["Usage", "UsageReport"]

MOST_SERIES: Final = 5_000
"""Volumes of a driver with series of their own: those that use most. The others together are "(other)"."""
_OTHER: Final = "(other)"
_ROUND: Final = 60.0
"""Seconds between the beginnings of two rounds over all volumes, at least."""
_SLICE: Final = 0.5
_PART: Final = 100


@dataclass(frozen=True, slots=True)
class Usage:
    """What is used of a volume now."""

    size: int
    """Bytes."""
    inodes: int | None = None
    """Files, directories and links; None = not known."""


@dataclass(slots=True)
class _Round:
    """One round over the volumes of a part; `left` are those that are still to be measured."""

    next_at: float = 0.0
    left: Sequence[str] = ()
    found: dict[str, Usage] | None = None
    """None: no round is under way."""


class UsageReport:
    """The usage of one driver's volumes, as `volplane_volume_used_bytes` and `volplane_volume_used_inodes`.

    A driver with several shares measures them apart. Threads may share it. now: monotonic seconds.
    """

    def __init__(self, *, most: int = MOST_SERIES, now: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._now = now
        self._lock = threading.Lock()
        self._rounds: dict[str, _Round] = {}
        self._known: dict[str, Mapping[str, Usage]] = {}
        self._shown: set[tuple[str, str]] = set()

    def work(
        self,
        driver: str,
        part: str,
        names: Callable[[], Sequence[str]],
        measure: Callable[[Sequence[str]], Mapping[str, Usage]],
    ) -> None:
        """Measure for half a second, from where the last call ended; what a round has found is shown at its end.

        Nothing if another thread is about it, or the last round began less than a minute ago. part: of the driver, such
        as a share. names: of its volumes. measure: of some of them; what is not known it leaves out. Raises what these
        raise; then a new round begins with the next minute, and what is shown stays.
        """
        if not self._lock.acquire(blocking=False):
            return
        try:
            self._work(driver, self._rounds.setdefault(part, _Round()), part, names, measure)
        finally:
            self._lock.release()

    def _work(
        self,
        driver: str,
        now: _Round,
        part: str,
        names: Callable[[], Sequence[str]],
        measure: Callable[[Sequence[str]], Mapping[str, Usage]],
    ) -> None:
        begun = self._now()
        found, left, now.found, now.left = now.found, now.left, None, ()
        if found is None:
            if begun < now.next_at:
                return
            now.next_at = begun + _ROUND
            found, left = {}, names()
        while left:
            if self._now() - begun >= _SLICE:
                now.found, now.left = found, left
                return
            found |= measure(left[:_PART])
            left = left[_PART:]
        self._known[part] = found
        self._show(driver)

    def _show(self, driver: str) -> None:
        every = {name: usage for found in self._known.values() for name, usage in found.items()}
        most = heapq.nlargest(self._most, every, key=lambda name: every[name].size)
        single = dict.fromkeys(most)
        figures: dict[str, Usage] = {name: every[name] for name in most}
        others = [usage for name, usage in every.items() if name not in single]
        if others:
            inodes = [each.inodes for each in others if each.inodes is not None]
            figures[_OTHER] = Usage(sum(each.size for each in others), sum(inodes) if inodes else None)
        for name, usage in figures.items():
            USED_BYTES.labels(driver, name).set(usage.size)
            if usage.inodes is not None:
                USED_INODES.labels(driver, name).set(usage.inodes)
        shown = {(driver, name) for name in figures}
        self._remove(self._shown - shown)
        self._remove({(driver, name) for name, usage in figures.items() if usage.inodes is None}, USED_INODES)
        self._shown = shown

    @staticmethod
    def _remove(series: set[tuple[str, str]], *gauges: Gauge) -> None:
        for gauge in gauges or (USED_BYTES, USED_INODES):
            for labels in series:
                gauge.remove(*labels)

    def close(self) -> None:
        """Remove the series: the driver is stopped."""
        with self._lock:
            self._remove(self._shown)
            self._rounds, self._known, self._shown = {}, {}, set()
