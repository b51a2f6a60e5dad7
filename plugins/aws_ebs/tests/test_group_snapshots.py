"""Groups of snapshots: CreateSnapshots of the instance that has the volumes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from volplane import (
    Absent,
    AlreadyExists,
    DeleteGroupSnapshotRequest,
    Done,
    FindGroupSnapshotRequest,
    GroupSnapshotRequest,
    InvalidArgument,
    SnapshotIdentity,
    SnapshotOwnership,
    Unavailable,
    Unsupported,
)
from volplane_aws_ebs.testing import Behaviour, FaultKind
from volplane_aws_ebs.testing.state import Attachment

CONTENT = "groupsnapcontent-g"
OWNER = SnapshotOwnership(cluster_id="cluster-1", snapshot_uid="g", content_name=CONTENT)


def attached(region: Any, count: int = 2) -> tuple[Any, list[Any]]:
    """An instance, and volumes that are attached to it."""
    instance = region.fake.add_instance()
    assets = [region.provision(f"u{number}") for number in range(count)]
    for number, asset in enumerate(assets):
        region.attach(asset, region.node(instance), f"u{number}")
    return instance, assets


def request(region: Any, assets: list[Any], **fields: Any) -> GroupSnapshotRequest:
    parameters = region.typed_snapshot(fields.pop("parameters", {}))
    return GroupSnapshotRequest(
        **{
            "context": region.context(),
            "name": "groupsnapshot-g",
            "volumes": tuple(region.identity(asset, f"u{number}") for number, asset in enumerate(assets)),
            "owner": OWNER,
            "group": SnapshotIdentity(namespace="team-a", name="together", content=CONTENT),
            "parameters": parameters,
            **fields,
        }
    )


def cut(region: Any, assets: list[Any], **fields: Any) -> Any:
    return region.finish(region.backend.create_group_snapshot, request(region, assets, **fields))


def find(region: Any, **fields: Any) -> Any:
    return region.backend.find_group_snapshot(FindGroupSnapshotRequest(context=region.context(), **fields))


def test_all_volumes_are_cut_by_one_call_and_no_other_of_the_instance(region: Any) -> None:
    _, assets = attached(region, 3)
    group = cut(region, assets[:2])
    assert sorted(each.source for each in group.snapshots) == sorted(asset.handle for asset in assets[:2])
    assert len({each.created_at for each in group.snapshots}) == 1
    assert {each.owner for each in group.snapshots} == {OWNER}
    assert region.fake.calls["CreateSnapshots"] == 1
    assert len(region.fake.snapshots) == 2
    assert cut(region, assets[:2]).handle == group.handle
    assert region.fake.calls["CreateSnapshots"] == 1


def test_volumes_that_are_not_attached_to_one_instance_are_refused_with_where_they_are(region: Any) -> None:
    instance, assets = attached(region, 1)
    other = region.provision("u1")
    with pytest.raises(Unavailable, match=rf"{assets[0].handle} to {instance.id}.*run the pods that use them on one"):
        cut(region, [assets[0], other])
    assert not region.fake.snapshots


def test_a_group_is_found_by_name_for_its_owner_and_by_handle(region: Any) -> None:
    _, assets = attached(region)
    group = cut(region, assets)
    ids = [each.handle for each in group.snapshots]
    for asked in ({"name": group.handle, "owner": OWNER}, {"handle": group.handle}):
        assert [each.handle for each in find(region, **asked).snapshots] == ids
    assert find(region, name=group.handle, owner=replace(OWNER, snapshot_uid="h")) == Absent()
    assert find(region, handle="groupsnapshot-other") == Absent()
    region.clock.advance(600.0)
    assert all(each.ready for each in find(region, handle=group.handle).snapshots)


def test_a_group_of_other_volumes_or_another_owner_is_not_taken(region: Any) -> None:
    _, assets = attached(region)
    cut(region, assets)
    with pytest.raises(AlreadyExists, match="instead of"):
        cut(region, assets[:1])
    with pytest.raises(AlreadyExists, match="another owner"):
        cut(region, assets, owner=replace(OWNER, snapshot_uid="h"))
    assert len(region.fake.snapshots) == 2


def test_a_group_is_deleted_whole_or_not_at_all(region: Any) -> None:
    _, assets = attached(region)
    group = cut(region, assets)
    ids = tuple(each.handle for each in group.snapshots)
    deletion = DeleteGroupSnapshotRequest(context=region.context(), handle=group.handle, snapshots=ids, owner=OWNER)
    region.fake.snapshots[ids[1]].tags["volplane.dev/snapshot-uid"] = "h"
    region.clock.advance(11.0)
    with pytest.raises(AlreadyExists, match="is not touched"):
        region.finish(region.backend.delete_group_snapshot, deletion)
    assert len(region.fake.snapshots) == 2
    region.fake.snapshots[ids[1]].tags["volplane.dev/snapshot-uid"] = "g"
    for _ in range(2):
        assert region.finish(region.backend.delete_group_snapshot, deletion) == Done()
    assert not region.fake.snapshots


@pytest.mark.parametrize("crash", [False, True])
@pytest.mark.parametrize("kind", [FaultKind.LOSE, FaultKind.DROP, FaultKind.LATE])
def test_a_group_whose_answer_never_came_is_not_made_twice(new_region: Any, kind: FaultKind, *, crash: bool) -> None:
    region = new_region(Behaviour(visible_after=10.0))
    _, assets = attached(region)
    region.fault("CreateSnapshots", kind, seconds=8.0)
    asked = request(region, assets, context=region.context(state={"begun": True}))
    region.backend.create_group_snapshot(replace(asked, context=region.context()))
    region.clock.advance(1.0)
    with pytest.raises(Unavailable):
        region.finish(region.backend.create_group_snapshot, asked)
    if crash:
        region.again()
    group = region.finish(region.backend.create_group_snapshot, asked)
    region.clock.advance(120.0)
    assert sorted(region.fake.snapshots) == sorted(each.handle for each in group.snapshots)


def test_locks_and_fast_restore_are_refused_for_groups(region: Any) -> None:
    _, assets = attached(region)
    with pytest.raises(InvalidArgument, match="take these parameters out"):
        cut(region, assets, parameters={"lockMode": "governance", "lockDuration": "1"})


def test_the_snapshot_of_a_volume_that_was_attached_meanwhile_is_not_kept(region: Any) -> None:
    instance, assets = attached(region)
    late, ask = region.provision("u9"), region.fake.request

    def request_of(action: str, given: Any, **options: Any) -> Any:
        if action == "CreateSnapshots":
            there = Attachment(instance=instance.id, device="/dev/xvdz", state="attached", since=region.clock.now)
            region.fake.volumes[late.handle].attachments[instance.id] = there
        return ask(action, given, **options)

    region.fake.request = request_of
    group = cut(region, assets)
    assert region.fake.calls["DeleteSnapshot"] == 1
    assert sorted(region.fake.snapshots) == sorted(each.handle for each in group.snapshots)
    assert late.handle not in {each.source for each in group.snapshots}


def test_more_other_volumes_than_ec2_leaves_out_are_said(region: Any) -> None:
    instance, assets = attached(region)
    for number in range(41):
        volume = region.provision(f"x{number}")
        there = Attachment(instance=instance.id, device=f"/dev/x{number}", state="attached", since=region.clock.now)
        region.fake.volumes[volume.handle].attachments[instance.id] = there
    with pytest.raises(Unsupported, match="has 41 volumes that are not of the group, and EC2 leaves out at most 40"):
        cut(region, assets)
    assert region.fake.calls["CreateSnapshots"] == 0
