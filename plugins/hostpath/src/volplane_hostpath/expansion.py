"""Raising a promise. Sizes are not enforced, so nothing but the marker changes."""

from __future__ import annotations

from dataclasses import replace

from volplane import Context, ResourceExhausted
from volplane_hostpath.capacity import human
from volplane_hostpath.directories import remove_entry, sync
from volplane_hostpath.ledger import Ledger
from volplane_hostpath.locks import TimeSlice
from volplane_hostpath.markers import VolumeMarker, marker_file
from volplane_hostpath.roots import TMP, VOLUMES, Root

__all__ = ["expanded"]


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
