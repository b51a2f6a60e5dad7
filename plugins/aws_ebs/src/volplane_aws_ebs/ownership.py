"""Whose a volume is: list the tagged volumes, adopt one from another cluster, refuse calls of a former leader."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from volplane import (
    Absent,
    AdoptRequest,
    AssetPage,
    Done,
    InspectRequest,
    ListedAsset,
    ListRequest,
    Throttled,
    VolumeMode,
)
from volplane.cloud import GIB, TAGS, Fences, HookCall, RetryLater, csi_source
from volplane_aws_ebs import ownership_tags
from volplane_aws_ebs.api import Action
from volplane_aws_ebs.ec2 import Ec2
from volplane_aws_ebs.resources import Ec2Volume, existing, volume_id, volume_id_from

_PAGE_SIZE: Final = range(5, 501)
"""Entries that EC2 puts on a page; fewer than 5 it refuses."""


def page_size(wanted: int) -> int:
    """Return the number of entries to ask for. wanted: by the caller; 0: any number."""
    return min(max(wanted or _PAGE_SIZE[-1], _PAGE_SIZE[0]), _PAGE_SIZE[-1])


def list_page(ec2: Ec2, request: ListRequest) -> AssetPage:
    """Return one page of the region's volumes with ownership tags of any cluster, without those that are being deleted.

    Volumes without these tags are never listed, such as root volumes of instances. Those of the official driver are
    listed by a driver of its name. Raises AwsError.
    """
    token = {"NextToken": request.page} if request.page else {}
    official = [ownership_tags.OFFICIAL.volume] if request.context.driver == ownership_tags.OFFICIAL.name else []
    filters = [{"Name": "tag-key", "Values": [ownership_tags.CLUSTER, *official]}]
    most = page_size(request.max_entries)
    answer = ec2.read(Action.DESCRIBE_VOLUMES, Filters=filters, MaxResults=most, **token)
    volumes = [Ec2Volume.of(response) for response in answer.get("Volumes", ())]
    return AssetPage(
        assets=tuple(_listed(volume) for volume in volumes if not volume.being_deleted),
        next_page=answer.get("NextToken") or None,
    )


def _listed(volume: Ec2Volume) -> ListedAsset:
    owner = TAGS.owner(volume.tags, official=ownership_tags.OFFICIAL)
    return ListedAsset(
        handle=volume.id,
        name=owner.volume_name if owner is not None else volume.tags.get("Name", volume.id),
        capacity_bytes=volume.size * GIB,
        owner=owner,
        created_at=volume.created or None,
        attached_to=tuple(each.instance for each in volume.attachments if each.state != "detached"),
        changed_in=str(TAGS.term(volume.tags) or ""),
        type=volume.volume_type,
    )


def inspect(ec2: Ec2, request: InspectRequest) -> ListedAsset | Absent:
    """Return the volume with this id, by a call that begins now. Raises AwsError."""
    id_ = volume_id_from(request.handle)
    volume = ec2.batches.volumes.fetch_now(id_).value if id_ is not None else None
    if volume is None or volume.being_deleted:
        return Absent()
    condition = "EC2 could not make it (state error)" if volume.state == "error" else ""
    source = csi_source(ec2.settings, volume.id, VolumeMode.BLOCK, "")
    return replace(_listed(volume), source=source, condition=condition)


# --- adopt and fence --------------------------------------------------------------------------------------------


def adopt(ec2: Ec2, fences: Fences, request: AdoptRequest, call: HookCall) -> Done:
    """Replace the ownership tags of `request.former` by those of the new owner; the official driver's tags stay.

    Raises AwsError and the errors of the contract: AlreadyExists if the volume is neither owner's.
    """
    id_ = volume_id(request.volume)
    volume = existing(ec2.batches.volumes.fetch_now(id_).value, request.volume)
    tags = fences.marks_to_adopt(id_, volume.tags, request, official=ownership_tags.OFFICIAL)
    if not tags:
        return Done()
    try:
        _tag(ec2, id_, tags, call)
    except RetryLater as retry:
        # The hook `adopt` has no InProgress.
        raise Throttled(
            f"too many calls at once: {id_} is marked in {retry.seconds:.0f} s",
            retry_after=retry.seconds,
            nothing_done=True,
        ) from None
    fences.forget(id_)
    return Done()


def write_term(ec2: Ec2, fences: Fences, volume: Ec2Volume, call: HookCall) -> None:
    """Tag one of our volumes with this leader's term, unless it has it. Raises RetryLater, AwsError.

    It is written before the volume is attached or modified, so that other processes see it too. EC2 has no conditional
    writes: a call that starts between the read and the change is not refused. For DetachVolume the device name closes
    this gap.
    """
    tags = fences.mark_to_write(volume.tags, call.context)
    if tags:
        _tag(ec2, volume.id, tags, call)


def _tag(ec2: Ec2, id_: str, tags: Mapping[str, str], call: HookCall) -> None:
    wanted = [{"Key": key, "Value": value} for key, value in tags.items()]
    ec2.change(Action.CREATE_TAGS, id_, call, Resources=[id_], Tags=wanted)
    ec2.batches.volumes.invalidate(id_)
