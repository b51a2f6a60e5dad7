"""Backends with one mistake each, and the rule of the conformance suite that each breaks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from unit.testing.planted_crashes import (
    KeepsStateInMemory,
    LeavesAHalfWrittenFile,
    LooksThenLeaps,
    MarksLast,
    MarksLastButMends,
    NeedsItsState,
    UnmarksFirst,
    files_of,
)
from volplane import (
    Absent,
    AlreadyExists,
    Asset,
    Attachment,
    AttachRequest,
    DeleteRequest,
    DescribeRequest,
    DetachRequest,
    Done,
    DriverInfo,
    Erased,
    ExpandRequest,
    FindRequest,
    InProgress,
    InspectRequest,
    InvalidArgument,
    ListedArchive,
    ListedAsset,
    ListRequest,
    NotFound,
    OutOfRange,
    OwnsRequest,
    ProvisionRequest,
    RecycleRequest,
    VolumeMode,
    VolumeSource,
    hookimpl,
)
from volplane.assets import AssetPage
from volplane_testing.memory import DRIVER, MemoryBackend
from volplane_testing.memory_storage import MemoryStorage

MIB = 1 << 20
SECRET = "hunter2"


class MakesAnotherOne(MemoryBackend):
    """Names that it knows get a new asset all the same."""

    @hookimpl
    def provision(self, request: ProvisionRequest) -> Asset | InProgress:
        with self.storage.lock:
            self.storage.assets.pop(request.name, None)
        return super().provision(request)


class ForgetsAtRestart(MemoryBackend):
    """Which name has an asset is known only to the process that made it."""

    def __init__(self, options: Mapping[str, Any], *, storage: MemoryStorage) -> None:
        super().__init__(options, storage=storage)
        self.known: set[str] = set()

    @hookimpl
    def provision(self, request: ProvisionRequest) -> Asset | InProgress:
        if request.name not in self.known:
            self.storage.assets.pop(request.name, None)
        self.known.add(request.name)
        return super().provision(request)

    @hookimpl
    def find(self, request: FindRequest) -> Asset | Absent:
        return super().find(request)


class ComparesNoSize(MemoryBackend):
    """Whoever asks for more gets what there is."""

    @hookimpl
    def provision(self, request: ProvisionRequest) -> Asset | InProgress:
        there = self.storage.assets.get(request.name)
        if there is not None and there.owner == request.owner:
            asked = there.demand[0]
            assert isinstance(asked, int)
            request = replace(request, capacity_bytes=asked)
        return super().provision(request)


class ComparesNoParameters(MemoryBackend):
    @hookimpl
    def provision(self, request: ProvisionRequest) -> Asset | InProgress:
        return super().provision(replace(request, parameters={}))


class ComparesMutableParameters(MemoryBackend):
    @hookimpl
    def provision(self, request: ProvisionRequest) -> Asset | InProgress:
        colour = request.mutable_parameters.get("colour") or request.parameters.get("colour")
        return super().provision(replace(request, parameters={"colour": colour}))


class MissesWhatIsGone(MemoryBackend):
    """The classic: the SDK's 404 is passed on."""

    @hookimpl
    def delete(self, request: DeleteRequest) -> Done | InProgress:
        if self.storage.by_handle(request.volume.handle) is None:
            raise NotFound(f"asset {request.volume.handle} does not exist")
        return super().delete(request)


class DeletesByPrefix(MemoryBackend):
    @hookimpl
    def delete(self, request: DeleteRequest) -> Done | InProgress:
        for name in list(self.storage.assets):
            if name.startswith(f"{request.volume.name}-") and self.storage.by_handle(request.volume.handle):
                del self.storage.assets[name]
        return super().delete(request)


class DeletesForAnyCluster(MemoryBackend):
    @hookimpl
    def delete(self, request: DeleteRequest) -> Done | InProgress:
        there = self.storage.by_handle(request.volume.handle)
        owner = request.volume.owner
        if there is not None and owner is not None:
            owner = replace(owner, cluster_id=there.owner.cluster_id)
        return super().delete(replace(request, volume=replace(request.volume, owner=owner)))


