"""Compares the assets of a backend with the claims and volumes of the cluster, and remembers what it found.

Verdicts: `orphan` carries our marks but no volume and no claim leads to it; `ghost` is a volume whose asset is not
there; `drifted` is an asset that is smaller than its volume says, or found under another handle or another volume's
marks, or whose volume is gone while its claim lives; `foreign` carries no marks, or another cluster's, and is never
touched. An orphan may be deleted only after two observations a grace apart.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Container, Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from posixpath import dirname, normpath
from typing import TypeVar

from volplane.assets import ListedAsset, VolumeSource
from volplane.drivers.view import DriverView
from volplane.errors import OutcomeUnknown, VolplaneError
from volplane.intents.operation import OperationDeps
from volplane.intents.requests import context_of
from volplane.kube import names
from volplane.kube.client import Client
from volplane.kube.kinds import CLAIMS, VOLUMES, Kind
from volplane.kube.objects import Claim, KubeObject, Volume
from volplane.requests import ListRequest
from volplane.state.cluster_state import ClusterState
from volplane.state.matching import capacity_of
from volplane.state.naming import handle_in, source_of

__all__ = [
    "GRACE_SECONDS",
    "Comparison",
    "Finding",
    "Observations",
    "Verdict",
    "assets_of",
    "feed_cached",
    "feed_live",
    "findings_of",
    "paced",
]


GRACE_SECONDS = 300.0
"""Between the two observations of an orphan; longer than any listing may lag behind its backend."""
NANOS = 10**9
_PATHS = frozenset({"hostPath", "local", "nfs"})


class Verdict(StrEnum):
    ORPHAN = "orphan"
    GHOST = "ghost"
    DRIFTED = "drifted"
    FOREIGN = "foreign"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A difference between a backend and the cluster."""

    verdict: Verdict
    driver: str
    handle: str
    """Of the asset; "" for a ghost that never had one."""
    volume: str
    """Name of the volume; "" where there is none."""
    detail: str
    asset: ListedAsset | None = field(default=None, compare=False, repr=False)

    @property
    def key(self) -> tuple[str, str, str, str]:
        return (self.verdict, self.driver, self.handle, self.volume)


