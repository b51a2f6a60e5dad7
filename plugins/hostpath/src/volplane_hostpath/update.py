"""Update."""

from __future__ import annotations

from dataclasses import replace

from volplane import AdoptRequest, AlreadyExists, Context, Ownership, ResourceExhausted
from volplane_hostpath.capacity import human
from volplane_hostpath.dirfd import remove_entry, sync
from volplane_hostpath.index import Ledger
from volplane_hostpath.locks import TimeSlice
from volplane_hostpath.markers import VolumeMarker, marker_file
from volplane_hostpath.root import TMP, VOLUMES, Root

__all__ = ["adopted", "expanded"]


def expanded(root: Root, ledger: Ledger, marker: VolumeMarker, capacity_bytes: int, context: Context) -> VolumeMarker:
    """The marker with at least this promise. Needs the volume's lock; raises `ResourceExhausted`."""
    more = capacity_bytes - marker.capacity_bytes
    if more <= 0:
        return marker
    grown = replace(marker, capacity_bytes=capacity_bytes)
    ledger.stage(root, grown)
    with ledger.open(root, TimeSlice(context).left(), context.log):
        room = ledger.room(root)
        if more > room:
            remove_entry(marker_file(marker.name), root.directory(TMP))
            raise ResourceExhausted(
                f"root {root.path} has room for {human(room)}, {marker.name} asks for {human(more)} more: delete "
                "volumes, grow the file system or raise overcommit_percent",
                scope=root.path,
                nothing_done=True,
            )
        ledger.put(root, grown)
    sync(root.directory(VOLUMES))
    return grown


def adopted(root: Root, ledger: Ledger, marker: VolumeMarker, request: AdoptRequest) -> None:
    """Put the marks of `request.volume` on the volume, if it carries `former`. Needs the volume's lock.

    Raises `AlreadyExists` for a volume that is neither's.
    """
    owner = request.volume.owner
    if owner is None or marker.belongs_to(owner):
        return
    if not marker.belongs_to(request.former):
        raise AlreadyExists(
            f"{root.path}/{marker.path} belongs to {_shown(marker.owner)}, not to {_shown(request.former)}: it is not "
            "touched"
        )
    context = request.context
    # The generation is the asset's own: its name in tmp and trash, and its handle, hang on it.
    taken = replace(marker, owner=replace(owner, generation=marker.owner.generation))
    ledger.stage(root, taken)
    with ledger.open(root, TimeSlice(context).left(), context.log):
        ledger.put(root, taken)
    sync(root.directory(VOLUMES))


def _shown(owner: Ownership) -> str:
    return f"claim {owner.claim_uid} of cluster {owner.cluster_id!r}"
