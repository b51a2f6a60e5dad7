"""Snapshots, what is made from them, and copies of assets."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any, Final

from volplane.assets import AccessMode, InProgress, Snapshot, SnapshotOwnership, SnapshotPage
from volplane.errors import (
    AlreadyExists,
    BackendError,
    InvalidArgument,
    NotFound,
    ResourceExhausted,
    Unsupported,
    VolumeInUse,
)
from volplane.requests import DeleteSnapshotRequest, FindSnapshotRequest, ListSnapshotsRequest, ProvisionRequest
from volplane_testing.conformance.bench import Bench, Cut, Made
from volplane_testing.conformance.instance import pages_of, shown
from volplane_testing.conformance.rule import rule
from volplane_testing.conformance.rules.deleting import delete_removes_the_asset
from volplane_testing.conformance.rules.provisioning import (
    provision_again_gives_the_same_asset,
    provision_makes_an_asset,
    require_nothing_made,
)
from volplane_testing.conformance.violations import NotApplicable

__all__ = ["RULES"]

_OTHER_UID: Final = "00000000-0000-4000-8000-000000000000"
_OTHER_CLUSTER: Final = "another-cluster"
_LONGEST_NAME: Final = 63
_SLACK: Final = 1.0
"""Seconds by which clocks of storages may cut a time."""


def _strangers(owner: SnapshotOwnership) -> dict[str, SnapshotOwnership]:
    return {
        "another VolumeSnapshot": replace(owner, snapshot_uid=_OTHER_UID, content_name=f"snapcontent-{_OTHER_UID}"),
        "another cluster": replace(owner, cluster_id=_OTHER_CLUSTER),
    }


def _found(bench: Bench, cut: Cut) -> dict[str, Snapshot | None]:
    """What `find_snapshot` answers, asked in each way."""
    found = {"by handle": bench.instance.find_snapshot(_by_handle(bench, cut.snapshot.handle))}
    if bench.info.marks:
        found["by name and owner"] = bench.instance.find_snapshot(bench.snapshot_question(cut.request))
    return found


def _by_handle(bench: Bench, handle: str) -> FindSnapshotRequest:
    return FindSnapshotRequest(context=bench.instance.context(), handle=handle)


def _listed(bench: Bench, owner: SnapshotOwnership) -> list[str]:
    """Handles of the listed snapshots with these marks."""
    if not bench.supports("list_snapshots"):
        return []
    return [each.handle for each in bench.instance.listed_snapshots() if each.owner == owner]


def _require_there(bench: Bench, cut: Cut, after: str) -> None:
    """The snapshot is there, as the only one with its marks."""
    for how, found in _found(bench, cut).items():
        handle = found.handle if found is not None else None
        bench.require(
            handle == cut.snapshot.handle,
            f"find_snapshot {how} after {after} answers {handle!r}, expected {cut.snapshot.handle!r}",
        )
    if bench.supports("list_snapshots"):
        handles = _listed(bench, cut.request.owner)
        bench.require(
            handles == [cut.snapshot.handle],
            f"after {after} list_snapshots has {handles} for one VolumeSnapshot, expected only {cut.snapshot.handle}",
        )


def _require_gone(bench: Bench, cut: Cut, after: str) -> None:
    for how, found in _found(bench, cut).items():
        bench.require(found is None, f"find_snapshot {how} after {after} still answers {shown(found)}, expected Absent")
    handles = _listed(bench, cut.request.owner)
    bench.require(not handles, f"list_snapshots after {after} still has {handles}")


# --- making and finding -----------------------------------------------------------------------------------------------


@rule(
    "create_snapshot",
    waivable=False,
    after=(provision_makes_an_asset,),
    sanity=(
        "CreateSnapshot should succeed when requesting to create a snapshot with already existing name and same source "
        "volume ID"
    ),
)
def a_snapshot_is_made_once(bench: Bench) -> None:
    """An equal demand for a snapshot, in this process or the next, answers with the one that exists."""
    first = bench.cut(bench.make())
    again = bench.cut(first.request)
    bench.restart()
    later = bench.cut(first.request)
    handles = [each.snapshot.handle for each in (first, again, later)]
    bench.require(len(set(handles)) == 1, f"equal demands gave the snapshots {', '.join(handles)}")


@rule(
    "create_snapshot",
    after=(a_snapshot_is_made_once,),
    sanity=(
        "CreateSnapshot should fail when requesting to create a snapshot with already existing name and "
        "different source volume ID"
    ),
)
def a_snapshot_of_another_asset_is_refused(bench: Bench) -> None:
    """The name of an existing snapshot for another asset is `AlreadyExists`: never a second cut."""
    one, two = bench.make(), bench.make()
    cut = bench.cut(one)
    request = replace(cut.request, volume=two.volume())
    bench.require_refused("create_snapshot", request, AlreadyExists, why="it is of another asset", retry=True)
    _require_there(bench, cut, "a demand of another asset for its name")


@rule("create_snapshot", "delete", after=(a_snapshot_is_made_once, delete_removes_the_asset))
def a_snapshot_of_what_is_gone_is_not_found(bench: Bench) -> None:
    """`create_snapshot` of a deleted asset is `NotFound`, and makes nothing."""
    made = bench.make()
    bench.remove(made)
    request = bench.will_snapshot(bench.snapshot_request(made))
    bench.require_refused("create_snapshot", request, NotFound, why="the asset is gone", retry=True)
    found = bench.instance.find_snapshot(bench.snapshot_question(request))
    bench.require(found is None, f"find_snapshot after that answers {shown(found)}, expected Absent")


@rule(
    "create_snapshot",
    after=(a_snapshot_is_made_once,),
    sanity="CreateSnapshot should succeed when creating snapshot with maximum-length name",
)
def the_longest_snapshot_name_works(bench: Bench) -> None:
    """A name of 63 characters is made and found; one that differs only in its last character is another snapshot."""
    made = bench.make()
    names = [f"snapshot-{each * (_LONGEST_NAME - len('snapshot-') - 1)}{end}" for each in "a" for end in "ab"]
    cuts = [bench.cut(bench.snapshot_request(made, name)) for name in names]
    one, two = (cut.snapshot.handle for cut in cuts)
    bench.require(one != two, f"two names of {_LONGEST_NAME} characters gave the one snapshot {one}")
    for cut in cuts:
        _require_there(bench, cut, "making two with long names")


@rule("create_snapshot", "find_snapshot", waivable=False, after=(a_snapshot_is_made_once,))
def find_snapshot_answers_with_the_snapshot(bench: Bench) -> None:
    """`find_snapshot` answers by handle, and by name and owner, with what was made: size, source, time and marks."""
    made = bench.make()
    cut = bench.cut(made)
    for _ in range(2):
        for how, found in _found(bench, cut).items():
            bench.require(found is not None, f"find_snapshot {how} answers Absent for a snapshot that was made")
            for field in ("handle", "size_bytes", "created_at", "source", "node_affinity"):
                said, told = getattr(found, field), getattr(cut.snapshot, field)
                bench.require(said == told, f"find_snapshot {how} says {field} {said!r}, before it was {told!r}")
            owner = found.owner if found is not None else None
            bench.require(
                owner == (cut.request.owner if bench.info.marks else None),
                f"find_snapshot {how} says the marks are {owner!r}, given were {cut.request.owner!r}",
            )
        bench.restart()
    source = cut.snapshot.source
    bench.require(
        source in ("", made.asset.handle), f"its source is said to be {source!r}, it is {made.asset.handle!r}"
    )


@rule("create_snapshot", after=(a_snapshot_is_made_once,))
def the_time_of_a_snapshot_is_its_moment(bench: Bench) -> None:
    """`created_at` lies between the call and its answer, also in the answers of later calls."""
    now = bench.subject.now
    if now is None:
        raise NotApplicable("needs Subject.now")
    request = bench.will_snapshot(bench.snapshot_request(bench.make()))
    before = now()
    snapshot = bench.instance.create_snapshot(request)
    after = now()
    bench.subject.advance(3 * _SLACK)
    cut = bench.was_cut(request, snapshot)
    for told in (snapshot.created_at, cut.snapshot.created_at, bench.cut(request).snapshot.created_at):
        if told is None:
            raise NotApplicable("the backend does not know it")
        bench.require(
            before - _SLACK <= told <= after + _SLACK,
            f"created_at is {told:.3f}, the call was made at {before:.3f} and answered at {after:.3f}",
        )


@rule("find_snapshot", waivable=False, after=(find_snapshot_answers_with_the_snapshot,))
def find_snapshot_does_not_show_the_snapshots_of_others(bench: Bench) -> None:
    """`find_snapshot` by name for another VolumeSnapshot or cluster is `Absent`, or an error."""
    cut = bench.cut(bench.make())
    for who, owner in _strangers(cut.request.owner).items():
        context = bench.instance.context()
        context = replace(context, cluster_id=owner.cluster_id)
        try:
            found = bench.instance.find_snapshot(bench.snapshot_question(cut.request, owner=owner, context=context))
        except BackendError:
            continue
        bench.require(found is None, f"find_snapshot for {who} answers with the snapshot of {cut.request.owner}")


@rule("find_snapshot", after=(provision_makes_an_asset,))
def find_snapshot_of_what_never_was_is_absent(bench: Bench) -> None:
    """`find_snapshot` for a name or a handle that nobody made is `Absent`, and makes nothing."""
    request = bench.snapshot_request(bench.make())
    with bench.unchanged("find_snapshot"):
        for question in (bench.snapshot_question(request), _by_handle(bench, "no-such-snapshot")):
            found = bench.instance.find_snapshot(question)
            bench.require(found is None, f"find_snapshot answers {shown(found)}, expected Absent")


# --- deleting ---------------------------------------------------------------------------------------------------------


@rule(
    "delete_snapshot",
    waivable=False,
    after=(find_snapshot_answers_with_the_snapshot, provision_again_gives_the_same_asset),
    sanity="DeleteSnapshot should return appropriate values (no optional values added)",
)
def delete_snapshot_removes_the_snapshot(bench: Bench) -> None:
    """After `delete_snapshot` it is neither found nor listed; another snapshot of the asset, and the asset, stay."""
    made = bench.make()
    cut, kept = bench.cut(made), bench.cut(made)
    bench.drop(cut)
    _require_gone(bench, cut, "its deletion")
    _require_there(bench, kept, "the deletion of another one")
    bench.require_intact(made, "the deletion of a snapshot of it")


@rule(
    "delete_snapshot",
    waivable=False,
    after=(a_snapshot_is_made_once,),
    sanity="DeleteSnapshot should succeed when an invalid snapshot id is used",
)
def delete_snapshot_of_what_is_gone_is_done(bench: Bench) -> None:
    """`delete_snapshot` is `Done` again, also in the next process, and for a handle that never was."""
    cut = bench.cut(bench.make())
    for _ in range(2):
        bench.drop(cut)
    bench.restart()
    bench.drop(cut)
    for owner in (cut.request.owner, None):
        bench.instance.delete_snapshot(bench.snapshot_deletion(cut, handle="no-such-snapshot", owner=owner))


@rule("delete_snapshot", waivable=False, after=(delete_snapshot_removes_the_snapshot,))
def delete_snapshot_refuses_the_snapshot_of_others(bench: Bench) -> None:
    """`delete_snapshot` with the marks of another VolumeSnapshot or cluster is `AlreadyExists`, and it stays."""
    bench.require_marks()
    cut = bench.cut(bench.make())
    for who, owner in _strangers(cut.request.owner).items():
        context = replace(bench.instance.context(), cluster_id=owner.cluster_id)
        request = bench.snapshot_deletion(cut, owner=owner, context=context)
        bench.require_refused(
            "delete_snapshot", request, AlreadyExists, why=f"the snapshot is not that of {who}", retry=True
        )
        _require_there(bench, cut, f"an attempt to delete it for {who}")


@rule("delete_snapshot", waivable=False, after=(delete_snapshot_removes_the_snapshot,))
def a_content_that_a_person_wrote_deletes_nothing_of_another_cluster(bench: Bench) -> None:
    """`delete_snapshot` without marks, as for a content that a person wrote, is `AlreadyExists` for a snapshot of
    another cluster, and deletes one of its own.
    """
    bench.require_marks()
    cut = bench.cut(bench.make())
    request = DeleteSnapshotRequest(context=bench.instance.context(), handle=cut.snapshot.handle)
    other = replace(request, context=replace(request.context, cluster_id=_OTHER_CLUSTER))
    bench.require_refused("delete_snapshot", other, AlreadyExists, why="the snapshot is another cluster's", retry=True)
    _require_there(bench, cut, "an attempt to delete it for a content of another cluster")
    bench.instance.delete_snapshot(request)
    _require_gone(bench, cut, "its deletion for a content that a person wrote")


# --- listing ----------------------------------------------------------------------------------------------------------


@rule(
    "list_snapshots",
    waivable=False,
    after=(delete_snapshot_removes_the_snapshot,),
    sanity="ListSnapshots check the presence of new snapshots in the snapshot list",
)
def list_snapshots_shows_the_marks(bench: Bench) -> None:
    """`list_snapshots` has what was made with its marks, source, size and time, as `find_snapshot` says them: the leak
    check uses nothing else.
    """
    made = bench.make()
    cut, other = bench.cut(made), bench.cut(made)
    found = bench.instance.find_snapshot(_by_handle(bench, cut.snapshot.handle))
    small: Iterator[SnapshotPage] = pages_of(bench.instance, partial(ListSnapshotsRequest, max_entries=1))
    handles = [each.handle for page in small for each in page.snapshots]
    for handle in (cut.snapshot.handle, other.snapshot.handle):
        count = handles.count(handle)
        bench.require(count == 1, f"list_snapshots with max_entries 1 has {count} entries of {handle}")
    entries = [each for each in bench.instance.listed_snapshots() if each.handle == cut.snapshot.handle]
    bench.require(len(entries) == 1, f"list_snapshots has {len(entries)} entries of {cut.snapshot.handle}")
    for field in ("owner", "source", "size_bytes", "created_at"):
        said, told = getattr(entries[0], field), getattr(found, field)
        bench.require(said == told, f"list_snapshots says {field} {said!r}, find_snapshot says {told!r}")


@rule(
    "list_snapshots",
    after=(list_snapshots_shows_the_marks,),
    sanity="ListSnapshots should return next token when a limited number of entries are requested",
)
def list_snapshots_is_complete_while_things_change(bench: Bench) -> None:
    """Snapshots come and go between the pages: one that is there all the time is in the list, once."""
    made = bench.make()
    kept = {cut.snapshot.handle: cut for cut in (bench.cut(made) for _ in range(bench.subject.page_assets + 4))}
    listed: list[str] = []
    pages: Iterator[SnapshotPage] = pages_of(bench.instance, ListSnapshotsRequest)
    for number, page in enumerate(pages):
        listed += [each.handle for each in page.snapshots]
        if number % 2:
            bench.cut(made)
            continue
        for handle in [handle for handle in kept if handle in listed][:2]:
            bench.drop(kept.pop(handle))
    counts = {handle: listed.count(handle) for handle in kept}
    wrong = {handle: count for handle, count in counts.items() if count != 1}
    bench.require(not wrong, f"list_snapshots has these, which were there all the time, so often: {wrong}")


# --- what is made from a snapshot -------------------------------------------------------------------------------------


def _restore(bench: Bench, cut: Cut, **changes: Any) -> ProvisionRequest:
    """A demand for an asset from the snapshot, as large as that, in a place where that can be."""
    snapshot, places = cut.snapshot, cut.snapshot.node_affinity
    size = max(snapshot.size_bytes, bench.info.minimum_bytes)
    segment = dict(places[0]) if places else bench.segment()
    given = {"source_snapshot": snapshot.handle, "capacity_bytes": size, "segment": segment}
    return bench.demand(**{**given, **changes})


@rule(
    "create_snapshot",
    after=(a_snapshot_is_made_once, provision_again_gives_the_same_asset),
    sanity="CreateVolume should create volume from an existing source snapshot",
)
def an_asset_is_made_from_a_snapshot(bench: Bench) -> None:
    """An asset can be made from a ready snapshot, no larger than the snapshot says and the source is, and asking again
    is an equal demand.
    """
    made = bench.make()
    cut = bench.cut(made)
    size, source = cut.snapshot.size_bytes, made.asset.capacity_bytes
    bench.require(size <= source, f"the snapshot needs {size} bytes, its source has {source}")
    demand = _restore(bench, cut)
    copy = bench.make(demand)
    bench.require(copy.asset.handle != made.asset.handle, "the copy is the source itself")
    bench.require_same(bench.instance.provision(demand), copy.asset, "an equal demand for a copy")
    _require_other_source(bench, demand, copy)


def _require_other_source(bench: Bench, demand: ProvisionRequest, copy: Made) -> None:
    """The same demand for an empty asset does not get the copy."""
    try:
        asset = bench.instance.provision(replace(demand, source_snapshot=None, source_volume=None, source_asset=None))
    except BackendError:
        return
    bench.require(asset.handle != copy.asset.handle, "a demand for an empty asset got the copy")


@rule("create_snapshot", after=(an_asset_is_made_from_a_snapshot,))
def an_asset_from_a_snapshot_can_be_larger(bench: Bench) -> None:
    """An asset that is made from a snapshot has the size that was asked for, if that is more than the snapshot's."""
    cut = bench.cut(bench.make())
    wanted = max(cut.snapshot.size_bytes, bench.info.minimum_bytes) * 2
    copy = bench.make(_restore(bench, cut, capacity_bytes=wanted))
    bench.require(
        copy.asset.capacity_bytes >= wanted, f"it has {copy.asset.capacity_bytes} bytes, asked for were {wanted}"
    )


