"""Listing what carries volplane's marks, for the leak check."""

from __future__ import annotations

from collections.abc import Callable

from volplane import AssetPage, ListedAsset, ListRequest
from volplane_aws_ebs import marks
from volplane_aws_ebs.calls import Call
from volplane_aws_ebs.ec2 import Ec2
from volplane_aws_ebs.seen import GIB, VolumeSeen

__all__ = ["list_page"]

_PAGE = 500


def list_page(ec2: Ec2, request: ListRequest, node_name: Callable[[str], str]) -> AssetPage:
    """One page of the region's volumes with a mark of any cluster; those that are going are not among them.

    Volumes without marks (root volumes of instances, other people's) are out of reach. Raises AwsRefusal.
    """
    token = {"NextToken": request.page} if request.page else {}
    filters = [{"Name": "tag-key", "Values": [marks.CLUSTER]}]
    answer = ec2.read(Call.DESCRIBE_VOLUMES, Filters=filters, MaxResults=_PAGE, **token)
    seen = [VolumeSeen.of(shown) for shown in answer.get("Volumes", ())]
    return AssetPage(
        assets=tuple(_listed(volume, node_name) for volume in seen if not volume.going),
        next_page=answer.get("NextToken") or None,
    )


def _listed(seen: VolumeSeen, node_name: Callable[[str], str]) -> ListedAsset:
    owner = marks.owner_of(seen.tags)
    return ListedAsset(
        handle=seen.id,
        name=owner.volume_name if owner is not None else seen.tags.get("Name", seen.id),
        capacity_bytes=seen.size * GIB,
        owner=owner,
        created_at=seen.created or None,
        attached_to=tuple(node_name(each.instance) for each in seen.attachments if each.state != "detached"),
    )
