"""The hooks `expand` and `adopt`: the marker of the volume changes, and the limit where it has one."""

from __future__ import annotations

from dataclasses import replace

from volplane import AdoptRequest, AlreadyExists, Context, Ownership, ResourceExhausted
from volplane.directory import human
from volplane.directory.dirfd import remove_entry
from volplane_hostpath.disk_waits import DiskWaits
from volplane_hostpath.index import VolumeIndex
from volplane_hostpath.locks import Deadline
from volplane_hostpath.markers import VolumeMarker, marker_file
from volplane_hostpath.project_quotas import limit_for, unsupported
from volplane_hostpath.root import TMP, VOLUMES, Root


def expand_marker(
    root: Root, index: VolumeIndex, waits: DiskWaits, marker: VolumeMarker, *, capacity_bytes: int, context: Context
) -> VolumeMarker:
    """Promise at least `capacity_bytes`, and raise the limit to that; returns the marker. Needs the volume's lock.

    Raises `ResourceExhausted`.
    """
    grown = _promised(root, index, waits, marker, capacity_bytes=capacity_bytes, context=context)
    if grown.project is not None:
        try:
            # After an earlier call that ended in between, too.
            root.quotas.set_limit(root.fd, grown.project, limit_for(grown.capacity_bytes))
        except OSError as error:
            raise unsupported(error, root.path) from error
    return grown


def _promised(
    root: Root, index: VolumeIndex, waits: DiskWaits, marker: VolumeMarker, *, capacity_bytes: int, context: Context
) -> VolumeMarker:
    more = capacity_bytes - marker.capacity_bytes
    if more <= 0:
        return marker
    grown = replace(marker, capacity_bytes=capacity_bytes)
    index.stage(root, grown, replaces=True)
    with index.open(root, Deadline(context).remaining(), context.log):
        room = index.room(root)
        if more > room:
            remove_entry(marker_file(marker.name), root.directory(TMP))
            raise ResourceExhausted(
                f"root {root.path} has room for {human(room)}, {marker.name} asks for {human(more)} more: delete "
                "volumes, grow the file system or raise overcommit_percent",
                scope=root.path,
                nothing_done=True,
            )
        index.put(root, grown)
    waits.wait(root, [(root.directory(VOLUMES), "")])
    return grown


def adopt_marker(root: Root, index: VolumeIndex, waits: DiskWaits, marker: VolumeMarker, request: AdoptRequest) -> None:
    """Write the owner of `request.volume` into the marker, in place of `request.former`. Needs the volume's lock.

    Raises `AlreadyExists` if the marker names neither owner.
    """
    owner = request.volume.owner
    if owner is None or marker.belongs_to(owner):
        return
    if not marker.belongs_to(request.former):
        raise AlreadyExists(
            f"{root.path}/{marker.path} belongs to {_describe(marker.owner)}, not to {_describe(request.former)}: it "
            "is not touched"
        )
    context = request.context
    # The generation stays: the handle and the names in tmp and trash contain it.
    updated = replace(marker, owner=replace(owner, generation=marker.owner.generation))
    index.stage(root, updated, replaces=True)
    with index.open(root, Deadline(context).remaining(), context.log):
        index.put(root, updated)
    waits.wait(root, [(root.directory(VOLUMES), "")])


def _describe(owner: Ownership) -> str:
    return f"claim {owner.claim_uid} of cluster {owner.cluster_id!r}"