@rule("create_snapshot", after=(an_asset_is_made_from_a_snapshot,))
def an_asset_smaller_than_its_snapshot_is_refused(bench: Bench) -> None:
    """A demand for less than `size_bytes` is refused, and makes nothing: a part of the data is none."""
    size = bench.demand().capacity_bytes
    cut = bench.cut(bench.make(bench.demand(capacity_bytes=2 * size)))
    if cut.snapshot.size_bytes <= size:
        raise NotApplicable(f"a snapshot of an asset with {2 * size} bytes needs {cut.snapshot.size_bytes}")
    demand = bench.will_provision(_restore(bench, cut, capacity_bytes=size))
    refusals = (InvalidArgument, ResourceExhausted, Unsupported)
    why = f"{size} bytes are less than the {cut.snapshot.size_bytes} of the snapshot"
    bench.require_refused("provision", demand, *refusals, why=why, retry=True)
    require_nothing_made(bench, demand, "a demand for less than the snapshot needs")


@rule("create_snapshot", "delete", after=(an_asset_is_made_from_a_snapshot, delete_removes_the_asset))
def a_snapshot_outlives_its_source(bench: Bench) -> None:
    """The asset is deleted: its snapshot is found as before, also by an equal demand, makes an asset, and can be
    deleted; what was made of it stays, and an equal demand gets it.
    """
    made = bench.make()
    cut = bench.cut(made)
    bench.remove(made)
    bench.require_gone(made, "its deletion while it had a snapshot")
    _require_there(bench, cut, "the deletion of its source")
    again = bench.cut(cut.request).snapshot.handle
    bench.require(again == cut.snapshot.handle, f"an equal demand after the deletion of its source gave {again}")
    demand = _restore(bench, cut)
    copy = bench.make(demand)
    bench.drop(cut)
    _require_gone(bench, cut, "its deletion after that of its source")
    bench.require_same(bench.instance.provision(demand), copy.asset, "an equal demand after the end of its snapshot")


