"""Groups of snapshots by CSI, where csi-sanity does not look: retries, doubt, owners, members."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

from integration.csi.caller import Caller, bridged
from integration.csi.test_bridge import storage_of, subject
from volplane import (
    BackendError,
    GroupSnapshot,
    GroupSnapshotRequest,
    InProgress,
    PermissionDenied,
    SnapshotOwnership,
    Unsupported,
    hookimpl,
)
from volplane_testing.memory import MemoryBackend


async def demand(csi: Caller, *names: str) -> dict[str, Any]:
    volumes = [(await csi.create(each)).volume_id for each in names or ("pvc-1", "pvc-2")]
    return {"name": "groupsnapshot-1", "source_volume_ids": volumes}


class Slow(MemoryBackend):
    """Takes its time; and fails as `errors` says, after it has made the group."""

    errors: ClassVar[list[BackendError]] = []

    @hookimpl
    def create_group_snapshot(self, request: GroupSnapshotRequest) -> GroupSnapshot | InProgress:
        if not request.context.state:
            return InProgress(retry_after=7.0, state={"asked": True})
        made = super().create_group_snapshot(request)
        if type(self).errors:
            raise type(self).errors.pop(0)
        return made


async def test_a_group_is_cut_once_though_its_caller_gives_up() -> None:
    async with bridged(subject(Slow)) as csi:
        wanted = await demand(csi)
        await csi.refused("ABORTED", "CreateVolumeGroupSnapshot", seconds=3.0, **wanted)
        group = (await csi.call("CreateVolumeGroupSnapshot", seconds=10.0, **wanted)).group_snapshot
        assert len(storage_of(csi).snapshots) == len(group.snapshots) == 2
        assert group.creation_time.seconds


async def test_a_group_in_doubt_is_no_end_and_is_found_after_its_sources_are_gone() -> None:
    kind = type("Failing", (Slow,), {"errors": [PermissionDenied("after all")]})
    async with bridged(subject(kind)) as csi:
        wanted = await demand(csi)
        await csi.refused("ABORTED", "CreateVolumeGroupSnapshot", **wanted)
        for volume in wanted["source_volume_ids"]:
            await csi.delete(volume)
        group = (await csi.call("CreateVolumeGroupSnapshot", **wanted)).group_snapshot
        ids = [each.snapshot_id for each in group.snapshots]
        await csi.call("DeleteVolumeGroupSnapshot", group_snapshot_id=group.group_snapshot_id, snapshot_ids=ids)
        assert not storage_of(csi).snapshots
        await csi.refused("NOT_FOUND", "CreateVolumeGroupSnapshot", **wanted)


async def test_volumes_that_cannot_be_cut_together_are_said_to_be_wrong() -> None:
    class Apart(MemoryBackend):
        @hookimpl
        def create_group_snapshot(self, request: GroupSnapshotRequest) -> GroupSnapshot:
            raise Unsupported("they are attached to two nodes")

    async with bridged(subject(Apart)) as csi:
        text = await csi.refused("INVALID_ARGUMENT", "CreateVolumeGroupSnapshot", **await demand(csi))
        assert "two nodes" in text


async def test_nothing_of_a_group_is_deleted_that_has_other_marks_or_other_members() -> None:
    async with bridged(subject()) as csi:
        group = (await csi.call("CreateVolumeGroupSnapshot", **await demand(csi))).group_snapshot
        ids = [each.snapshot_id for each in group.snapshots]
        lone = await csi.call("CreateSnapshot", name="lone", source_volume_id=group.snapshots[0].source_volume_id)
        given = {"group_snapshot_id": group.group_snapshot_id}
        for wrong in (ids[:1], [*ids, lone.snapshot.snapshot_id]):
            await csi.refused("INVALID_ARGUMENT", "DeleteVolumeGroupSnapshot", snapshot_ids=wrong, **given)
            await csi.refused("INVALID_ARGUMENT", "GetVolumeGroupSnapshot", snapshot_ids=wrong, **given)
        made = storage_of(csi).snapshots
        ours = made[ids[1]].owner
        made[ids[1]].owner = SnapshotOwnership(cluster_id="other", snapshot_uid="1", content_name="x")
        await csi.refused("FAILED_PRECONDITION", "DeleteVolumeGroupSnapshot", snapshot_ids=ids, **given)
        made[ids[1]].owner = ours
        assert len(made) == 3
        # A member may go alone; whoever still names it then deletes the rest.
        await csi.call("DeleteSnapshot", snapshot_id=ids[0])
        await csi.call("DeleteVolumeGroupSnapshot", snapshot_ids=ids, **given)
        assert list(made) == [lone.snapshot.snapshot_id]


async def test_a_group_is_not_deleted_while_it_is_made_again() -> None:
    async with bridged(subject(Slow)) as csi:
        wanted = await demand(csi)
        group = (await csi.call("CreateVolumeGroupSnapshot", **wanted)).group_snapshot
        again = asyncio.create_task(csi.call("CreateVolumeGroupSnapshot", **wanted))
        await asyncio.sleep(0.1)
        given = {"group_snapshot_id": group.group_snapshot_id}
        await csi.refused("ABORTED", "DeleteVolumeGroupSnapshot", **given)
        await csi.refused("ABORTED", "DeleteVolume", volume_id=wanted["source_volume_ids"][0], seconds=3.0)
        assert (await again).group_snapshot.group_snapshot_id == group.group_snapshot_id


async def test_a_backend_without_groups_does_not_serve_them() -> None:
    class Plain(MemoryBackend):
        create_group_snapshot = None  # type: ignore[assignment]

    async with bridged(subject(Plain)) as csi:
        assert not [each for each in csi.dispatch.methods if "Group" in each]
        announced = (await csi.call("GetPluginCapabilities")).capabilities
        assert 3 not in [each.service.type for each in announced]