class Comparison:
    """Compares a complete listing of one driver with the claims and volumes of the cluster.

    Add every asset of the listing first, then every claim, then every volume, each kind read after the one before: an
    asset exists only after its claim's intent and before its volume, and the intent ends only after the volume exists,
    so what is made meanwhile never looks like an orphan. known: uids of volumes that existed before the listing began,
    for only they can be ghosts; None = all. in_reach: whether the listing covers the place of a volume.
    """

    def __init__(
        self,
        driver: str,
        cluster_id: str,
        *,
        known: Container[str] | None = None,
        in_reach: Callable[[Volume], bool] = lambda _volume: True,
    ) -> None:
        self._driver = driver
        self._cluster_id = cluster_id
        self._known = known
        self._in_reach = in_reach
        self._assets: list[ListedAsset] = []
        self._marked: set[str] = set()
        self._handles: dict[str, ListedAsset] = {}
        self._claim_uids: set[str] = set()
        self._claims: dict[str, Claim] = {}
        self._volumes: dict[str, Volume] = {}
        self._made_here: dict[str, Volume] = {}
        self._pointed_at: set[str] = set()
        self._present: set[str] = set()

    def add_asset(self, asset: ListedAsset) -> None:
        self._assets.append(asset)
        self._handles[asset.handle] = asset
        if asset.owner is not None:
            self._marked.add(asset.owner.volume_name)
            self._claim_uids.add(asset.owner.claim_uid)

    def add_claim(self, claim: Claim) -> None:
        if claim.uid in self._claim_uids:
            self._claims[claim.uid] = claim

    def add_volume(self, volume: Volume) -> None:
        if volume.annotation(names.PROVISIONED_BY) == self._driver:
            self._made_here[volume.name] = volume
        if volume.name in self._marked:
            self._volumes[volume.name] = volume
        else:
            self._pointed_at.update(_targets(volume))

    def forget_objects(self) -> None:
        """Keep the assets, and compare them with other claims and volumes."""
        self._claims.clear()
        self._volumes.clear()
        self._made_here.clear()
        self._pointed_at.clear()
        self._present.clear()

    def findings(self) -> Iterator[Finding | None]:
        """Yield a finding or None for each asset, in the order of the listing, then for each volume."""
        for asset in self._assets:
            yield self._about_asset(asset)
        for volume in self._made_here.values():
            yield self._about_volume(volume)

    # --- assets -------------------------------------------------------------------------------------------------

    def _about_asset(self, asset: ListedAsset) -> Finding | None:
        owner = asset.owner
        if owner is None:
            return self._finding(Verdict.FOREIGN, asset, "carries no marks")
        volume = self._volumes.get(owner.volume_name)
        if owner.cluster_id != self._cluster_id:
            return self._foreign(asset, owner.cluster_id, volume)
        self._present.add(owner.volume_name)
        if volume is not None:
            if volume.name not in self._made_here or volume.terminating:
                return None  # The volume is not this driver's, or its asset is being deleted.
            drift = _drift(asset, volume)
            return self._finding(Verdict.DRIFTED, asset, drift, volume.name) if drift else None
        target = _target(asset.source) if asset.source is not None else None
        if asset.handle in self._pointed_at or target in self._pointed_at:
            return None  # A volume of another name leads to it: one that a person made from it, or restored.
        claim = self._claims.get(owner.claim_uid)
        if claim is None:
            return self._finding(Verdict.ORPHAN, asset, "no volume and no claim leads to it")
        return self._left_by(claim, asset, owner.volume_name)

    def _foreign(self, asset: ListedAsset, cluster_id: str, volume: Volume | None) -> Finding:
        detail = f"carries the marks of cluster {cluster_id}"
        if volume is not None and (volume.annotation(names.HANDLE) or asset.handle) == asset.handle:
            self._present.add(volume.name)
            detail += f"; `volplane adopt --from {cluster_id}` takes over what volumes of this cluster point at"
            return self._finding(Verdict.FOREIGN, asset, detail, volume.name)
        return self._finding(Verdict.FOREIGN, asset, detail)

    def _left_by(self, claim: Claim, asset: ListedAsset, volume_name: str) -> Finding | None:
        """Judge an asset whose claim exists and whose volume does not."""
        if claim.has_finalizer(names.PROVISIONING_FINALIZER) or not claim.spec.volume_name:
            return None  # It is being provisioned, or the next attempt finds it by its name.
        if claim.spec.volume_name == volume_name:
            detail = f"claim {claim.key} is bound to volume {volume_name}, which does not exist; restore the volume"
            return self._finding(Verdict.DRIFTED, asset, detail)
        return self._finding(Verdict.ORPHAN, asset, f"claim {claim.key} is bound to {claim.spec.volume_name} instead")

    def _finding(self, verdict: Verdict, asset: ListedAsset, detail: str, volume: str = "") -> Finding:
        return Finding(
            verdict=verdict, driver=self._driver, handle=asset.handle, volume=volume, detail=detail, asset=asset
        )

    # --- volumes ------------------------------------------------------------------------------------------------

    def _about_volume(self, volume: Volume) -> Finding | None:
        if volume.terminating or volume.name in self._present or not self._in_reach(volume):
            return None
        handle = volume.annotation(names.HANDLE) or ""
        found = self._handles.get(handle)
        if found is not None:
            whose = f"volume {found.owner.volume_name}" if found.owner is not None else "nobody"
            detail = f"its asset carries the marks of {whose}"
            return self._finding(Verdict.DRIFTED, found, detail, volume.name)
        if self._known is not None and volume.uid not in self._known:
            return None  # It was made during the listing, which may have passed its asset's place.
        detail = "its asset is not on the backend"
        return Finding(verdict=Verdict.GHOST, driver=self._driver, handle=handle, volume=volume.name, detail=detail)


