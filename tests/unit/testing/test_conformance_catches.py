"""The conformance suite, judged: a correct backend keeps every rule, and each planted bug breaks the one that it should."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

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
    ListedAsset,
    ListRequest,
    NotFound,
    OwnsRequest,
    ProvisionRequest,
    RecycleRequest,
    VolumeSource,
    hookimpl,
)
from volplane.assets import AssetPage
from volplane.testing.conformance import RULES, Report, Subject, Verdict, run_rules
from volplane.testing.memory import DRIVER, ZONE, MemoryBackend
from volplane.testing.memory_storage import MemoryStorage

MIB = 1 << 20
SECRET = "hunter2"


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


def subject(kind: Callable[..., MemoryBackend], points: int, **storage: Any) -> Subject:
    clock = Clock()
    memory = MemoryStorage(capacity_bytes=100 << 30, page=3, clock=clock, **storage)

    def inspect() -> object:
        return [
            (name, asset.handle, asset.capacity_bytes, dict(asset.modified)) for name, asset in memory.assets.items()
        ]

    def filled(asset: Asset) -> list[str]:
        made = memory.by_handle(asset.handle)
        assert made is not None
        return made.contents

    return Subject(
        lambda options: kind(options, storage=memory),
        other_parameters={"colour": "red"},
        mutable_parameters={"colour": "blue"},
        segments=tuple({ZONE: zone} for zone in memory.zones),
        static_source=VolumeSource(kind="csi", fields={"driver": DRIVER, "volumeHandle": "by-hand"}),
        secrets=(SECRET,),
        advance=clock.advance,
        inspect=inspect,
        fill=lambda asset: filled(asset).append("of the last claim"),
        is_empty=lambda asset: not filled(asset),
        crash_points=points,
        patience=None,
    )


def report(kind: Callable[..., MemoryBackend], points: int = 4, **storage: Any) -> Report:
    return run_rules(lambda: subject(kind, points, **storage))


@pytest.mark.parametrize(
    "storage",
    [{}, {"delay": 30.0}, {"zones": ("a", "b"), "most_attached": 2}],
    ids=["at once", "slow", "in zones"],
)
def test_a_correct_backend_keeps_every_rule(storage: Mapping[str, Any]) -> None:
    judged = report(MemoryBackend, 48, **storage)
    assert judged.passed, str(judged)
    assert [outcome.left for outcome in judged.outcomes if outcome.left] == []
    assert set(judged.named(Verdict.NOT_APPLICABLE)) <= {
        "provision-in-progress-goes-on-after-restarts",
        "provision-in-progress-goes-on-without-its-state",
        "delete-in-progress-goes-on-after-restarts",
        "capacity-elsewhere-is-nothing",
        "the-place-asked-for-is-the-place",
        "another-place-makes-no-second-asset",
        "a-place-out-of-reach-is-refused",
        "the-limit-of-a-node-is-kept",
    }


def test_between_them_they_judge_every_rule() -> None:
    kept: set[str] = set()
    for storage in ({"delay": 30.0}, {"zones": ("a", "b"), "most_attached": 2}):
        kept.update(report(MemoryBackend, **storage).named(Verdict.KEPT))
    assert kept == {rule.name for rule in RULES}


# --- bugs -------------------------------------------------------------------------------------------------------


class MakesAnotherOne(MemoryBackend):
    """Names that it knows get a new asset all the same."""

    @hookimpl
    def provision(self, request: ProvisionRequest) -> Asset | InProgress:
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


class DropsTheGeneration(MemoryBackend):
    @hookimpl
    def list_assets(self, request: ListRequest) -> AssetPage:
        page = super().list_assets(request)
        assets = tuple(replace(a, owner=replace(a.owner, generation=1)) for a in page.assets if a.owner is not None)
        return AssetPage(assets=assets, next_page=page.next_page)


class MarksLast(MemoryBackend):
    """First it makes the asset, then it puts the marks on: between the two nobody knows whose it is."""

    @hookimpl
    def provision(self, request: ProvisionRequest) -> Asset | InProgress:
        if request.name in self.storage.assets:
            return super().provision(request)
        nobody = replace(request.owner, claim_uid="")
        result = super().provision(replace(request, owner=nobody))
        made = self.storage.assets[request.name]
        made.owner = request.owner
        return result


class MarksLastButMends(MarksLast):
    """The next call of `provision` mends it, but `find` does not see it."""

    @hookimpl
    def provision(self, request: ProvisionRequest) -> Asset | InProgress:
        there = self.storage.assets.get(request.name)
        if there is not None and not there.owner.claim_uid:
            there.owner = request.owner
        return super().provision(request)

    @hookimpl
    def find(self, request: FindRequest) -> Asset | Absent:
        return super().find(request)


class UnmarksFirst(MemoryBackend):
    @hookimpl
    def delete(self, request: DeleteRequest) -> Done | InProgress:
        there = self.storage.by_handle(request.volume.handle)
        if there is not None and there.owner == request.volume.owner and not there.attached_to:
            there.owner = replace(there.owner, claim_uid="deleted")
            del self.storage.assets[there.name]
        return super().delete(request)


class LooksThenLeaps(MemoryBackend):
    """Nothing holds the name between the question and the deed."""

    @hookimpl
    def provision(self, request: ProvisionRequest) -> Asset | InProgress:
        there = request.name in self.storage.assets
        if threading.current_thread() is not threading.main_thread():
            time.sleep(0.1)  # only calls beside others are in threads
        if there:
            return super().provision(request)
        with self.storage.lock:
            self.storage.assets.pop(request.name, None)
            return super().provision(request)


class NeedsItsState(MemoryBackend):
    """Without the state of the last answer it begins anew, and what it had begun stays."""

    @hookimpl
    def provision(self, request: ProvisionRequest) -> Asset | InProgress:
        there = self.storage.assets.get(request.name)
        waiting = there is not None and there.ready_at > self.storage.clock()
        if there is not None and waiting and "handle" not in request.context.state:
            self.storage.assets[f"{request.name}-{there.handle}"] = self.storage.assets.pop(request.name)
        return super().provision(request)


class KeepsStateInMemory(MemoryBackend):
    """A deletion is remembered only by the process that began it; the others begin it again, and again."""

    def __init__(self, options: Mapping[str, Any], *, storage: MemoryStorage) -> None:
        super().__init__(options, storage=storage)
        self.begun: set[str] = set()

    @hookimpl
    def delete(self, request: DeleteRequest) -> Done | InProgress:
        handle = request.volume.handle
        if request.context.state and handle not in self.begun:
            raise NotFound(f"no deletion of {handle} is known")
        self.begun.add(handle)
        return super().delete(request)


class TalksAboutTheWeather(MemoryBackend):
    def __init__(self, options: Mapping[str, Any], *, storage: MemoryStorage) -> None:
        super().__init__(options, storage=storage)
        self.built = len(storage.assets) + storage.made

    @hookimpl
    def describe(self, request: DescribeRequest) -> DriverInfo:
        return replace(super().describe(request), maximum_bytes=(1 << 40) - self.built)


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
        self._there(request.volume)
        return Erased()


class IgnoresSnapshots(MemoryBackend):
    """An empty asset for whoever wanted the data back."""

    @hookimpl
    def provision(self, request: ProvisionRequest) -> Asset | InProgress:
        known = request.source_snapshot in self.storage.snapshots
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


BUGS: dict[type[MemoryBackend], str] = {
    MakesAnotherOne: "provision-again-gives-the-same-asset",
    ForgetsAtRestart: "a-crash-after-provision-is-survived",
    ComparesNoSize: "another-size-is-refused",
    ComparesNoParameters: "other-parameters-are-refused",
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
    DropsTheGeneration: "list-shows-the-marks",
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


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_a_planted_bug_breaks_the_rule_that_it_should_and_no_other(bug: type[MemoryBackend]) -> None:
    judged = report(bug, 48 if "crash" in BUGS[bug] else 4)
    assert judged.violated == (BUGS[bug],), str(judged)
    assert not judged.named(Verdict.BROKEN)


@pytest.mark.parametrize("bug", SLOW_BUGS, ids=lambda bug: bug.__name__)
def test_a_bug_of_a_slow_backend_too(bug: type[MemoryBackend]) -> None:
    judged = report(bug, delay=30.0)
    assert judged.violated == (SLOW_BUGS[bug],), str(judged)