class DeletesByName(MemoryBackend):
    """Whatever bears the name now, of whichever generation."""

    @hookimpl
    def delete(self, request: DeleteRequest) -> Done | InProgress:
        there = self.storage.assets.get(request.volume.name)
        if there is not None and request.volume.owner is not None:
            mine = replace(request.volume.owner, generation=there.owner.generation)
            if mine == there.owner:
                volume = replace(request.volume, handle=there.handle, owner=mine)
                return super().delete(replace(request, volume=volume))
        return super().delete(request)


class DeletesWhatIsAttached(MemoryBackend):
    @hookimpl
    def delete(self, request: DeleteRequest) -> Done | InProgress:
        there = self.storage.by_handle(request.volume.handle)
        if there is not None and there.owner == request.volume.owner:
            there.attached_to.clear()
        return super().delete(request)


class FindsForAnybody(MemoryBackend):
    @hookimpl
    def find(self, request: FindRequest) -> Asset | Absent:
        there = self.storage.assets.get(request.name)
        return super().find(request if there is None else replace(request, owner=there.owner))


class RoundsDown(MemoryBackend):
    @hookimpl
    def provision(self, request: ProvisionRequest) -> Asset | InProgress:
        size = request.capacity_bytes
        return super().provision(replace(request, capacity_bytes=size // MIB * MIB if size > MIB else size))


class RoundsUpOverTheLimit(MemoryBackend):
    @hookimpl
    def provision(self, request: ProvisionRequest) -> Asset | InProgress:
        size = -(-request.capacity_bytes // MIB) * MIB
        return super().provision(replace(request, capacity_bytes=size))


class CutsNames(MemoryBackend):
    """The storage takes 60 characters."""

    @hookimpl
    def provision(self, request: ProvisionRequest) -> Asset | InProgress:
        name = request.name[:60]
        there = self.storage.assets.get(name)
        if there is not None and there.demand[0] == request.capacity_bytes and len(request.name) > 60:
            request = replace(request, owner=there.owner)
        return super().provision(replace(request, name=name))


class SharesLongNames(MemoryBackend):
    """Names are kept in lower case without punctuation."""

    @hookimpl
    def provision(self, request: ProvisionRequest) -> Asset | InProgress:
        if request.name.endswith((".json", ".tmp")):
            raise AlreadyExists(f"{request.name} is a file of ours")
        return super().provision(request)


class GrowsEveryTime(MemoryBackend):
    """Adds the difference to what the volume object says, instead of to what is there."""

    @hookimpl
    def expand(self, request: ExpandRequest) -> Asset | InProgress:
        there = self.storage.by_handle(request.volume.handle)
        more = request.capacity_bytes - request.volume.capacity_bytes
        size = request.capacity_bytes if there is None else there.capacity_bytes + more
        return super().expand(replace(request, capacity_bytes=size))


class Steals(MemoryBackend):
    """Attaching elsewhere detaches first."""

    @hookimpl
    def attach(self, request: AttachRequest) -> Attachment | InProgress:
        there = self.storage.by_handle(request.volume.handle)
        if there is not None and request.node.name in self.storage.nodes:
            there.attached_to = [node for node in there.attached_to if node == request.node.name]
        return super().attach(request)


class DetachesFromEverywhere(MemoryBackend):
    @hookimpl
    def detach(self, request: DetachRequest) -> Done | InProgress:
        with self.storage.lock:
            there = self.storage.by_handle(request.volume.handle)
            if there is not None:
                there.attached_to.clear()
        return Done()


class ForgetsToReturn(MemoryBackend):
    @hookimpl
    def detach(self, request: DetachRequest) -> Done | InProgress:
        super().detach(request)  # and nothing more
        return None  # type: ignore[return-value]


class CountsPages(MemoryBackend):
    """The token is a number of rows, which move while things come and go."""

    @hookimpl
    def list_assets(self, request: ListRequest) -> AssetPage:
        if request.page is not None and not request.page.isdecimal():
            raise NotFound("no such page")
        begin = int(request.page or 0)
        names = sorted(self.storage.assets)
        listed: list[ListedAsset] = []
        for name in names[begin : begin + 3]:
            there = self.storage.assets[name]
            listed.append(
                ListedAsset(
                    handle=there.handle,
                    name=name,
                    capacity_bytes=there.capacity_bytes,
                    owner=there.owner,
                    attached_to=tuple(there.attached_to),
                )
            )
        return AssetPage(assets=tuple(listed), next_page=str(begin + 3) if len(names) > begin + 3 else None)


class CutsItsList(MemoryBackend):
    """It returns no more than the caller wants, and says nothing of the rest."""

    @hookimpl
    def list_assets(self, request: ListRequest) -> AssetPage:
        page = super().list_assets(request)
        return replace(page, next_page=None) if request.max_entries else page


class DropsTheGeneration(MemoryBackend):
    @hookimpl
    def list_assets(self, request: ListRequest) -> AssetPage:
        page = super().list_assets(request)
        assets = tuple(replace(a, owner=replace(a.owner, generation=1)) for a in page.assets if a.owner is not None)
        return AssetPage(assets=assets, next_page=page.next_page)


class ListsAssetsForArchives(MemoryBackend):
    """It says that it keeps archives, and does not look whether it is asked for those."""

    @hookimpl
    def describe(self, request: DescribeRequest) -> DriverInfo:
        return replace(super().describe(request), archives=True)


class CallsAssetsArchives(ListsAssetsForArchives):
    @hookimpl
    def list_assets(self, request: ListRequest) -> AssetPage:
        page = super().list_assets(request)
        if not request.archives:
            return page
        archives = tuple(ListedArchive(place=each.handle, volume=each.name) for each in page.assets)
        return AssetPage(assets=(), archives=archives, next_page=page.next_page)


class TalksAboutTheWeather(MemoryBackend):
    def __init__(self, options: Mapping[str, Any], *, storage: MemoryStorage) -> None:
        super().__init__(options, storage=storage)
        self.built = len(storage.assets) + storage.made

    @hookimpl
    def describe(self, request: DescribeRequest) -> DriverInfo:
        return replace(super().describe(request), version=f"1.{self.built}")


class ShowsItsSecret(MemoryBackend):
    def __repr__(self) -> str:
        return f"<backend with password {SECRET}>"


class OwnsEveryCsiVolume(MemoryBackend):
    @hookimpl
    def owns(self, request: OwnsRequest) -> bool:
        handle = request.source.fields.get("volumeHandle")
        return request.source.kind == "csi" and isinstance(handle, str) and handle.strip("\0") != ""


class TrustsSources(MemoryBackend):
    @hookimpl
    def owns(self, request: OwnsRequest) -> bool:
        return bool(request.source.kind == "csi" and request.source.fields["driver"] == DRIVER)


class ErasesNothing(MemoryBackend):
    @hookimpl
    def recycle(self, request: RecycleRequest) -> Erased:
        with self.storage.lock:
            self._there(request.volume)
        return Erased()


class IgnoresSnapshots(MemoryBackend):
    """An empty asset for whoever wanted the data back."""

    @hookimpl
    def provision(self, request: ProvisionRequest) -> Asset | InProgress:
        known = str(request.source_snapshot).startswith("memory-snapshot-")
        return super().provision(request if known else replace(request, source_snapshot=None))


class LiesWhenNobodyWaits(MemoryBackend):
    @hookimpl
    def provision(self, request: ProvisionRequest) -> Asset | InProgress:
        if request.context.cancelled():
            source = VolumeSource(kind="csi", fields={"driver": DRIVER, "volumeHandle": "memory-0"})
            return Asset(handle="memory-0", source=source, capacity_bytes=request.capacity_bytes)
        return super().provision(request)


class WaivesTooMuch(MemoryBackend):
    @hookimpl
    def describe(self, request: DescribeRequest) -> DriverInfo:
        return replace(super().describe(request), waived_rules={"delete-of-what-is-gone-is-done": "it is hard"})


class LeavesRoomTaken(MemoryBackend):
    """What was deleted still counts."""

    @hookimpl
    def delete(self, request: DeleteRequest) -> Done | InProgress:
        there = self.storage.by_handle(request.volume.handle)
        result = super().delete(request)
        if there is not None:
            self.storage.capacity_bytes -= there.capacity_bytes
        return result


class ForgetsTheImage(MemoryBackend):
    """Each asset has a file, which `delete` forgets; `list_assets` goes by the marks, and does not show it."""

    @hookimpl
    def provision(self, request: ProvisionRequest) -> Asset | InProgress:
        result = super().provision(request)
        files_of(self).add(f"{request.name}.img")
        return result


class InspectsByPrefix(MemoryBackend):
    """Handles are compared like names that are being completed."""

    @hookimpl
    def inspect(self, request: InspectRequest) -> ListedAsset | Absent:
        found = (each for each in self.storage.assets.values() if request.handle.startswith(each.handle))
        there = next(found, None)
        return super()._listed(there) if there is not None else Absent()


class InspectsMarksOfItsOwn(MemoryBackend):
    @hookimpl
    def inspect(self, request: InspectRequest) -> ListedAsset | Absent:
        seen = super().inspect(request)
        if isinstance(seen, Absent) or seen.owner is None:
            return seen
        return replace(seen, owner=replace(seen.owner, cluster_id=request.context.driver))


class RemembersWhatIsGone(MemoryBackend):
    def __init__(self, options: Mapping[str, Any], *, storage: MemoryStorage) -> None:
        super().__init__(options, storage=storage)
        self.seen: dict[str, ListedAsset] = {}

    @hookimpl
    def provision(self, request: ProvisionRequest) -> Asset | InProgress:
        made = super().provision(request)
        if isinstance(made, Asset):
            self.seen[made.handle] = self._listed(self.storage.assets[request.name])
        return made

    @hookimpl
    def inspect(self, request: InspectRequest) -> ListedAsset | Absent:
        seen = super().inspect(request)
        return self.seen.get(request.handle, seen) if isinstance(seen, Absent) else seen


class TidiesUpWhenInspected(MemoryBackend):
    @hookimpl
    def inspect(self, request: InspectRequest) -> ListedAsset | Absent:
        for each in self.storage.assets.values():
            each.modified["looked"] = "at"
        return super().inspect(request)


class InspectsNoAttachments(MemoryBackend):
    @hookimpl
    def inspect(self, request: InspectRequest) -> ListedAsset | Absent:
        seen = super().inspect(request)
        return seen if isinstance(seen, Absent) else replace(seen, attached_to=())


class CallsLargeSizesWrong(MemoryBackend):
    """Nobody can tell its refusal from that of a bad parameter."""

    def _check_size(self, size: int) -> None:
        try:
            super()._check_size(size)
        except OutOfRange as error:
            raise InvalidArgument(error.message) from None


class GrowsDevicesOnNodes(MemoryBackend):
    @hookimpl
    def expand(self, request: ExpandRequest) -> Asset:
        block = request.volume.volume_mode is VolumeMode.BLOCK
        return replace(super().expand(request), node_expansion_required=True if block else None)


class PlansFirst(MemoryBackend):
    """No bug: the first call of `provision` says what the next one makes."""

    @hookimpl
    def describe(self, request: Any) -> DriverInfo:
        return replace(super().describe(request), plans_first=True)

    @hookimpl
    def provision(self, request: ProvisionRequest) -> Asset | InProgress:
        if request.context.state:
            return super().provision(request)
        return InProgress(retry_after=0.0, state={"make": request.name})


class MakesWhatItPlans(PlansFirst):
    @hookimpl
    def provision(self, request: ProvisionRequest) -> Asset | InProgress:
        MemoryBackend.provision(self, request)
        return super().provision(request)


BUGS: dict[type[MemoryBackend], str] = {
    CallsLargeSizesWrong: "a-size-out-of-range-is-said-to-be",
    GrowsDevicesOnNodes: "expand-of-a-block-device-needs-no-node",
    ForgetsTheImage: "a-deleted-asset-leaves-nothing",
    LeavesAHalfWrittenFile: "a-crash-in-the-middle-of-provision-leaves-nothing-unseen",
    MakesAnotherOne: "provision-again-gives-the-same-asset",
    ForgetsAtRestart: "a-crash-after-provision-is-survived",
    ComparesNoSize: "another-size-is-refused",
    ComparesNoParameters: "other-parameters-are-refused",
    ComparesMutableParameters: "mutable-parameters-make-no-other-demand",
    MissesWhatIsGone: "delete-of-what-is-gone-is-done",
    DeletesByPrefix: "a-name-that-begins-another-is-another",
    DeletesForAnyCluster: "delete-refuses-the-asset-of-another-cluster",
    DeletesByName: "a-late-duplicate-of-delete-leaves-the-next-generation",
    DeletesWhatIsAttached: "delete-refuses-what-is-in-use",
    FindsForAnybody: "find-does-not-show-the-assets-of-others",
    RoundsDown: "odd-sizes-are-rounded-up",
    RoundsUpOverTheLimit: "the-limit-is-kept",
    CutsNames: "the-longest-name-works",
    SharesLongNames: "the-strangest-legal-names-work",
    GrowsEveryTime: "expand-again-changes-nothing",
    Steals: "attach-elsewhere-is-refused",
    DetachesFromEverywhere: "a-late-detach-leaves-the-new-attachment",
    ForgetsToReturn: "attach-and-detach-work",
    CountsPages: "list-is-complete-while-things-change",
    CutsItsList: "list-is-complete-over-pages",
    DropsTheGeneration: "list-shows-the-marks",
    ListsAssetsForArchives: "archives-are-listed-apart",
    CallsAssetsArchives: "archives-are-listed-apart",
    MarksLast: "a-crash-in-the-middle-of-provision-is-made-whole",
    MarksLastButMends: "a-crash-in-the-middle-of-provision-leaves-nothing-unseen",
    UnmarksFirst: "a-crash-in-the-middle-of-delete-is-finished",
    LooksThenLeaps: "equal-demands-at-once-make-one-asset",
    TalksAboutTheWeather: "describe-is-constant",
    ShowsItsSecret: "secrets-are-not-shown",
    OwnsEveryCsiVolume: "owns-nothing-foreign",
    TrustsSources: "owns-survives-any-source",
    ErasesNothing: "recycle-erases-everything",
    IgnoresSnapshots: "an-unknown-snapshot-is-refused",
    LiesWhenNobodyWaits: "a-call-nobody-waits-for-ends-whole-or-not-at-all",
    WaivesTooMuch: "waivers-are-honest",
    LeavesRoomTaken: "capacity-is-used-and-given-back",
}
SLOW_BUGS: dict[type[MemoryBackend], str] = {
    NeedsItsState: "a-lost-answer-of-provision-is-resolved",
    KeepsStateInMemory: "delete-in-progress-goes-on-after-restarts",
}

INSPECT_BUGS: dict[type[MemoryBackend], str] = {
    InspectsByPrefix: "inspect-of-any-text-is-absent",
    InspectsMarksOfItsOwn: "inspect-shows-the-asset",
    RemembersWhatIsGone: "inspect-of-what-is-gone-is-absent",
    TidiesUpWhenInspected: "inspect-changes-nothing",
    InspectsNoAttachments: "inspect-shows-where-it-is-attached",
}