def _drift(asset: ListedAsset, volume: Volume) -> str:
    handle = volume.annotation(names.HANDLE)
    if handle and handle != asset.handle:
        return f"the volume points at {handle}"
    promised = -(-capacity_of(volume) // NANOS)
    if asset.capacity_bytes < promised:
        return f"holds {asset.capacity_bytes} bytes where the volume promises {promised}"
    return ""


def _targets(volume: Volume) -> Iterator[str]:
    """Yield every name that an asset may have at which this volume points, or below which."""
    if handle := volume.annotation(names.HANDLE):
        yield handle
    source = source_of(volume)
    if source is None or not (target := _target(source)):
        return
    yield target
    if source.kind in _PATHS:
        while len(target := dirname(target)) > 1:
            yield target


def _target(source: VolumeSource) -> str:
    text = handle_in(source)
    return normpath(text) if text and source.kind in _PATHS else text


class Observations:
    """When each finding was first seen without a break; a finding that vanishes and returns starts again."""

    def __init__(self, grace: float = GRACE_SECONDS) -> None:
        self._grace = grace
        self._findings: dict[str, dict[tuple[str, str, str, str], Finding]] = {}
        self._first: dict[tuple[str, str, str, str], float] = {}
        self._last: dict[tuple[str, str, str, str], float] = {}

    def add(self, driver: str, findings: Iterable[Finding], *, began: float, ended: float) -> list[Finding]:
        """Add a complete check of one driver (loop times of its listing); return what the last one did not find."""
        seen = {finding.key: finding for finding in findings}
        for key in self._findings.get(driver, {}).keys() - seen.keys():
            self._forget(key)
        fresh = [finding for key, finding in seen.items() if key not in self._first]
        for key in seen:
            self._first.setdefault(key, ended)
            self._last[key] = began
        self._findings[driver] = seen
        return fresh

    def findings(self) -> list[Finding]:
        """Return the findings of the last check of each driver, in order of key."""
        found = [finding for of_driver in self._findings.values() for finding in of_driver.values()]
        return sorted(found, key=lambda finding: finding.key)

    def count(self, driver: str, verdict: Verdict) -> int:
        """Return how many the last check of the driver found."""
        return sum(finding.verdict is verdict for finding in self._findings.get(driver, {}).values())

    def first_seen(self, finding: Finding) -> float:
        """Return the loop time since which every check found it."""
        return self._first[finding.key]

    def confirmed(self, finding: Finding) -> bool:
        """Return whether two checks a grace apart, and every one between them, found it."""
        key = finding.key
        return key in self._first and self._last[key] - self._first[key] >= self._grace

    def settled(self, finding: Finding) -> None:
        """Drop a finding that has been repaired."""
        self._findings.get(finding.driver, {}).pop(finding.key, None)
        self._forget(finding.key)

    def _forget(self, key: tuple[str, str, str, str]) -> None:
        self._first.pop(key, None)
        self._last.pop(key, None)


CHUNK = 500
"""Objects after which other tasks run."""

T = TypeVar("T")
K = TypeVar("K", bound=KubeObject)


async def assets_of(driver: DriverView, deps: OperationDeps) -> AsyncIterator[ListedAsset]:
    """Yield every asset in the driver's reach. After a BackendError or PluginError the list is incomplete."""
    context = context_of(driver, deps.cluster.cluster_id)
    seen: set[str] = set()
    token: str | None = None
    while True:
        async with deps.listing[driver.name]:
            page = await deps.hooks.call(driver, ListRequest(context=context, page=token))
        for asset in page.assets:
            yield asset
        token = page.next_page
        if token is None:
            return
        if token in seen:
            raise OutcomeUnknown(f"list_assets of driver {driver.name} names page {token!r} twice: it would never end")
        seen.add(token)


async def paced(items: Iterable[T]) -> AsyncIterator[T]:
    """Yield the items. Other tasks run after every `CHUNK` of them."""
    for number, item in enumerate(items, start=1):
        yield item
        if number % CHUNK == 0:
            await asyncio.sleep(0)


async def feed_cached(comparison: Comparison, cluster: ClusterState) -> None:
    """Compare with what the caches hold: enough to explain an asset, never to call it an orphan."""
    async for claim in paced(list(cluster.claims.values())):
        comparison.add_claim(claim)
    async for volume in paced(list(cluster.volumes.values())):
        comparison.add_volume(volume)


async def feed_live(comparison: Comparison, client: Client) -> None:
    """Compare with what the API server has now. Raises ApiError; VolplaneError if an object cannot be read."""
    await _feed_pages(client, CLAIMS, comparison.add_claim)
    await _feed_pages(client, VOLUMES, comparison.add_volume)


async def _feed_pages(client: Client, kind: Kind[K], add: Callable[[K], None]) -> None:
    async for page in client.pages(kind, limit=CHUNK):
        if page.unreadable:
            raise VolplaneError(
                f"{kind.kind} {page.unreadable[0]} cannot be read: it may lead to any asset, so nothing can be called "
                "an orphan; repair or delete the object"
            )
        for obj in page.items:
            add(obj)


async def findings_of(comparison: Comparison) -> list[Finding]:
    """Return the findings, without blocking the event loop."""
    return [finding async for finding in paced(comparison.findings()) if finding is not None]
