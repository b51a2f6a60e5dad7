"""Snapshots of several assets at one moment."""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import Any, Final

from volplane.assets import Absent, GroupSnapshot, SnapshotOwnership
from volplane.errors import AlreadyExists, BackendError, NotFound, ResourceExhausted, Unsupported
from volplane.requests import (
    DeleteGroupSnapshotRequest,
    FindGroupSnapshotRequest,
    FindSnapshotRequest,
    GroupSnapshotRequest,
    SnapshotIdentity,
)
from volplane_testing.conformance.bench import Bench, Made
from volplane_testing.conformance.rule import rule
from volplane_testing.conformance.rules.snapshots import a_snapshot_is_made_once
from volplane_testing.conformance.violations import NotApplicable

__all__ = ["RULES"]

_OTHER_UID: Final = "00000000-0000-4000-8000-000000000000"
_SLACK: Final = 1.0


def _request(bench: Bench, made: list[Made]) -> GroupSnapshotRequest:
    uid = str(uuid.uuid4())
    content = f"groupsnapcontent-{uid}"
    request = GroupSnapshotRequest(
        context=bench.instance.context(),
        name=f"groupsnapshot-{uid}",
        volumes=tuple(each.volume() for each in made),
        owner=SnapshotOwnership(cluster_id=bench.subject.cluster_id, snapshot_uid=uid, content_name=content),
        group=SnapshotIdentity(namespace="default", name="together", content=content),
        parameters=bench.instance.driver.view.typed_parameters(bench.subject.snapshot_parameters, of_snapshot=True),
    )
    return bench.will_group(request)


def _assets(bench: Bench) -> list[Made]:
    """Two assets that can be cut at one moment; where that takes one node, they are attached to it."""
    made = [bench.make(), bench.make()]
    if bench.supports("attach") and bench.info.attach_required and bench.subject.nodes:
        try:
            for each in made:
                bench.instance.attach(bench.attachment(each, bench.subject.nodes[0]))
        except ResourceExhausted as error:
            raise NotApplicable(f"the node takes fewer assets: {error}") from error
    return made


def _cut(bench: Bench, request: GroupSnapshotRequest) -> GroupSnapshot:
    try:
        group: GroupSnapshot = bench.instance.finish("create_group_snapshot", request)
    except Unsupported as error:
        raise NotApplicable(f"assets of the suite cannot be cut at one moment: {error}") from error
    return group


def _find(bench: Bench, **asked: Any) -> GroupSnapshot | None:
    found = bench.instance.found("find_group_snapshot", FindGroupSnapshotRequest(**asked))
    return None if isinstance(found, Absent) else found


def _found(bench: Bench, request: GroupSnapshotRequest, group: GroupSnapshot) -> dict[str, GroupSnapshot | None]:
    context, handles = bench.instance.context(), tuple(each.handle for each in group.snapshots)
    found = {
        "by handle": _find(bench, context=context, handle=group.handle),
        "by handle and members": _find(bench, context=context, handle=group.handle, snapshots=handles),
    }
    if bench.info.marks:
        found["by name and owner"] = _find(bench, context=context, name=request.name, owner=request.owner)
    return found


def _deletion(bench: Bench, request: GroupSnapshotRequest, group: GroupSnapshot) -> DeleteGroupSnapshotRequest:
    return DeleteGroupSnapshotRequest(
        context=bench.instance.context(),
        handle=group.handle,
        snapshots=tuple(each.handle for each in group.snapshots),
        owner=request.owner,
    )


def _members(group: GroupSnapshot | None) -> list[tuple[str, str]]:
    return sorted((each.source, each.handle) for each in group.snapshots) if group is not None else []


def _require_members(bench: Bench, request: GroupSnapshotRequest, group: GroupSnapshot, after: str) -> None:
    for how, found in _found(bench, request, group).items():
        told, expected = _members(found), _members(group)
        bench.require(told == expected, f"find_group_snapshot {how} after {after} has {told}, expected {expected}")


def _require_no_members(bench: Bench, request: GroupSnapshotRequest, after: str) -> None:
    if bench.supports("list_snapshots"):
        left = [each.handle for each in bench.instance.listed_snapshots() if each.owner == request.owner]
        bench.require(not left, f"after {after} list_snapshots has {', '.join(left)} with the marks of the group")


@rule("create_group_snapshot", waivable=False, after=(a_snapshot_is_made_once,))
def a_group_is_made_once(bench: Bench) -> None:
    """A group has one snapshot of each asset; an equal demand, in this process or the next, answers with the same."""
    made = _assets(bench)
    request = _request(bench, made)
    first = _cut(bench, request)
    sources, wanted = sorted(each.source for each in first.snapshots), sorted(each.asset.handle for each in made)
    bench.require(sources == wanted, f"its snapshots are of {sources}, asked for were {wanted}")
    again = _cut(bench, request)
    bench.restart()
    for other in (again, _cut(bench, request)):
        same = other.handle == first.handle and _members(other) == _members(first)
        bench.require(same, f"equal demands gave {_members(first)} and {_members(other)}")


