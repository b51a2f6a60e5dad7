"""The kinds of faults that schedules can make, and how often each happened."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

__all__ = ["KINDS", "Coverage"]

KINDS: Final[Mapping[str, tuple[str, ...]]] = {
    "api": (
        "429",
        "500",
        "503",
        "timeout",
        "lost answer",
        "half an answer",
        "500 after",
        "conflict",
        "late",
        "late effect",
        "late pod create",
        "crash before",
        "crash after",
    ),
    "watch": (
        "refused",
        "behind",
        "stall",
        "duplicate",
        "break",
        "end",
        "gone",
        "all end",
        "all are held up",
        "pods are held up",
        "storageclasses are held up",
        "history compacted",
    ),
    "hook": (
        "unavailable",
        "throttled",
        "bug",
        "lost answer",
        "unavailable after",
        "crash before",
        "crash after",
        "hangs",
        "slow",
        "driver down",
        "start hangs",
        "list_assets hangs",
        "late provision",
        "late delete",
        "late recycle",
        "late expand",
    ),
    "storage": ("acts late", "zone full"),
    "pod": ("scrub fails", "scrub is slow"),
    "process": ("killed", "two lead", "stopped", "cut off from the API server"),
    "machine": ("suspended",),
    "lease": (
        "deleted",
        "made anew",
        "edited (fewer terms)",
        "edited (more terms)",
        "edited (another holder)",
        "edited (no holder)",
    ),
    "server": (
        "rotates a certificate",
        "answers 401",
        "answers 403",
        "a proxy answers 404",
        "a proxy answers 502",
        "is restored from a backup",
    ),
    "clock": ("set forth", "set back"),
    "user": (
        "changes a policy",
        "clears a claimRef",
        "clears a claimRef during a delete",
        "creates a pod for a claim that is being deleted",
        "deletes a class",
        "deletes a scrubber pod",
        "deletes a volume",
        "deletes a volume that is bound",
        "forges an intent (copied)",
        "forges an intent (garbage)",
        "forges an intent (other driver)",
        "forges an intent (other generation)",
        "forges an intent (replayed)",
        "forges a scrubber pod",
        "lets a claim grow",
        "moves a claim to another node",
        "removes a claim in use by force",
        "restores from a backup (both)",
        "restores from a backup (claim)",
        "restores from a backup (fresh reference)",
        "strips a volume's intent",
        "strips an intent",
        "strips our finalizer",
    ),
}
"""By where it comes from. `Trace.happened` counts each as `where: what`."""


WITH_BACKENDS: Final[Mapping[str, tuple[str, ...]]] = {"hook": ("crash inside", "storage out of reach")}
"""Kinds that need external backends."""


class Coverage:
    """Counts over many runs. backends: real ones take part."""

    def __init__(self, *, backends: bool = False) -> None:
        self._kinds = [KINDS, WITH_BACKENDS] if backends else [KINDS]
        self.times: Counter[str] = Counter()
        """kind -> how often it came."""
        self.runs: Counter[str] = Counter()
        """kind -> in how many runs it came."""

    def add(self, happened: Mapping[str, int]) -> None:
        """Count one run."""
        came = {kind: count for kind, count in happened.items() if count}
        self.times.update(came)
        self.runs.update(came.keys())

    def rows(self) -> Iterable[tuple[str, int, int]]:
        """Return (kind, times, runs) for every kind, also for those that did not occur."""
        for table in self._kinds:
            for where, kinds in table.items():
                for what in kinds:
                    kind = f"{where}: {what}"
                    yield kind, self.times[kind], self.runs[kind]

    def missing(self) -> list[str]:
        """Kinds that never happened."""
        return [kind for kind, times, _ in self.rows() if not times]
