"""The leak check: what is on the backend against what the cluster knows. Pure, but for the memory of observations.

Verdicts: `orphan` carries our marks but no volume and no intent leads to it; `ghost` is a volume whose asset is not
there; `drifted` is an asset that is smaller than its volume says, or found under another handle; `foreign` carries no
marks, or another cluster's, and is never touched. An orphan may be deleted only after two observations a grace apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from volplane.assets import ListedAsset
from volplane.binding.matching import capacity_of
from volplane.kube import names
from volplane.kube.objects import Claim, Volume

__all__ = ["GRACE_SECONDS", "Finding", "Observations", "Verdict", "judge"]

GRACE_SECONDS = 300.0
"""Between the two observations of an orphan; longer than any listing may lag behind its backend."""
NANOS = 10**9


class Verdict(StrEnum):
    ORPHAN = "orphan"
    GHOST = "ghost"
    DRIFTED = "drifted"
    FOREIGN = "foreign"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that does not fit. handle: "" for a ghost that never had one; volume: "" where there is none."""

    verdict: Verdict
    driver: str
    handle: str
    volume: str
    detail: str

    @property
    def key(self) -> tuple[str, str, str, str]:
        return (self.verdict, self.driver, self.handle, self.volume)


def judge(
    driver: str,
    cluster_id: str,
    listed: Iterable[ListedAsset],
    volumes: Iterable[Volume],
    claims: Mapping[str, Claim],
) -> list[Finding]:
    """Compare a complete listing of one driver with its volumes and with the claims by uid, in order of key.

    volumes and claims must have been read after the listing: what is made meanwhile then never looks like an orphan.
    """
    ours = {volume.name: volume for volume in volumes if volume.annotation(names.PROVISIONED_BY) == driver}
    findings: list[Finding] = []
    present: set[str] = set()
    for asset in listed:
        owner = asset.owner
        if owner is None or owner.cluster_id != cluster_id:
            whose = "no marks" if owner is None else f"the marks of cluster {owner.cluster_id}"
            findings.append(_finding(Verdict.FOREIGN, driver, asset, f"carries {whose}"))
            continue
        present.add(owner.volume_name)
        volume = ours.get(owner.volume_name)
        if volume is None:
            claim = claims.get(owner.claim_uid)
            if claim is None or not claim.has_finalizer(names.PROVISIONING_FINALIZER):
                findings.append(_finding(Verdict.ORPHAN, driver, asset, "no volume and no intent leads to it"))
            continue
        drift = _drift(asset, volume)
        if drift:
            findings.append(_finding(Verdict.DRIFTED, driver, asset, drift, volume.name))
    for name, volume in ours.items():
        if name not in present and not volume.terminating:
            handle = volume.annotation(names.HANDLE) or ""
            detail = "its asset is not on the backend"
            findings.append(Finding(verdict=Verdict.GHOST, driver=driver, handle=handle, volume=name, detail=detail))
    return sorted(findings, key=lambda finding: finding.key)


def _finding(verdict: Verdict, driver: str, asset: ListedAsset, detail: str, volume: str = "") -> Finding:
    return Finding(verdict=verdict, driver=driver, handle=asset.handle, volume=volume, detail=detail)


def _drift(asset: ListedAsset, volume: Volume) -> str:
    handle = volume.annotation(names.HANDLE)
    if handle and handle != asset.handle:
        return f"the volume points at {handle}"
    promised = -(-capacity_of(volume) // NANOS)
    if asset.capacity_bytes < promised:
        return f"holds {asset.capacity_bytes} bytes where the volume promises {promised}"
    return ""


class Observations:
    """When each finding was first seen without a break; a finding that vanishes and returns starts anew."""

    def __init__(self, grace: float = GRACE_SECONDS) -> None:
        self._grace = grace
        self._first: dict[tuple[str, str, str, str], float] = {}
        self._findings: dict[str, list[Finding]] = {}

    def add(self, driver: str, findings: Iterable[Finding], now: float) -> None:
        """Take in a complete check of one driver; now: loop time at which its listing began."""
        seen = list(findings)
        keys = {finding.key for finding in seen}
        for key in [key for key in self._first if key[1] == driver and key not in keys]:
            del self._first[key]
        for key in keys:
            self._first.setdefault(key, now)
        self._findings[driver] = seen

    def findings(self) -> list[Finding]:
        """Of the last check of each driver."""
        return [finding for driver in sorted(self._findings) for finding in self._findings[driver]]

    def confirmed(self, finding: Finding, now: float) -> bool:
        """Whether it was also seen at least a grace ago, and at every check since."""
        first = self._first.get(finding.key)
        return first is not None and now - first >= self._grace