@rule("create_snapshot", "delete", after=(a_snapshot_outlives_its_source,))
def a_snapshot_stays_under_assets_that_show_it(bench: Bench) -> None:
    """An asset that shows its snapshot without a copy names it (`backing_snapshot`): `delete_snapshot` is `VolumeInUse`
    until the last of them is deleted, which leaves the snapshot.
    """
    if bench.subject.backing_parameters is None:
        raise NotApplicable("Subject.backing_parameters names none")
    cut, modes = bench.cut(bench.make()), (AccessMode.READ_ONLY_MANY,)
    parameters = bench.parameters(bench.subject.backing_parameters)
    shown = [bench.make(_restore(bench, cut, access_modes=modes, parameters=parameters)) for _ in range(2)]
    backing = [made.asset.backing_snapshot for made in shown]
    if not any(backing):
        raise NotApplicable("an asset for readers has storage of its own")
    expected = cut.snapshot.handle
    bench.require(backing == [expected] * 2, f"the assets show {backing}, expected {expected}")
    for made in shown:
        deletion = bench.snapshot_deletion(cut)
        bench.require_refused("delete_snapshot", deletion, VolumeInUse, why="an asset shows it", retry=True)
        bench.remove(made)
        bench.require_gone(made, "its deletion while it showed a snapshot")
        _require_there(bench, cut, "the deletion of an asset that showed it")
    bench.drop(cut)
    _require_gone(bench, cut, "its deletion after that of the assets that showed it")


