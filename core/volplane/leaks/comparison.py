"""Compares the assets of a backend with the claims and volumes of the cluster, and remembers what it found.

Verdicts: `orphan` carries our marks but no volume and no claim leads to it; `ghost` is a volume whose asset is not
there; `drifted` is an asset that is smaller than its volume says, or found under another handle or another volume's
marks, or whose volume is gone while its claim lives; `foreign` carries no marks, or another cluster's, and is never
touched. An orphan may be deleted only after two observations a grace apart.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import sha256
from itertools import islice
from math import inf
from posixpath import dirname, normpath
from typing import Annotated, Any, TypeVar

import msgspec
from sortedcontainers import SortedList

from volplane.assets import AssetPage, ListedAsset, Ownership, Snapshot, SnapshotPage, VolumeSource
from volplane.drivers.driver import DriverView
from volplane.errors import ApiError, OutcomeUnknown, VolplaneError
from volplane.intents.operation import OperationDeps
from volplane.kube import names
from volplane.kube.answers import Listing
from volplane.kube.client import Client
from volplane.kube.kinds import CLAIMS, VOLUMES, Kind
from volplane.kube.objects import Claim, Volume
from volplane.requests import Fence, HookRequest, ListRequest
from volplane.snapshots.leaks import LED_TO_BY, MAY_LACK, ListedSnapshots
from volplane.state.matching import capacity_of, whole_bytes
from volplane.state.naming import csi_source, handle_in, volume_source

MOST_NOTED = 100
"""Findings of all drivers whose first sight is noted on the Lease: it is written every two seconds."""
GRACE_SECONDS = 300.0
"""Between the two observations of an orphan; longer than any listing may lag behind its backend."""
CHUNK = 500
"""Objects after which other tasks run."""
_PATHS = frozenset({"hostPath", "local", "nfs"})

T = TypeVar("T")
P = TypeVar("P", AssetPage, SnapshotPage)
KindsToCompare = tuple[tuple[Kind[Any], Callable[[Any], None]], ...]
"""Kinds in the order in which they are read, and what takes their objects."""
Key = tuple[str, str, str, str, str]
Noted = dict[str, dict[str, Annotated[float, msgspec.Meta(ge=0, lt=1e11)]]]
"""By driver and digest of a finding's key, when it was first seen: seconds since the epoch."""

Terms = dict[tuple[str, str], Fence]
"""By cluster and Lease, the latest term in which an asset was changed."""


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
    volume: str = ""
    """Name of the volume; "" where there is none."""
    detail: str
    kind: str = "asset"
    """"asset" or "snapshot"."""
    listed: ListedAsset | Snapshot | None = field(default=None, compare=False, repr=False)

    @property
    def key(self) -> Key:
        return (self.verdict, self.driver, self.handle, self.volume, self.kind)


