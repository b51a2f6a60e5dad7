"""Groups of snapshots: saved like snapshots, cut and deleted as a whole."""

from __future__ import annotations

from typing import Any

import pytest

from volplane import (
    Absent,
    AlreadyExists,
    BackendError,
    DeleteGroupSnapshotRequest,
    Done,
    FindGroupSnapshotRequest,
    GroupSnapshotRequest,
    InProgress,
    SnapshotIdentity,
    SnapshotOwnership,
    Unsupported,
)
from volplane_csi.testing import ALL_CAPABILITIES, Behaviour
from volplane_testing.cloud import FaultKind


def demand(world: Any, *uids: str, **parameters: str) -> GroupSnapshotRequest:
    content = "groupsnapcontent-g1"
    return GroupSnapshotRequest(
        context=world.context(),
        name="groupsnapshot-g1",
        volumes=tuple(world.identity(world.provision(uid), uid) for uid in uids),
        owner=SnapshotOwnership(cluster_id="cluster-1", snapshot_uid="g1", content_name=content),
        group=SnapshotIdentity(namespace="team", name="together", content=content),
        parameters={"": parameters},
    )


def saved(world: Any, request: GroupSnapshotRequest) -> GroupSnapshotRequest:
    answer = world.backend.create_group_snapshot(request)
    assert isinstance(answer, InProgress)
    found: GroupSnapshotRequest = world.with_state(request, answer.state)
    return found


def find(world: Any, handle: str, *snapshots: str) -> Any:
    request = FindGroupSnapshotRequest(context=world.context(), handle=handle, snapshots=snapshots)
    return world.backend.find_group_snapshot(request)


def delete(world: Any, handle: str, *snapshots: str) -> Any:
    request = DeleteGroupSnapshotRequest(context=world.context(), handle=handle, snapshots=snapshots)
    return world.backend.delete_group_snapshot(request)


def test_a_group_is_cut_once_its_request_is_saved(new_world: Any) -> None:
    world = new_world(extra_create_metadata=True)
    request = demand(world, "u1", "u2", kind="full", **{"csi.storage.k8s.io/group-snapshotter-secret-name": "x"})
    again = saved(world, request)
    assert world.fake.snapshots == {}
    made = world.backend.create_group_snapshot(again)
    assert {each.source for each in made.snapshots} == {"vol-000001", "vol-000002"}
    (sent,) = world.sent("CreateVolumeGroupSnapshot")
    assert sent.name == "groupsnapshot-g1"
    assert dict(sent.parameters) == {
        "kind": "full",
        "csi.storage.k8s.io/volumegroupsnapshot/name": "together",
        "csi.storage.k8s.io/volumegroupsnapshot/namespace": "team",
        "csi.storage.k8s.io/volumegroupsnapshotcontent/name": "groupsnapcontent-g1",
    }


def test_a_lost_answer_is_found_by_the_same_request_again(world: Any) -> None:
    request = saved(world, demand(world, "u1", "u2"))
    world.fault("CreateVolumeGroupSnapshot", FaultKind.LOSE)
    with pytest.raises(BackendError) as error:
        world.backend.create_group_snapshot(request)
    assert not error.value.nothing_done
    made = world.again().backend.create_group_snapshot(request)
    assert len(made.snapshots) == len(world.fake.snapshots) == 2


def test_a_name_that_is_taken_proves_nothing_after_an_attempt(world: Any) -> None:
    world.backend.create_group_snapshot(saved(world, demand(world, "u1")))
    other = saved(world, demand(world, "u2"))
    with pytest.raises(AlreadyExists):
        world.backend.create_group_snapshot(other)
    with pytest.raises(BackendError) as error:
        world.again().backend.create_group_snapshot(other)
    assert not error.value.nothing_done


def test_a_group_is_followed_until_all_its_members_are_ready(new_world: Any) -> None:
    world = new_world(Behaviour(cut_seconds=60.0))
    made = world.backend.create_group_snapshot(saved(world, demand(world, "u1", "u2")))
    handles = [each.handle for each in made.snapshots]
    assert [each.ready for each in find(world, made.handle, *handles).snapshots] == [False, False]
    world.fake.clock.advance(61.0)
    assert [each.ready for each in find(world, made.handle, *handles).snapshots] == [True, True]


@pytest.mark.parametrize("page", [1, 100])
def test_members_that_are_not_known_are_looked_up(new_world: Any, page: int) -> None:
    world = new_world(Behaviour(page=page))
    world.snapshot(world.provision("u0"))
    made = world.backend.create_group_snapshot(saved(world, demand(world, "u1", "u2")))
    assert find(world, made.handle) == made
    assert delete(world, made.handle) == Done()
    assert find(world, made.handle) == Absent()
    assert delete(world, made.handle) == Done()
    assert len(world.fake.snapshots) == 1


def test_a_group_of_which_other_members_are_known_is_not_deleted(new_world: Any) -> None:
    world = new_world(Behaviour(capabilities=ALL_CAPABILITIES - {"LIST_SNAPSHOTS"}))
    made = world.backend.create_group_snapshot(saved(world, demand(world, "u1", "u2")))
    with pytest.raises(BackendError):
        delete(world, made.handle, "snap-999999")
    assert len(world.fake.snapshots) == 2


def test_a_driver_without_a_group_controller_is_asked_nothing(new_world: Any) -> None:
    world = new_world(Behaviour(groups=False))
    with pytest.raises(Unsupported, match="cuts no groups of snapshots") as error:
        world.backend.create_group_snapshot(demand(world, "u1"))
    assert error.value.nothing_done
    assert world.sent("CreateVolumeGroupSnapshot") == []