@rule("create_snapshot", "delete", after=(a_snapshot_outlives_its_source,))
def the_source_is_free_once_the_moment_has_passed(bench: Bench) -> None:
    """`create_snapshot` has returned the snapshot, which need not be ready: its source can be deleted at once, and the
    snapshot becomes ready and makes an asset.
    """
    made = bench.make()
    request = bench.will_snapshot(bench.snapshot_request(made))
    snapshot = bench.instance.create_snapshot(request)
    bench.remove(made)
    bench.require_gone(made, "its deletion right after the moment of a snapshot")
    cut = bench.was_cut(request, snapshot)
    bench.make(_restore(bench, cut))


@rule("create_snapshot", after=(an_asset_is_made_from_a_snapshot,))
def an_asset_from_a_snapshot_has_the_data_of_its_moment(bench: Bench) -> None:
    """What was written before the snapshot is in what is made from it; what was written after it is not."""
    fill, is_empty = _eyes(bench)
    made = bench.make()
    request = bench.will_snapshot(bench.snapshot_request(made))
    snapshot = bench.instance.create_snapshot(request)
    fill(made.asset)
    empty, full = bench.was_cut(request, snapshot), bench.cut(made)
    later = bench.make(_restore(bench, empty))
    bench.require(is_empty(later.asset), "what was written after the snapshot is in what was made from it")
    earlier = bench.make(_restore(bench, full))
    bench.require(not is_empty(earlier.asset), "what was written before the snapshot is not in what was made from it")