@dataclass(slots=True, eq=False)
class Comparison:
    """Compares a complete listing of one driver with the claims and volumes of the cluster.

    Add every asset of the listing first, then every claim, then every volume, each kind read after the one before: an
    asset exists only after its claim's intent and before its volume, and the intent ends only after the volume exists,
    so what is made meanwhile never looks like an orphan.
    """

    driver: str
    cluster_id: str
    known: SortedList[str] | None = None
    """Uids of volumes that existed before the listing began, for only they can be ghosts; None = all. Those whose
    assets are listed are removed. A sorted list takes a quarter of the memory of a set.
    """
    in_reach: Callable[[Volume], bool] = lambda _volume: True
    """Whether the listing covers the place of a volume."""
    cached: Callable[[str], Volume | None] = lambda _name: None
    """A volume by its name: an asset that it explains is not kept, for there may be a million."""
    terms: Terms = field(default_factory=dict)
    _assets: list[ListedAsset] = field(default_factory=list)
    _marked: set[str] = field(default_factory=set)
    _handles: dict[str, ListedAsset] = field(default_factory=dict)
    _claim_uids: set[str] = field(default_factory=set)
    _wanted: set[str] = field(default_factory=set)
    """All that a volume may point at that leads to one of the assets."""
    _claims: dict[str, Claim] = field(default_factory=dict)
    _volumes: dict[str, Volume] = field(default_factory=dict)
    _made_here: dict[str, Volume] = field(default_factory=dict)
    """Volumes of the driver whose assets were not listed, or are kept."""
    _pointed_at: set[str] = field(default_factory=set)
    _present: set[str] = field(default_factory=set)
    _missing: set[str] = field(default_factory=set)
    """Handles of ghosts, which other volumes may have too."""
    _others: dict[str, str] = field(default_factory=dict)
    """By such a handle the volume whose asset was listed."""

    def add_listed(self, asset: ListedAsset) -> None:
        note_term(self.terms, asset)
        owner = asset.owner
        volume = self.cached(owner.volume_name) if owner is not None and owner.cluster_id == self.cluster_id else None
        if volume is not None and self._is_ours(volume) and not volume.terminating and not _drift(asset, volume):
            if self.known is not None:
                self.known.discard(volume.uid)
            return
        self._assets.append(asset)
        self._handles[asset.handle] = asset
        if owner is not None:
            self._marked.add(owner.volume_name)
            self._claim_uids.add(owner.claim_uid)
            self._wanted |= _names_of(asset)

    def add_claim(self, claim: Claim) -> None:
        if claim.uid in self._claim_uids:
            self._claims[claim.uid] = claim

    def add_volume(self, volume: Volume) -> None:
        marked = volume.name in self._marked
        if self._is_ours(volume):
            handle = volume.annotation(names.HANDLE) or ""
            if marked or handle in self._handles or self._was_known(volume):
                self._made_here[volume.name] = volume
            elif handle in self._missing:
                self._others[handle] = volume.name
        if marked:
            self._volumes[volume.name] = volume
        elif self._wanted:
            self._pointed_at |= self._wanted.intersection(_targets(volume))

    def _is_ours(self, volume: Volume) -> bool:
        return volume.annotation(names.PROVISIONED_BY) == self.driver

    def _was_known(self, volume: Volume) -> bool:
        return self.known is None or volume.uid in self.known

    @property
    def kinds(self) -> KindsToCompare:
        return (CLAIMS, self.add_claim), (VOLUMES, self.add_volume)

    def forget_objects(self) -> None:
        """Keep the assets, and compare them with other claims and volumes."""
        for objects in (self._claims, self._volumes, self._made_here, self._pointed_at, self._present):
            objects.clear()

    def findings(self) -> Iterator[Finding | None]:
        """Yield a finding or None for each asset, in the order of the listing, then for each volume."""
        for asset in self._assets:
            yield self._about_asset(asset)
        for volume in self._made_here.values():
            yield self._about_volume(volume)

    def _about_asset(self, asset: ListedAsset) -> Finding | None:
        owner = asset.owner
        # Without our marks nothing shows that the asset is ours: it is never called an orphan.
        if owner is None:
            return self._finding(Verdict.FOREIGN, asset, "carries no marks")
        volume = self._volumes.get(owner.volume_name)
        # What lies there is for the other cluster to judge.
        if owner.cluster_id != self.cluster_id:
            detail = f"carries the marks of cluster {owner.cluster_id}"
            if volume is None or (volume.annotation(names.HANDLE) or asset.handle) != asset.handle:
                return self._finding(Verdict.FOREIGN, asset, detail)
            self._present.add(volume.name)
            detail += f"; `volplane adopt --from {owner.cluster_id}` takes over what volumes of this cluster point at"
            return self._finding(Verdict.FOREIGN, asset, detail, volume.name)
        self._present.add(owner.volume_name)
        if volume is not None:
            # The volume is not this driver's, or its asset is being deleted.
            if volume.name not in self._made_here or volume.terminating:
                return None
            drift = _drift(asset, volume)
            return self._finding(Verdict.DRIFTED, asset, drift, volume.name) if drift else None
        # A volume of another name leads to it: one that a person made from it, or restored.
        if not self._pointed_at.isdisjoint(_names_of(asset)):
            return None
        return self._without_volume(asset, owner)

    def _without_volume(self, asset: ListedAsset, owner: Ownership) -> Finding | None:
        claim = self._claims.get(owner.claim_uid)
        # Claims and volumes were read after the listing: what leads to it would have been seen.
        if claim is None:
            return self._finding(Verdict.ORPHAN, asset, "no volume and no claim leads to it")
        # It is being provisioned, or the next attempt finds it by its name.
        if claim.has_finalizer(names.PROVISIONING_FINALIZER) or not claim.spec.volume_name:
            return None
        # The claim lives and wants this very volume: the asset holds its data, though the volume is lost.
        if claim.spec.volume_name == owner.volume_name:
            detail = f"claim {claim.key} is bound to volume {owner.volume_name}, which does not exist"
            return self._finding(Verdict.DRIFTED, asset, f"{detail}; restore the volume")
        return self._finding(Verdict.ORPHAN, asset, f"claim {claim.key} is bound to {claim.spec.volume_name} instead")

    def _finding(
        self, verdict: Verdict, asset: ListedAsset | None, detail: str, volume: str = "", handle: str = ""
    ) -> Finding:
        handle = asset.handle if asset is not None else handle
        return Finding(verdict=verdict, driver=self.driver, handle=handle, volume=volume, detail=detail, listed=asset)

    def _about_volume(self, volume: Volume) -> Finding | None:
        # The asset of a terminating volume may be gone already; what is out of reach was not listed.
        if volume.terminating or volume.name in self._present or not self.in_reach(volume):
            return None
        handle = volume.annotation(names.HANDLE) or ""
        found = self._handles.get(handle)
        marks = found.owner if found is not None else None
        other = marks.volume_name if marks is not None else self._others.get(handle)
        if found is not None or other is not None:
            detail = f"its asset carries the marks of {f'volume {other}' if other is not None else 'nobody'}"
            return self._finding(Verdict.DRIFTED, found, detail, volume.name, handle)
        # It was made during the listing, which may have passed its asset's place.
        if not self._was_known(volume):
            return None
        self._missing.add(handle)
        return self._finding(Verdict.GHOST, None, "its asset is not on the backend", volume.name, handle)