@rule("create_group_snapshot", after=(a_group_is_made_once,))
def all_snapshots_of_a_group_are_of_one_moment(bench: Bench) -> None:
    """`created_at` of all members is the same."""
    group = _cut(bench, _request(bench, _assets(bench)))
    times = [each.created_at for each in group.snapshots if each.created_at is not None]
    if not times:
        raise NotApplicable("the backend does not know the moment")
    bench.require(max(times) - min(times) <= _SLACK, f"the members are of the moments {times}")


@rule("create_group_snapshot", after=(a_group_is_made_once,))
def a_group_of_other_assets_is_refused(bench: Bench) -> None:
    """The name of an existing group for other assets is `AlreadyExists`: never a second cut."""
    request = _request(bench, _assets(bench))
    group = _cut(bench, request)
    other = replace(request, volumes=request.volumes[1:])
    bench.require_refused("create_group_snapshot", other, AlreadyExists, why="it is of other assets", retry=True)
    _require_members(bench, request, group, "a demand of other assets for its name")


@rule("create_group_snapshot", "delete", after=(a_group_is_made_once,))
def a_group_with_an_asset_that_is_gone_makes_nothing(bench: Bench) -> None:
    """If one of the assets is gone, `create_group_snapshot` is `NotFound`, and no other one is cut."""
    kept, gone = _assets(bench)
    request = _request(bench, [kept, gone])
    if bench.supports("detach") and bench.info.attach_required and bench.subject.nodes:
        bench.instance.detach(bench.detachment(gone, bench.subject.nodes[0]))
    bench.remove(gone)
    bench.require_refused("create_group_snapshot", request, NotFound, why="an asset is gone", retry=True)
    found = _find(bench, context=bench.instance.context(), name=request.name, owner=request.owner)
    bench.require(found is None, f"find_group_snapshot after that has {_members(found)}, expected Absent")
    _require_no_members(bench, request, "that")


@rule("find_group_snapshot", waivable=False, after=(a_group_is_made_once,))
def find_group_snapshot_answers_with_the_group(bench: Bench) -> None:
    """`find_group_snapshot` answers by handle, and by name and owner, with all members, also in the next process; for
    another owner it is `Absent`. `find_snapshot` answers with each member, which carries the marks of the group.
    """
    request = _request(bench, _assets(bench))
    group = _cut(bench, request)
    for _ in range(2):
        _require_members(bench, request, group, "it was made")
        bench.restart()
    stranger = replace(request.owner, snapshot_uid=_OTHER_UID, content_name=f"groupsnapcontent-{_OTHER_UID}")
    try:
        found = _find(bench, context=bench.instance.context(), name=request.name, owner=stranger)
    except BackendError:
        found = None
    bench.require(found is None, f"find_group_snapshot for another owner has {_members(found)}")
    for member in group.snapshots:
        question = FindSnapshotRequest(context=bench.instance.context(), handle=member.handle)
        single = bench.instance.find_snapshot(question)
        owner = single.owner if single is not None else None
        marks = request.owner if bench.info.marks else None
        bench.require(owner == marks, f"find_snapshot of member {member.handle} says the marks are {owner!r}")


@rule("delete_group_snapshot", waivable=False, after=(find_group_snapshot_answers_with_the_group,))
def delete_group_snapshot_removes_all_members(bench: Bench) -> None:
    """After `delete_group_snapshot` no member is found or listed, and it is `Done` again; another group stays."""
    made = _assets(bench)
    request, kept = _request(bench, made), _request(bench, made)
    group, other = _cut(bench, request), _cut(bench, kept)
    for _ in range(2):
        bench.instance.finish("delete_group_snapshot", _deletion(bench, request, group))
        for how, found in _found(bench, request, group).items():
            bench.require(found is None, f"find_group_snapshot {how} after its deletion has {_members(found)}")
        _require_no_members(bench, request, "its deletion")
        bench.restart()
    _require_members(bench, kept, other, "the deletion of another group")


@rule("delete_group_snapshot", waivable=False, after=(delete_group_snapshot_removes_all_members,))
def delete_group_snapshot_refuses_the_group_of_others(bench: Bench) -> None:
    """`delete_group_snapshot` with other marks is `AlreadyExists`, and all members stay."""
    bench.require_marks()
    request = _request(bench, _assets(bench))
    group = _cut(bench, request)
    owners = {
        "another VolumeGroupSnapshot": replace(request.owner, snapshot_uid=_OTHER_UID),
        "another cluster": replace(request.owner, cluster_id="another-cluster"),
    }
    for who, owner in owners.items():
        context = replace(bench.instance.context(), cluster_id=owner.cluster_id)
        deletion = replace(_deletion(bench, request, group), owner=owner, context=context)
        bench.require_refused(
            "delete_group_snapshot", deletion, AlreadyExists, why=f"the group is not that of {who}", retry=True
        )
        _require_members(bench, request, group, f"an attempt to delete it for {who}")


RULES = (
    a_group_is_made_once,
    all_snapshots_of_a_group_are_of_one_moment,
    a_group_of_other_assets_is_refused,
    a_group_with_an_asset_that_is_gone_makes_nothing,
    find_group_snapshot_answers_with_the_group,
    delete_group_snapshot_removes_all_members,
    delete_group_snapshot_refuses_the_group_of_others,
)