def _eyes(bench: Bench) -> tuple[Any, Any]:
    fill, is_empty = bench.subject.fill, bench.subject.is_empty
    if fill is None or is_empty is None:
        raise NotApplicable("needs Subject.fill and Subject.is_empty")
    return fill, is_empty


# --- copies of assets -------------------------------------------------------------------------------------------------


def _copy(bench: Bench, made: Made, **changes: Any) -> ProvisionRequest:
    """A demand for a copy of the asset where that is, as large as it."""
    places = made.asset.node_affinity
    given: dict[str, Any] = {
        "source_volume": made.asset.handle,
        "source_asset": made.volume(),
        "capacity_bytes": made.asset.capacity_bytes,
        "segment": dict(places[0]) if places else bench.segment(),
    }
    return bench.demand(**{**given, **changes})


def _copies(bench: Bench) -> None:
    if not bench.info.clones:
        raise NotApplicable("it copies no assets (`DriverInfo.clones`)")


@rule(
    "provision",
    after=(provision_again_gives_the_same_asset,),
    sanity="CreateVolume should create volume from an existing source volume",
)
def an_asset_is_copied(bench: Bench) -> None:
    """With `DriverInfo.clones`, an asset is made of another one, as large as that or larger; asking again is an equal
    demand, and the source stays as it is.
    """
    _copies(bench)
    made = bench.make()
    for size in (made.asset.capacity_bytes, made.asset.capacity_bytes * 2):
        demand = _copy(bench, made, capacity_bytes=size)
        copy = bench.make(demand)
        bench.require(copy.asset.handle != made.asset.handle, "the copy is the source itself")
        has = copy.asset.capacity_bytes
        bench.require(has >= size, f"the copy has {has} bytes, asked for were {size}")
        bench.require_same(bench.instance.provision(demand), copy.asset, "an equal demand for a copy")
    _require_other_source(bench, demand, copy)
    bench.require_intact(made, "copying it")