class SnapshotComparison(ListedSnapshots):
    """Compares a complete listing of the snapshots of one driver, as `Comparison` does that of its assets."""

    def __init__(self, driver: str, cluster_id: str) -> None:
        super().__init__(cluster_id)
        self.driver = driver

    @property
    def kinds(self) -> KindsToCompare:
        adders = (self.add_group_content, self.add_snapshot, self.add_content)
        return tuple(zip(LED_TO_BY, adders, strict=True))

    def findings(self) -> Iterator[Finding]:
        for verdict, found in ((Verdict.ORPHAN, self.lost()), (Verdict.FOREIGN, self.foreign())):
            for each, why in found:
                handle, kind = each.handle, "snapshot"
                yield Finding(verdict=verdict, driver=self.driver, handle=handle, detail=why, kind=kind, listed=each)


def note_term(terms: Terms, asset: ListedAsset) -> None:
    """Keep, of each cluster and Lease, the latest term in which an asset was changed."""
    if asset.owner is not None and (term := Fence.parse(asset.changed_in)) is not None:
        key = (asset.owner.cluster_id, term.lease)
        if term.outdates(terms.setdefault(key, term)):
            terms[key] = term


def _drift(asset: ListedAsset, volume: Volume) -> str:
    """Return in what the asset differs from the volume of its name; "" if it is as the volume says."""
    pointer, promised = volume.annotation(names.HANDLE), whole_bytes(capacity_of(volume))
    if pointer and pointer != asset.handle:
        return f"the volume points at {pointer}"
    if asset.capacity_bytes < promised:
        return f"holds {asset.capacity_bytes} bytes where the volume promises {promised}"
    return ""


def _names_of(asset: ListedAsset) -> set[str]:
    """Return all that a volume of another name may point at that leads to the asset."""
    target = _target(asset.source) if asset.source is not None else ""
    return {asset.handle, target, _disk(asset.handle)} - {""}


def _targets(volume: Volume) -> Iterator[str]:
    """Yield every name that an asset may have at which this volume points, or below which."""
    if handle := volume.annotation(names.HANDLE):
        yield handle
    source, disk = volume_source(volume), csi_source(volume)[1]
    if disk and source.kind != "csi":
        yield _disk(disk)
    if not (target := _target(source)):
        return
    yield target
    if source.kind in _PATHS:
        while len(target := dirname(target)) > 1:
            yield target


def _disk(handle: str) -> str:
    """Return what all notations of a cloud's disk have in common: in-tree ones lack its project, or add its zone."""
    return f"disk {handle.rpartition('/')[2].lower()}"


def _target(source: VolumeSource) -> str:
    text = handle_in(source)
    return normpath(text) if text and source.kind in _PATHS else text


