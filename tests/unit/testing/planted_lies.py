"""Backends that seem to do well: they swallow outages, tell sizes and handles that are not real, or ask no owner."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from volplane import (
    Absent,
    Asset,
    BackendError,
    DeleteRequest,
    Done,
    Erased,
    ExpandRequest,
    FindRequest,
    InProgress,
    ListRequest,
    OutOfRange,
    PodScrub,
    ProbeRequest,
    ProvisionRequest,
    RecycleRequest,
    Unavailable,
    hookimpl,
)
from volplane.assets import AssetPage
from volplane_testing.memory import MemoryBackend
from volplane_testing.memory_storage import MemoryStorage

MIB = 1 << 20


class FindsNothingInAnOutage(MemoryBackend):
    """What handles a missing asset swallows what cannot be known."""

    @hookimpl
    def find(self, request: FindRequest) -> Asset | Absent:
        try:
            return super().find(request)
        except BackendError:
            return Absent()


class ListsNothingInAnOutage(MemoryBackend):
    @hookimpl
    def list_assets(self, request: ListRequest) -> AssetPage:
        try:
            return super().list_assets(request)
        except Unavailable:
            return AssetPage(assets=())


class DeletesInAnOutage(MemoryBackend):
    """To be gone and to be out of reach are the same to it."""

    @hookimpl
    def delete(self, request: DeleteRequest) -> Done | InProgress:
        try:
            return super().delete(request)
        except Unavailable:
            return Done()


class IsAlwaysWell(MemoryBackend):
    @hookimpl
    def probe(self, request: ProbeRequest) -> Done:
        return Done()


class ListsNamesForHandles(MemoryBackend):
    @hookimpl
    def list_assets(self, request: ListRequest) -> AssetPage:
        page = super().list_assets(request)
        return replace(page, assets=tuple(replace(each, handle=each.name) for each in page.assets))


class SaysWhatWasAsked(MemoryBackend):
    """The storage makes whole MiB, the asset says what was asked for."""

    @hookimpl
    def provision(self, request: ProvisionRequest) -> Asset | InProgress:
        whole = -(-request.capacity_bytes // MIB) * MIB
        if request.limit_bytes is not None and whole > request.limit_bytes:
            raise OutOfRange(f"{whole} bytes are more than {request.limit_bytes}")
        made = super().provision(replace(request, capacity_bytes=whole))
        if isinstance(made, Asset) and made.capacity_bytes == whole:
            return replace(made, capacity_bytes=request.capacity_bytes)
        return made


class SaysWhatItShouldGrowTo(MemoryBackend):
    @hookimpl
    def expand(self, request: ExpandRequest) -> Asset:
        whole = -(-request.capacity_bytes // MIB) * MIB
        grown = super().expand(replace(request, capacity_bytes=whole))
        return replace(grown, capacity_bytes=request.capacity_bytes) if grown.capacity_bytes == whole else grown


class TrustsWhomItDoesNotRemember(MemoryBackend):
    """Owners are compared with what this process has made; marks are only written."""

    def __init__(self, options: Mapping[str, Any], *, storage: MemoryStorage) -> None:
        super().__init__(options, storage=storage)
        self.mine: set[str] = set()

    @hookimpl
    def provision(self, request: ProvisionRequest) -> Asset | InProgress:
        self.mine.add(request.name)
        return super().provision(request)

    @hookimpl
    def recycle(self, request: RecycleRequest) -> Erased | PodScrub:
        asset = self.storage.by_handle(request.volume.handle)
        if asset is not None and asset.name not in self.mine:
            request = replace(request, volume=replace(request.volume, owner=asset.owner))
        return super().recycle(request)


class RefusesByAccident(MemoryBackend):
    """No line compares clusters: one misses a key that another cluster does not have."""

    @hookimpl
    def delete(self, request: DeleteRequest) -> Done | InProgress:
        asset = self.storage.by_handle(request.volume.handle)
        if asset is not None and asset.owner is not None and request.volume.owner is not None:
            known = {asset.owner.cluster_id: asset.owner.claim_uid}
            known[request.volume.owner.cluster_id].strip()
        return super().delete(request)


LIES: dict[type[MemoryBackend], str] = {
    FindsNothingInAnOutage: "a-storage-out-of-reach-is-not-empty",
    ListsNothingInAnOutage: "a-storage-out-of-reach-is-not-empty",
    DeletesInAnOutage: "nothing-is-done-on-a-storage-out-of-reach",
    IsAlwaysWell: "nothing-is-done-on-a-storage-out-of-reach",
    ListsNamesForHandles: "the-listed-handle-is-the-provisioned-one",
    SaysWhatWasAsked: "a-reported-size-is-real",
    SaysWhatItShouldGrowTo: "a-reported-size-is-real",
    TrustsWhomItDoesNotRemember: "a-refusal-of-others-is-no-accident",
    RefusesByAccident: "a-refusal-of-others-is-no-accident",
}