@rule("provision", after=(an_asset_is_copied,))
def a_copy_is_made_in_the_place_asked_for(bench: Bench) -> None:
    """A copy is made in the place that was asked for, or refused; with `DriverInfo.clones` "anywhere" it is made."""
    _copies(bench)
    if len(bench.subject.segments) < 2:
        raise NotApplicable("Subject.segments names less than two places")
    made = bench.make()
    for segment in bench.subject.segments:
        demand = _copy(bench, made, segment=dict(segment))
        try:
            affinity = bench.make(demand).asset.node_affinity
        except BackendError as error:
            bench.require(bench.info.clones != "anywhere", f"a copy in {dict(segment)} was refused: {error}")
            require_nothing_made(bench, demand, "a demand for a copy in another place")
            continue
        reaches = any(all(each.get(k) == v for k, v in segment.items()) for each in affinity)
        bench.require(reaches, f"asked for was {dict(segment)}, the affinity is {[dict(each) for each in affinity]}")


@rule("provision", after=(an_asset_is_copied,))
def a_copy_has_the_data_and_is_another(bench: Bench) -> None:
    """What was in the asset is in its copy; what is written into the asset from then on is not."""
    _copies(bench)
    fill, is_empty = _eyes(bench)
    made = bench.make()
    empty = bench.make(_copy(bench, made))
    fill(made.asset)
    bench.require(is_empty(empty.asset), "what was written after the copy was made is in it")
    bench.require(not is_empty(bench.make(_copy(bench, made)).asset), "what was in the asset is not in its copy")