@dataclass(slots=True, eq=False)
class Observations:
    """When each finding was first seen without a break; a finding that vanishes and returns starts again."""

    grace: float = GRACE_SECONDS
    noted: Noted = field(default_factory=dict)
    """Of what is not foreign, also by processes before this one: shown to people, and no reason to delete anything."""
    _seen: dict[str, dict[Key, tuple[Finding, float]]] = field(default_factory=dict)
    """By driver, what its last check found, each with the loop time of the listing that showed it first."""
    _began: dict[str, float] = field(default_factory=dict)
    """By driver, when the listing of its last check began."""

    def add(
        self, driver: str, findings: Iterable[Finding], *, began: float, ended: float, epoch: float = 0.0
    ) -> list[Finding]:
        """Add a complete check of one driver (loop times of its listing); return what the last one did not find.

        epoch: what the wall clock shows at loop time 0.
        """
        before, found = self._seen.get(driver, {}), {finding.key: finding for finding in findings}
        seen = {key: (each, before[key][1] if key in before else ended) for key, each in found.items()}
        noted, ours = self.noted.get(driver, {}), (key for key in seen if key[0] != Verdict.FOREIGN)
        room = max(0, MOST_NOTED + len(noted) - sum(map(len, self.noted.values())))
        told = ((_digest(key), round(epoch + seen[key][1])) for key in islice(ours, room))
        self.noted[driver] = {digest: noted.get(digest, first) for digest, first in told}
        self._seen[driver], self._began[driver] = seen, began
        return [finding for key, finding in found.items() if key not in before]

    def findings(self) -> list[Finding]:
        """Return the findings of the last check of each driver, in order of key."""
        found = (finding for of_driver in self._seen.values() for finding, _ in of_driver.values())
        return sorted(found, key=lambda finding: finding.key)

    def count(self, driver: str, verdict: Verdict) -> int:
        return sum(finding.verdict is verdict for finding, _ in self._seen.get(driver, {}).values())

    def first_seen(self, finding: Finding, epoch: float = 0.0) -> float:
        """Return since when every check found it, as the wall clock showed it."""
        _, first = self._seen[finding.driver][finding.key]
        return self.noted.get(finding.driver, {}).get(_digest(finding.key), epoch + first)

    def confirmed(self, finding: Finding) -> bool:
        """Return whether two checks a grace apart, and every one between them, found it."""
        _, first = self._seen.get(finding.driver, {}).get(finding.key, (None, inf))
        return self._began.get(finding.driver, 0.0) - first >= self.grace

    def settled(self, finding: Finding) -> None:
        """Drop a finding that has been repaired."""
        self._seen.get(finding.driver, {}).pop(finding.key, None)


def _digest(key: Key) -> str:
    return sha256(repr(key).encode()).hexdigest()[:16]


async def assets_of(driver: DriverView, deps: OperationDeps) -> AsyncIterator[ListedAsset]:
    """Yield every asset in the driver's reach. After a BackendError or PluginError the list is incomplete."""
    async for page in pages_of(driver, deps, ListRequest):
        for asset in page.assets:
            yield asset


async def pages_of(driver: DriverView, deps: OperationDeps, ask: Callable[..., HookRequest[P]]) -> AsyncIterator[P]:
    """Yield the pages of a listing; as `assets_of`. ask: makes the request of (context=, page=)."""
    context = deps.context(driver)
    seen: set[str] = set()
    token: str | None = None
    while True:
        request = ask(context=context, page=token)
        async with deps.listing[driver.name]:
            page = await deps.hooks.call(driver, request)
        yield page
        token = page.next_page
        if token is None:
            return
        if token in seen:
            what = f"{request.hook} of driver {driver.name}"
            raise OutcomeUnknown(f"{what} names page {token!r} twice: it would never end")
        seen.add(token)


async def paced(items: Iterable[T]) -> AsyncIterator[T]:
    """Yield the items. Other tasks run after every `CHUNK` of them."""
    for number, item in enumerate(items, start=1):
        yield item
        if number % CHUNK == 0:
            await asyncio.sleep(0)


async def feed_live(kinds: KindsToCompare, client: Client) -> None:
    """Compare with what the server has now. Raises ApiError, and VolplaneError for an object that is unreadable."""
    for kind, add in kinds:
        pages: AsyncIterator[Listing[Any]] = client.pages(kind, limit=CHUNK)
        try:
            async for page in pages:
                if page.unreadable:
                    why = "it may lead to any asset, so nothing can be called an orphan; repair or delete the object"
                    raise VolplaneError(f"{kind.kind} {page.unreadable[0]} cannot be read: {why}")
                for obj in page.items:
                    add(obj)
        except ApiError as error:
            if kind not in MAY_LACK or error.status not in (403, 404):
                raise
            add(None)
