"""The service GroupController: snapshots of several volumes at one moment.

A member may also be deleted alone, as a snapshot: so only the messages of the group say that it belongs to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from volplane.assets import Absent, GroupSnapshot, SnapshotOwnership
from volplane.csi.bridge import Bridge
from volplane.csi.codes import CsiError
from volplane.csi.flights import Flight
from volplane.csi.ids import asset_name, group_owner_of, required_id
from volplane.csi.snapshots import Making, kubernetes_names, moment_of, shown, source_volume
from volplane.csi.volumes import own_parameters
from volplane.csi.wire import build
from volplane.errors import AlreadyExists, InvalidArgument, NotFound
from volplane.requests import (
    DeleteGroupSnapshotRequest,
    FindGroupSnapshotRequest,
    GroupSnapshotRequest,
)

GROUP_HOOKS: Final = ("create_group_snapshot", "find_group_snapshot", "delete_group_snapshot")


class Groups:
    """Makes, shows and deletes groups of snapshots."""

    def __init__(self, bridge: Bridge) -> None:
        self._bridge = bridge
        self._making = Making(bridge, "CreateVolumeGroupSnapshot")

    async def capabilities(self) -> Any:
        return build(
            "GroupControllerGetCapabilitiesResponse",
            capabilities=[{"rpc": {"type": "CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT"}}],
        )

    # --- making -----------------------------------------------------------------------------------------------------

    async def create(self, request: Any, digest: bytes, seconds: float) -> Any:
        name = asset_name(request.name)
        sources = [required_id(each, "source_volume_ids") for each in request.source_volume_ids]
        if not sources or len(set(sources)) != len(sources):
            raise CsiError("INVALID_ARGUMENT", "source_volume_ids names no volume, or one twice")
        return await self._bridge.flights.run(
            "CreateVolumeGroupSnapshot",
            _key(group_owner_of(name, self._bridge.cluster_id)),
            digest,
            lambda flight: self._create(flight, name, sources, request.parameters),
            seconds,
        )

    async def _create(self, flight: Flight, name: str, sources: Sequence[str], given: Any) -> Any:
        made = await self._making.make(
            flight,
            name,
            request=lambda: self._request(flight, name, sources, given),
            find=lambda: self._found(name),
            fits=lambda group: {each.source for each in group.snapshots} == set(sources),
        )
        return build("CreateVolumeGroupSnapshotResponse", group_snapshot=_group(made))

    async def _request(self, flight: Flight, name: str, sources: Sequence[str], given: Any) -> GroupSnapshotRequest:
        bridge = self._bridge
        owner = group_owner_of(name, bridge.cluster_id)
        return GroupSnapshotRequest(
            context=bridge.context(),
            name=name,
            volumes=tuple([await source_volume(bridge, flight, each) for each in sources]),
            owner=owner,
            group=kubernetes_names(given, "volumegroupsnapshot", name, owner),
            parameters=bridge.view.typed_parameters(own_parameters(given), of_snapshot=True),
        )

    async def _found(self, name: str) -> GroupSnapshot | Absent:
        bridge = self._bridge
        owner = group_owner_of(name, bridge.cluster_id)
        return await bridge.ask(FindGroupSnapshotRequest(context=bridge.context(), name=name, owner=owner))

    # --- what is there ----------------------------------------------------------------------------------------------

    async def _look(self, id_: str, snapshots: Sequence[str]) -> GroupSnapshot | None:
        """Return the group with this id, whoever made it; None: there is none."""
        request = FindGroupSnapshotRequest(context=self._bridge.context(), handle=id_, snapshots=tuple(snapshots))
        try:
            found = await self._bridge.ask(request)
        except (InvalidArgument, NotFound):
            return None  # It can be none of this driver.
        return None if isinstance(found, Absent) or found.handle != id_ else found

    async def get(self, request: Any) -> Any:
        id_ = required_id(request.group_snapshot_id, "group_snapshot_id")
        found = await self._look(id_, request.snapshot_ids)
        if found is None:
            raise CsiError("NOT_FOUND", f"group_snapshot_id {id_!r}: there is no such group")
        await self._require_members(found, request.snapshot_ids)
        return build("GetVolumeGroupSnapshotResponse", group_snapshot=_group(found))

    async def _require_members(self, found: GroupSnapshot, given: Sequence[str]) -> None:
        """Raise CsiError if the caller means other snapshots than those of the group. Some may be gone already."""
        members = {each.handle for each in found.snapshots}
        left_out = members - set(given) if given else set()
        strange = [each for each in given if each not in members and await self._bridge.snapshot(each) is not None]
        if wrong := [*sorted(left_out), *strange]:
            raise CsiError("INVALID_ARGUMENT", f"snapshot_ids does not agree with {found.handle} about {wrong[0]!r}")

    # --- deleting ---------------------------------------------------------------------------------------------------

    async def delete(self, request: Any, digest: bytes, seconds: float) -> Any:
        id_ = required_id(request.group_snapshot_id, "group_snapshot_id")
        snapshots = [required_id(each, "snapshot_ids") for each in request.snapshot_ids]
        return await self._bridge.flights.run(
            "DeleteVolumeGroupSnapshot",
            f"group id {id_}",
            digest,
            lambda flight: self._delete(flight, id_, snapshots),
            seconds,
        )

    async def _delete(self, flight: Flight, id_: str, snapshots: Sequence[str]) -> Any:
        bridge = self._bridge
        found = await bridge.settled(lambda handle: self._look(handle, snapshots), id_)
        if found is not None:
            await self._require_members(found, snapshots)
            owners = {each.owner for each in found.snapshots}
            owner = next(iter(owners))
            if len(owners) != 1 or owner is None or owner.cluster_id != bridge.cluster_id:
                raise AlreadyExists(f"{id_} has snapshots without our marks: it is not deleted")
            bridge.flights.also(flight, _key(owner))
            request = DeleteGroupSnapshotRequest(
                context=bridge.context(),
                handle=found.handle,
                snapshots=tuple(each.handle for each in found.snapshots),
                owner=owner,
            )
            await bridge.finish(flight, request)
        return build("DeleteVolumeGroupSnapshotResponse")


def _key(owner: SnapshotOwnership) -> str:
    return f"group {owner.snapshot_uid}"


def _group(made: GroupSnapshot) -> Any:
    return build(
        "VolumeGroupSnapshot",
        group_snapshot_id=made.handle,
        snapshots=[shown(each, group=made.handle) for each in made.snapshots],
        creation_time=moment_of(*made.snapshots),
        ready_to_use=all(each.ready and not each.failed for each in made.snapshots),
    )
