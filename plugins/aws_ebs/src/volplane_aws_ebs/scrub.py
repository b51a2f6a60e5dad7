"""The hook `recycle`: whether a scrubber pod may have the volume. The pod gets it by a claim and empties it."""

from __future__ import annotations

from collections.abc import Callable

from volplane import NotFound, PodScrub, RecycleRequest, Unsupported, VolumeInUse
from volplane_aws_ebs import ownership_tags
from volplane_aws_ebs.ec2 import Ec2
from volplane_aws_ebs.resources import volume_id

__all__ = ["let_a_pod_scrub"]


def let_a_pod_scrub(ec2: Ec2, request: RecycleRequest, node_name: Callable[[str], str]) -> PodScrub:
    """Raises RetryLater, AwsError and the errors of the contract."""
    id_, identity = volume_id(request.volume), request.volume
    volume = ec2.volume(id_)
    if volume is None or volume.being_deleted:
        raise NotFound(
            f"volume {id_} of {identity.name} does not exist (any more): there is nothing to scrub",
            code="InvalidVolume.NotFound",
        )
    ownership_tags.refuse_foreign(id_, volume.tags, identity.owner)
    if identity.source.fields.get("fsType") == "ntfs":
        raise Unsupported(
            f"{id_} has the file system ntfs: scrubber pods run on Linux; set the reclaim policy to Retain or Delete"
        )
    if volume.attachments:
        where = ", ".join(f"{node_name(each.instance)} ({each.state})" for each in volume.attachments)
        raise VolumeInUse(f"{id_} cannot be scrubbed while it is attached to {where}", code="VolumeInUse")
    return PodScrub()
