"""Taking over a volume from the cluster that this one was restored from."""

from __future__ import annotations

from volplane import AdoptRequest, AlreadyExists, Done, NotFound, Throttled, Unsupported
from volplane_aws_ebs import marks
from volplane_aws_ebs.assets import volume_of
from volplane_aws_ebs.calls import Call
from volplane_aws_ebs.ec2 import Ec2
from volplane_aws_ebs.turns import Later, Turn

__all__ = ["adopt"]


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
    found = marks.owner_of(seen.tags)
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
    tags = [{"Key": key, "Value": value} for key, value in marks.owner_tags(owner).items()]
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
