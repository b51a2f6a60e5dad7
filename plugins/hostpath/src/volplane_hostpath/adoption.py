"""Taking over a volume from another cluster, after a restore: only the marker changes."""

from __future__ import annotations

from dataclasses import replace

from volplane import AdoptRequest, AlreadyExists, Ownership
from volplane_hostpath.directories import sync
from volplane_hostpath.ledger import Ledger
from volplane_hostpath.locks import TimeSlice
from volplane_hostpath.markers import VolumeMarker
from volplane_hostpath.roots import VOLUMES, Root

__all__ = ["adopted"]


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
