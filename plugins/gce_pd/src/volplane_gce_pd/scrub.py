"""The hook `recycle`: whether a scrubber pod may have the disk. The pod gets it by a claim and empties it."""

from __future__ import annotations

from collections.abc import Callable

from volplane import NotFound, PodScrub, RecycleRequest, Unsupported, VolumeInUse
from volplane.cloud import LABELS
from volplane_gce_pd.compute import Compute
from volplane_gce_pd.ownership import FOREIGN_LABELS
from volplane_gce_pd.resources import disk_key

__all__ = ["let_a_pod_scrub"]


def let_a_pod_scrub(compute: Compute, request: RecycleRequest, node_name: Callable[[str], str]) -> PodScrub:
    """Raises RetryLater, GceError and the errors of the contract."""
    identity = request.volume
    key = disk_key(identity, compute.settings)
    disk = compute.disk(key)
    if disk is None or disk.state == "DELETING":
        raise NotFound(
            f"disk {key[1]} of {identity.name} does not exist (any more): there is nothing to scrub", code="notFound"
        )
    LABELS.refuse_foreign(disk.name, disk.labels, identity.owner, others=FOREIGN_LABELS)
    if identity.source.fields.get("fsType") == "ntfs":
        raise Unsupported(
            f"{disk.name} has the file system ntfs: scrubber pods run on Linux; set the reclaim policy to Retain or "
            "Delete"
        )
    if disk.users:
        where = ", ".join(node_name(name) for _, name in disk.users)
        raise VolumeInUse(
            f"{disk.name} cannot be scrubbed while it is attached to {where}", code="resourceInUseByAnotherResource"
        )
    return PodScrub()