@rule("provision", "delete", after=(an_asset_is_copied, delete_removes_the_asset))
def a_copy_outlives_its_source(bench: Bench) -> None:
    """The asset is deleted: its copy stays, and an equal demand gets it; a new copy of what is gone is `NotFound`."""
    _copies(bench)
    made = bench.make()
    demand = _copy(bench, made)
    copy = bench.make(demand)
    bench.remove(made)
    bench.require_gone(made, "its deletion while it had a copy")
    bench.require_same(bench.instance.provision(demand), copy.asset, "an equal demand after the end of its source")
    late = bench.will_provision(_copy(bench, made))
    bench.require_refused("provision", late, NotFound, why="the source is gone", retry=True)
    require_nothing_made(bench, late, "a demand for a copy of what is gone")


# --- crashes ----------------------------------------------------------------------------------------------------------


@rule("create_snapshot", waivable=False, after=(find_snapshot_answers_with_the_snapshot,))
def a_lost_answer_of_create_snapshot_is_resolved(bench: Bench) -> None:
    """The result of `create_snapshot` is lost with its state: `find_snapshot` has what was made, and there is one."""
    bench.require_marks()
    request = bench.will_snapshot(bench.snapshot_request(bench.make()))
    answer = bench.instance.patiently("create_snapshot", request)
    bench.restart()
    found = bench.instance.find_snapshot(bench.snapshot_question(request))
    cut = bench.cut(request)
    for what, said in (("the lost answer", answer), ("find_snapshot after it", found)):
        handle = said.handle if isinstance(said, Snapshot) else cut.snapshot.handle
        lost = said is None and not isinstance(answer, InProgress)
        bench.require(
            handle == cut.snapshot.handle and not lost,
            f"an equal demand after a lost answer gave {cut.snapshot.handle}, {what} was {shown(said)}",
        )
    _require_there(bench, cut, "a lost answer")


