"""Whose a volume is: list the tagged volumes, adopt one from another cluster, refuse calls of a former leader."""

from __future__ import annotations

from volplane import (
    AdoptRequest,
    AlreadyExists,
    AssetPage,
    Done,
    ListedAsset,
    ListRequest,
    NotFound,
    Throttled,
    Unsupported,
)
from volplane.cloud import TAGS, Fences, HookCall, RetryLater
from volplane_aws_ebs import ownership_tags
from volplane_aws_ebs.api import Action
from volplane_aws_ebs.ec2 import Ec2
from volplane_aws_ebs.resources import GIB, Ec2Volume, volume_id

__all__ = ["Fencing", "adopt", "list_page"]

_PAGE_SIZE = 500


# --- list -------------------------------------------------------------------------------------------------------


def list_page(ec2: Ec2, request: ListRequest) -> AssetPage:
    """One page of the region's volumes with ownership tags of any cluster, without those that are being deleted.

    Volumes without these tags are never listed, such as root volumes of instances. Raises AwsError.
    """
    token = {"NextToken": request.page} if request.page else {}
    filters = [{"Name": "tag-key", "Values": [ownership_tags.CLUSTER]}]
    answer = ec2.read(Action.DESCRIBE_VOLUMES, Filters=filters, MaxResults=_PAGE_SIZE, **token)
    volumes = [Ec2Volume.of(response) for response in answer.get("Volumes", ())]
    return AssetPage(
        assets=tuple(_listed(volume) for volume in volumes if not volume.being_deleted),
        next_page=answer.get("NextToken") or None,
    )


def _listed(volume: Ec2Volume) -> ListedAsset:
    owner = ownership_tags.owner_of(volume.tags)
    return ListedAsset(
        handle=volume.id,
        name=owner.volume_name if owner is not None else volume.tags.get("Name", volume.id),
        capacity_bytes=volume.size * GIB,
        owner=owner,
        created_at=volume.created or None,
        attached_to=tuple(each.instance for each in volume.attachments if each.state != "detached"),
    )


# --- adopt ------------------------------------------------------------------------------------------------------


def adopt(ec2: Ec2, fencing: Fencing, request: AdoptRequest, call: HookCall) -> Done:
    """Replace the ownership tags of `request.former` by those of the new owner.

    The fence number becomes that of the new owner's leader: numbers of two clusters cannot be compared. Raises AwsError
    and the errors of the contract: AlreadyExists if the volume is neither owner's.
    """
    id_, owner = volume_id(request.volume), request.volume.owner
    if owner is None:
        raise Unsupported(f"{request.volume.name} was not made by this driver: it carries no marks")
    volume = ec2.batches.volumes.fetch_now(id_).value
    if volume is None or volume.being_deleted:
        raise NotFound(
            f"volume {id_} of {request.volume.name} does not exist (any more)", code="InvalidVolume.NotFound"
        )
    found = ownership_tags.owner_of(volume.tags)
    if found == owner:
        return Done()
    if found != request.former:
        whose = (
            f"{found.volume_name} of cluster {found.cluster_id!r}"
            if found is not None
            else "nobody that volplane knows"
        )
        raise AlreadyExists(
            f"{id_} belongs to {whose}, not to cluster {request.former.cluster_id!r}: it is not touched"
        )
    if request.former.cluster_id == owner.cluster_id:
        fencing.refuse_former_leader(volume, call)
    new = {**TAGS.of(owner), **TAGS.of_term(call.context)}
    tags = [{"Key": key, "Value": value} for key, value in new.items()]
    try:
        ec2.change(Action.CREATE_TAGS, id_, call, Resources=[id_], Tags=tags)
    except RetryLater as retry:
        # The hook `adopt` has no InProgress.
        raise Throttled(
            f"too many calls at once: {id_} is marked in {retry.seconds:.0f} s",
            retry_after=retry.seconds,
            nothing_done=True,
        ) from None
    fencing.forget(id_)
    ec2.batches.volumes.invalidate(id_)
    return Done()


# --- fence ------------------------------------------------------------------------------------------------------


class Fencing:
    """Refuses late calls of a former leader by comparing the terms of calls per volume. Safe for threads.

    The newest term is written to the volume as a tag before it is attached or modified, so that other processes see
    it too.
    EC2 has no conditional writes: a call that starts between the read and the change is not refused. For DetachVolume
    the device name closes this gap.
    """

    def __init__(self, ec2: Ec2) -> None:
        self._ec2 = ec2
        self._fences = Fences(TAGS)

    def refuse_former_leader(self, volume: Ec2Volume, call: HookCall) -> None:
        """Raise Unavailable if a newer leader has changed this volume."""
        self._fences.refuse_former_leader(volume.id, volume.tags, call.context)

    def forget(self, volume: str) -> None:
        """Drop what this process knows of the volume's leaders: the tag of the volume has a new term."""
        self._fences.forget(volume)

    def write(self, volume: Ec2Volume, call: HookCall) -> None:
        """Tag one of our volumes with this leader's number, unless it has it. Raises RetryLater, AwsError."""
        mark = self._fences.mark_to_write(volume.tags, call.context)
        if not mark:
            return
        tags = [{"Key": key, "Value": value} for key, value in mark.items()]
        self._ec2.change(Action.CREATE_TAGS, volume.id, call, Resources=[volume.id], Tags=tags)
        self._ec2.batches.volumes.invalidate(volume.id)
