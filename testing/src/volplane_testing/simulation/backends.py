"""A storage system in memory that behaves like a cloud: slow, with lost answers, strict about ownership marks.

It makes at most one asset for one client token (claim uid and generation), compares fences if it can, and lets requests
take effect late, but never later than `settle` seconds after they were sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from volplane import (
    Absent,
    AlreadyDeleted,
    AlreadyExists,
    Asset,
    AssetPage,
    AttachedElsewhere,
    Attachment,
    AttachRequest,
    BackendSpec,
    DeleteRequest,
    DescribeRequest,
    DetachRequest,
    Done,
    DriverInfo,
    Erased,
    ExpandRequest,
    Fence,
    Fenced,
    FindRequest,
    InProgress,
    ListedAsset,
    ListRequest,
    NotFound,
    Ownership,
    OwnsRequest,
    PodScrub,
    ProvisionRequest,
    RecycleRequest,
    ResourceExhausted,
    VolumeInUse,
    VolumeSource,
    hookimpl,
)
from volplane.drivers.contract import HOOKS
from volplane.requests import Context
from volplane_testing.simulation.chance import Chance

__all__ = ["ZONE", "AttachingBackend", "BackendTraits", "LookingBackend", "SimulatedBackend"]

ZONE: Final = "topology.kubernetes.io/zone"


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendTraits:
    """How this storage system is.

    finds: `find` is implemented. settle: seconds for which a request may still take effect. steps: share of provisions
    and deletions that answer InProgress first. full: share of zones that have no room for an asset. erases: `recycle`
    erases by itself instead of asking for a scrubber pod. fenced: a call of an earlier term of a Lease is refused.
    tokens: a client token makes one asset for ever; without, every zone makes what it is asked for (late must be 0
    then). sees_mounts: an asset in use is not deleted. notated: assets are iSCSI units (`NotatedBackend`). attaches:
    assets are attached to nodes before they are mounted; strict: and never to a second one. cuts: there are snapshots
    (`CuttingBackend`). groups: of several assets at one moment, too (`GroupingBackend`).
    """

    zones: tuple[str, ...] = ()
    finds: bool = True
    settle: float = 10.0
    steps: float = 0.0
    late: float = 0.0
    full: float = 0.0
    erases: bool = False
    fenced: bool = True
    tokens: bool = True
    sees_mounts: bool = True
    notated: bool = False
    attaches: bool = False
    strict: bool = True
    cuts: bool = False
    groups: bool = False


@dataclass(slots=True, eq=False)
class Stored:
    """One asset of the storage system.

    ready: loop time. going: loop time at which a long deletion is done. asked: bytes that it was made with.
    """

    handle: str
    zone: str
    capacity: int
    owner: Ownership | None
    ready: float = 0.0
    going: float | None = None
    asked: int = 0
    nodes: dict[str, str] = field(default_factory=dict)
    """To which it is attached, and the machine that each is, if known."""


@dataclass(slots=True)
class Listeners:
    """Called on effects and faults as they happen. `mounted` says whether somebody uses the asset of a handle, `gone`
    whether the machine of an id is no more.
    """

    made: Callable[[str, Ownership], None] = lambda _handle, _owner: None
    unmade: Callable[[str], None] = lambda _handle: None
    erased: Callable[[str], None] = lambda _handle: None
    trouble: Callable[[str], None] = lambda _kind: None
    mounted: Callable[[str], bool] = lambda _handle: False
    attached: Callable[[str, str], None] = lambda _handle, _node: None
    detached: Callable[[str, str], None] = lambda _handle, _node: None
    gone: Callable[[str], bool] = lambda _machine: False


@dataclass(slots=True)
class _Memory:
    assets: dict[str, Stored] = field(default_factory=dict)
    tokens: set[tuple[str, int]] = field(default_factory=set)
    fences: dict[str, Fence] = field(default_factory=dict)


class SimulatedBackend(BackendSpec):
    """The storage system without `find`."""

    def __init__(self, name: str, traits: BackendTraits, chance: Chance) -> None:
        super().__init__({})
        self.name = name
        self.traits = traits
        self.listeners = Listeners()
        self._chance = chance
        self._memory = _Memory()

    def __dir__(self) -> Iterable[str]:
        """Return the hooks alone: pluggy looks at each name, which takes more than the rest of a driver."""
        return HOOKS

    @property
    def root(self) -> str:
        return f"/{self.name.partition('.')[0]}"

    @property
    def assets(self) -> Mapping[str, Stored]:
        """By handle, which is a path below `root`."""
        return self._memory.assets

    def source_of(self, handle: str) -> VolumeSource:
        """Return the source by which volumes find this asset."""
        return VolumeSource(kind="hostPath", fields={"path": handle})

    def add(self, name: str, capacity: int) -> str:
        """Add an asset that a user made; returns its handle."""
        handle = f"{self.root}/{name}"
        if handle not in self._memory.assets:
            self._memory.assets[handle] = Stored(handle, "", capacity, None)
        return handle

    def damage_mark(self, name: str, count: int) -> bool:
        """Let the mark of the term in which the asset of this volume was changed have another count, if it has one."""
        if (fence := self._memory.fences.get(name)) is None:
            return False
        self._memory.fences[name] = replace(fence, transitions=count, holder="")
        return True

    # --- hooks --------------------------------------------------------------------------------------------------

    @hookimpl
    def describe(self, request: DescribeRequest) -> DriverInfo:
        return DriverInfo(
            version="1",
            topology_keys=(ZONE,) if self.traits.zones else (),
            settle_seconds=self.traits.settle,
        )

    @hookimpl
    def provision(self, request: ProvisionRequest) -> Asset | InProgress:
        self._check_fence(request.name, request.context)
        zone = (request.segment or {}).get(ZONE, self.traits.zones[0] if self.traits.zones else "")
        generation = request.owner.generation
        name = request.name if generation == 1 else f"{request.name}-{generation}"
        handle = f"{self.root}/{zone}/{name}" if zone else f"{self.root}/{name}"
        about = f"{self.name} {request.claim.name} {generation} {zone}"
        stored = self._memory.assets.get(handle)
        if stored is None:
            if self.traits.full and self._chance.strikes(f"{about} full", self.traits.full):
                self.listeners.trouble("storage: zone full")
                raise ResourceExhausted(f"zone {zone} is full", scope=zone, reschedule=True, nothing_done=True)
            if self._chance.strikes(f"{about} late", self.traits.late):
                self.listeners.trouble("storage: acts late")
                delay = self._chance.between(0.0, self.traits.settle * 0.9, f"{about} delay")
                asyncio.get_running_loop().call_later(delay, self._make_late, handle, zone, request)
                raise ConnectionError("the request was sent, and nothing came back")
            stored = self._make(handle, zone, request)
        return self._answer(stored, request, about)

    @hookimpl
    def delete(self, request: DeleteRequest) -> Done | InProgress:
        volume = request.volume
        self._check_fence(volume.name, request.context)
        stored = self._memory.assets.get(volume.handle)
        if stored is None:
            return Done()
        if volume.owner is not None and stored.owner != volume.owner:
            raise AlreadyExists(f"{volume.handle} carries the marks {stored.owner}")
        if stored.nodes:
            raise VolumeInUse(f"{volume.handle} is attached to {next(iter(stored.nodes))}")
        if self.traits.sees_mounts and self.listeners.mounted(volume.handle):
            raise VolumeInUse(f"{volume.handle} is mounted")
        now = asyncio.get_running_loop().time()
        if stored.going is None and self._chance.number(f"{self.name} {volume.handle} going") < self.traits.steps:
            stored.going = now + self._chance.between(0.5, 8.0, f"{volume.handle} deletion")
        if stored.going is not None and now < stored.going:
            return InProgress(retry_after=min(2.0, stored.going - now), state={"deleting": volume.handle})
        del self._memory.assets[volume.handle]
        self.listeners.unmade(stored.handle)
        return Done()

    @hookimpl
    def expand(self, request: ExpandRequest) -> Asset | InProgress:
        volume = request.volume
        self._check_fence(volume.name, request.context)
        stored = self._memory.assets.get(volume.handle)
        if stored is None:
            raise NotFound(f"{volume.handle} does not exist")
        if volume.owner is not None and stored.owner != volume.owner:
            raise AlreadyExists(f"{volume.handle} carries the marks {stored.owner}")
        if self._is_long(f"{volume.handle} grows to {request.capacity_bytes}", request.context):
            return InProgress(retry_after=1.0, state={"growing": volume.handle})
        stored.capacity = max(stored.capacity, request.capacity_bytes)
        return self._asset(stored)

    @hookimpl
    def owns(self, request: OwnsRequest) -> bool:
        return str(request.source.fields.get("path", "")).startswith(f"{self.root}/")

    @hookimpl
    def recycle(self, request: RecycleRequest) -> PodScrub | Erased | InProgress:
        if not self.traits.erases:
            return PodScrub()
        volume = request.volume
        self._check_fence(volume.name, request.context)
        if not request.context.state and self._chance.number(f"{volume.name} erasing") < self.traits.steps:
            return InProgress(retry_after=1.0, state={"erasing": volume.handle})
        stored = self._memory.assets.get(volume.handle)
        if stored is not None:
            self.listeners.erased(stored.handle)
        return Erased()

    @hookimpl
    def list_assets(self, request: ListRequest) -> AssetPage:
        listed = [
            ListedAsset(
                handle=stored.handle,
                name=stored.handle.rpartition("/")[2],
                capacity_bytes=stored.capacity,
                owner=stored.owner,
                attached_to=tuple(stored.nodes),
            )
            for _, stored in sorted(self._memory.assets.items())
        ]
        return AssetPage(assets=tuple(listed))

    # --- the storage system -------------------------------------------------------------------------------------

    def _check_fence(self, name: str, context: Context) -> None:
        fence = Fence.parse(context.fence)
        if not self.traits.fenced or fence is None:
            return
        newest = self._memory.fences.get(name, fence)
        if newest.outdates(fence):
            raise Fenced(f"{newest} has worked on {name}, {fence} is over", fence=str(newest))
        self._memory.fences[name] = fence

    def _make(self, handle: str, zone: str, request: ProvisionRequest) -> Stored:
        token = (request.owner.claim_uid, request.owner.generation)
        if self.traits.tokens and token in self._memory.tokens:
            raise AlreadyDeleted(f"client token {token[1]} of {request.name} was used for an asset that is no more")
        self._memory.tokens.add(token)
        stored = Stored(handle, zone, request.capacity_bytes, request.owner, asked=request.capacity_bytes)
        if self._chance.number(f"{self.name} {request.claim.name} {zone} steps") < self.traits.steps:
            stored.ready = asyncio.get_running_loop().time() + self._chance.between(0.5, 8.0, f"{handle} making")
        self._memory.assets[handle] = stored
        self.listeners.made(handle, request.owner)
        return stored

    def _make_late(self, handle: str, zone: str, request: ProvisionRequest) -> None:
        token = (request.owner.claim_uid, request.owner.generation)
        if handle not in self._memory.assets and token not in self._memory.tokens:
            self._make(handle, zone, request)

    def _answer(self, stored: Stored, request: ProvisionRequest, about: str) -> Asset | InProgress:
        if stored.owner != request.owner:
            raise AlreadyExists(f"{stored.handle} carries the marks {stored.owner}")
        if stored.asked != request.capacity_bytes:
            raise AlreadyExists(f"{stored.handle} was made with {stored.asked} bytes")
        left = stored.ready - asyncio.get_running_loop().time()
        if left > 0:
            return InProgress(retry_after=min(left, 2.0), state={"making": about})
        return self._asset(stored)

    def _asset(self, stored: Stored) -> Asset:
        return Asset(
            handle=stored.handle,
            source=self.source_of(stored.handle),
            capacity_bytes=stored.capacity,
            node_affinity=({ZONE: stored.zone},) if stored.zone else (),
        )

    def _is_long(self, about: str, context: Context) -> bool:
        return not context.state and self._chance.number(f"{self.name} {about}") < self.traits.steps

    def _search(self, request: FindRequest) -> Stored | None:
        found = [stored for stored in self._memory.assets.values() if stored.owner == request.owner]
        return found[0] if found else None


class LookingBackend(SimulatedBackend):
    """The storage system with `find`."""

    @hookimpl
    def find(self, request: FindRequest) -> Asset | Absent:
        self._check_fence(request.name, request.context)
        stored = self._search(request)
        return Absent() if stored is None else self._asset(stored)


class AttachingBackend(LookingBackend):
    """The storage system whose assets are attached to nodes, as the disks of a cloud."""

    def source_of(self, handle: str) -> VolumeSource:
        return VolumeSource(kind="csi", fields={"driver": self.name, "volumeHandle": handle})

    @hookimpl
    def describe(self, request: DescribeRequest) -> DriverInfo:
        return DriverInfo(
            version="1",
            settle_seconds=self.traits.settle,
            csi_driver_name=self.name,
            attach_required=True,
        )

    @hookimpl
    def owns(self, request: OwnsRequest) -> bool:
        return request.source.kind == "csi" and request.source.fields.get("driver") == self.name

    @hookimpl
    def attach(self, request: AttachRequest) -> Attachment | InProgress:
        volume, node = request.volume, request.node.name
        self._check_fence(volume.name, request.context)
        stored = self._memory.assets.get(volume.handle)
        if stored is None:
            raise NotFound(f"{volume.handle} does not exist")
        if self.listeners.gone(request.node.instance_id):
            raise NotFound(f"there is no machine {request.node.instance_id}")
        if self.traits.strict and any(each != node for each in stored.nodes):
            other = next(iter(stored.nodes))
            raise AttachedElsewhere(f"{volume.handle} is attached to {other}", node=other)
        if self._is_long(f"{volume.handle} to {node}", request.context):
            return InProgress(retry_after=1.0, state={"attaching": node})
        known = node in stored.nodes
        stored.nodes[node] = request.node.instance_id
        if not known:
            self.listeners.attached(volume.handle, node)
        return Attachment(metadata={"device": f"/dev/{volume.name}"})

    @hookimpl
    def detach(self, request: DetachRequest) -> Done | InProgress:
        volume, node = request.volume, request.node.name
        self._check_fence(volume.name, request.context)
        stored = self._memory.assets.get(volume.handle)
        if stored is None or node not in stored.nodes:
            return Done()
        asked, has = request.node.instance_id, stored.nodes[node]
        if asked != has and asked and has and not self.listeners.gone(has):
            return Done()  # The machine that had this name before is gone, and what was attached to it.
        if self._is_long(f"{volume.handle} from {node}", request.context):
            return InProgress(retry_after=1.0, state={"detaching": node})
        del stored.nodes[node]
        self.listeners.detached(volume.handle, node)
        return Done()
