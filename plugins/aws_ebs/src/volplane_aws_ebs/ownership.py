"""Who owns a volume: list what carries our tags, take a volume over, refuse calls of a former leader."""

from __future__ import annotations

from collections.abc import Callable

from volplane import (
    AdoptRequest,
    AlreadyExists,
    AssetPage,
    Done,
    ListedAsset,
    ListRequest,
    NotFound,
    Throttled,
    Unavailable,
    Unsupported,
)
from volplane_aws_ebs import ownership_tags
from volplane_aws_ebs.api import Call
from volplane_aws_ebs.ec2 import Ec2
from volplane_aws_ebs.hook_calls import Later, Memory, Turn, fence_of
from volplane_aws_ebs.resources import GIB, VolumeSeen, volume_of

__all__ = ["Fencing", "adopt", "list_page"]

_PAGE = 500


def list_page(ec2: Ec2, request: ListRequest, node_name: Callable[[str], str]) -> AssetPage:
    """One page of the region's volumes with a mark of any cluster; those that are going are not among them.

    Volumes without marks (root volumes of instances, other people's) are out of reach. Raises AwsRefusal.
    """
    token = {"NextToken": request.page} if request.page else {}
    filters = [{"Name": "tag-key", "Values": [ownership_tags.CLUSTER]}]
    answer = ec2.read(Call.DESCRIBE_VOLUMES, Filters=filters, MaxResults=_PAGE, **token)
    seen = [VolumeSeen.of(shown) for shown in answer.get("Volumes", ())]
    return AssetPage(
        assets=tuple(_listed(volume, node_name) for volume in seen if not volume.going),
        next_page=answer.get("NextToken") or None,
    )


def _listed(seen: VolumeSeen, node_name: Callable[[str], str]) -> ListedAsset:
    owner = ownership_tags.owner_of(seen.tags)
    return ListedAsset(
        handle=seen.id,
        name=owner.volume_name if owner is not None else seen.tags.get("Name", seen.id),
        capacity_bytes=seen.size * GIB,
        owner=owner,
        created_at=seen.created or None,
        attached_to=tuple(node_name(each.instance) for each in seen.attachments if each.state != "detached"),
    )


def adopt(ec2: Ec2, request: AdoptRequest, turn: Turn) -> Done:
    """Replace the former owner's tags. Raises AwsRefusal and the errors of the contract."""
    id_, owner = volume_of(request.volume), request.volume.owner
    if owner is None:
        raise Unsupported(f"{request.volume.name} was not made by this driver: it carries no marks")
    seen = ec2.lookups.volumes.ask_now(id_).value
    if seen is None or seen.going:
        raise NotFound(
            f"volume {id_} of {request.volume.name} does not exist (any more)", code="InvalidVolume.NotFound"
        )
    found = ownership_tags.owner_of(seen.tags)
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
    tags = [{"Key": key, "Value": value} for key, value in ownership_tags.owner_tags(owner).items()]
    try:
        ec2.change(Call.CREATE_TAGS, id_, turn, Resources=[id_], Tags=tags)
    except Later as later:
        raise Throttled(
            f"too many calls at once: {id_} is marked in {later.seconds:.0f} s",
            retry_after=later.seconds,
            nothing_done=True,
        ) from None
    ec2.lookups.volumes.touched(id_)
    return Done()


class Fencing:
    """Compares fences per volume. Safe for threads."""

    def __init__(self, ec2: Ec2) -> None:
        self._ec2 = ec2
        self._highest: Memory[str, int] = Memory()

    def refuse_former(self, seen: VolumeSeen, turn: Turn) -> None:
        """Raise Unavailable if a newer leader has been at work on this volume."""
        fence = fence_of(turn.context)
        if fence is None:
            return
        written = seen.tags.get(ownership_tags.FENCE, "")
        highest = max(self._highest.get(seen.id) or 0, int(written) if written.isdigit() else 0, fence)
        self._highest.put(seen.id, highest)
        if highest > fence:
            raise Unavailable(
                f"{seen.id} is in the hands of leader {highest}; this call belongs to the former leader {fence} and does nothing"
            )

    def write(self, seen: VolumeSeen, turn: Turn) -> None:
        """Note the leader on one of our volumes, unless it stands there. Raises Later, AwsRefusal."""
        fence = fence_of(turn.context)
        if (
            fence is None
            or ownership_tags.CLUSTER not in seen.tags
            or seen.tags.get(ownership_tags.FENCE) == str(fence)
        ):
            return
        tags = [{"Key": ownership_tags.FENCE, "Value": str(fence)}]
        self._ec2.change(Call.CREATE_TAGS, seen.id, turn, Resources=[seen.id], Tags=tags)
        self._ec2.lookups.volumes.touched(seen.id)