@rule(
    "create_snapshot",
    "delete_snapshot",
    after=(a_lost_answer_of_create_snapshot_is_resolved, delete_snapshot_removes_the_snapshot),
)
def a_crash_in_the_middle_of_create_snapshot_leaves_nothing_unseen(bench: Bench) -> None:
    """`create_snapshot` dies at any line of the backend: `find_snapshot` returns what exists, so that it can be
    deleted, or nothing exists; an equal demand gives one whole snapshot of it, never a second.
    """
    bench.require_marks()
    made = bench.make()
    steps = bench.crash_points(bench.lines_of("create_snapshot", bench.will_snapshot(bench.snapshot_request(made))))
    picture = bench.picture()
    for step in steps:
        for again in (False, True):
            when = f"a crash of create_snapshot at line {step}"
            request = bench.will_snapshot(bench.snapshot_request(made))
            before = _ours(bench)
            bench.crash("create_snapshot", request, step)
            found = bench.instance.find_snapshot(bench.snapshot_question(request))
            if again:
                cut = bench.cut(request)
                same = found is None or found.handle == cut.snapshot.handle
                bench.require(same, f"after {when} find_snapshot saw {shown(found)}, a second is {cut.snapshot.handle}")
                _require_there(bench, cut, f"{when}, and an equal demand")
                bench.drop(cut)
                _require_gone(bench, cut, f"{when}, an equal demand, and its deletion")
            elif found is not None:
                bench.drop(bench.was_cut(request, found))
            left = _ours(bench) - before
            bench.require(not left, f"after {when} find_snapshot said {shown(found)}, and listed is {sorted(left)}")
            bench.require_nothing_left(picture, f"{when}, and the deletion of what it left")


def _ours(bench: Bench) -> set[str]:
    """Handles of every snapshot that may be ours: with our marks, or none."""
    if not bench.supports("list_snapshots"):
        return set()
    cluster, listed = bench.subject.cluster_id, bench.instance.listed_snapshots()
    return {each.handle for each in listed if each.owner is None or each.owner.cluster_id == cluster}


@rule("delete_snapshot", after=(delete_snapshot_of_what_is_gone_is_done, delete_snapshot_removes_the_snapshot))
def a_crash_in_the_middle_of_delete_snapshot_is_finished(bench: Bench) -> None:
    """`delete_snapshot` dies at any line of the backend: the next process finishes it, and leaves nothing."""
    made = bench.make()
    steps = bench.crash_points(bench.lines_of("delete_snapshot", bench.snapshot_deletion(bench.cut(made))))
    picture = bench.picture()
    for step in steps:
        cut = bench.cut(made)
        bench.crash("delete_snapshot", bench.snapshot_deletion(cut), step)
        bench.drop(cut)
        _require_gone(bench, cut, f"a crash of delete_snapshot at line {step}, and another call")
        bench.require_nothing_left(picture, f"a crash of delete_snapshot at line {step}, and another call")


RULES = (
    a_snapshot_is_made_once,
    a_snapshot_of_another_asset_is_refused,
    a_snapshot_of_what_is_gone_is_not_found,
    the_longest_snapshot_name_works,
    find_snapshot_answers_with_the_snapshot,
    the_time_of_a_snapshot_is_its_moment,
    find_snapshot_does_not_show_the_snapshots_of_others,
    find_snapshot_of_what_never_was_is_absent,
    delete_snapshot_removes_the_snapshot,
    delete_snapshot_of_what_is_gone_is_done,
    delete_snapshot_refuses_the_snapshot_of_others,
    a_content_that_a_person_wrote_deletes_nothing_of_another_cluster,
    list_snapshots_shows_the_marks,
    list_snapshots_is_complete_while_things_change,
    an_asset_is_made_from_a_snapshot,
    an_asset_from_a_snapshot_can_be_larger,
    an_asset_smaller_than_its_snapshot_is_refused,
    a_snapshot_outlives_its_source,
    a_snapshot_stays_under_assets_that_show_it,
    the_source_is_free_once_the_moment_has_passed,
    an_asset_from_a_snapshot_has_the_data_of_its_moment,
    an_asset_is_copied,
    a_copy_is_made_in_the_place_asked_for,
    a_copy_has_the_data_and_is_another,
    a_copy_outlives_its_source,
    a_lost_answer_of_create_snapshot_is_resolved,
    a_crash_in_the_middle_of_create_snapshot_leaves_nothing_unseen,
    a_crash_in_the_middle_of_delete_snapshot_is_finished,
)
