"""Tags that name the owner of a volume or snapshot: written by the call that creates it, compared before every change.

Nothing here calls EC2.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from volplane import ClaimIdentity, Ownership, SnapshotIdentity, SnapshotOwnership
from volplane.cloud import TAGS, OfficialDriver

CLUSTER, CLAIM, VOLUME, GENERATION = TAGS.cluster, TAGS.claim, TAGS.volume, TAGS.generation
SPEC, FENCE = TAGS.demand, TAGS.fence
IOPS_PER_GIB = "ebs.csi.aws.com/IOPSPerGb"
RAISE_ON_MODIFY = "ebs.csi.aws.com/AllowAutoIOPSIncreaseOnModify"
"""The official driver's own keys, so that volumes can move between it and this one."""
CLAIM_NAME = "kubernetes.io/created-for/pvc/name"
CLAIM_NAMESPACE = "kubernetes.io/created-for/pvc/namespace"
SNAPSHOT = "volplane.dev/snapshot"
WRITABLE_LATER = frozenset({CLUSTER, CLAIM, VOLUME, GENERATION, FENCE, IOPS_PER_GIB, RAISE_ON_MODIFY})
"""Tags of ours that may be written after a volume was created: by adoption, fencing, or a change of iopsPerGB."""
EBS_CSI_CLUSTER = "ebs.csi.aws.com/cluster"
"""The tag by which the official driver's IAM policy lets its controller attach a volume."""
OFFICIAL = OfficialDriver(name="ebs.csi.aws.com", volume="CSIVolumeName", snapshot="CSIVolumeSnapshotName")
"""Its tag has the name of the volume in every version, also that of one made from a snapshot."""
SNAPSHOT_NAME = "kubernetes.io/created-for/volumesnapshot/name"
SNAPSHOT_NAMESPACE = "kubernetes.io/created-for/volumesnapshot/namespace"
RESERVED_PREFIXES = ("volplane.dev/", "aws:", "ebs.csi.aws.com/", "csivolume", "kubernetes.io/created-for/")
RESERVED_IN_CLASSES = (*RESERVED_PREFIXES, "kubernetes.io")
"""As for the official driver. Operators may write kubernetes.io/cluster/NAME, which it writes by an option."""
_LONGEST_VALUE = 256
MOST_TAGS = 50
"""Tags that a resource can have (Amazon EC2 User Guide, "Tag your Amazon EC2 resources")."""
OWN_TAGS = 13
"""Tags of a volume that the driver writes at most: those of `volume_tags`, IOPS_PER_GIB and RAISE_ON_MODIFY."""


def client_token(owner: Ownership, attempt: int) -> str:
    """Return the ClientToken of CreateVolume, 64 characters, which is the same in every process.

    attempt: how many tokens of this generation were used up. EC2 refuses a token whose volume was deleted.
    """
    parts = (owner.cluster_id, owner.claim_uid, owner.volume_name, str(owner.generation), str(attempt))
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def volume_tags(owner: Ownership, claim: ClaimIdentity, *, spec: str) -> dict[str, str]:
    """Return the tags of a new volume. spec: digest of what was asked for."""
    return {
        **TAGS.of(owner),
        SPEC: spec,
        EBS_CSI_CLUSTER: "true",
        "kubernetes.io/created-for/pv/name": owner.volume_name,
        CLAIM_NAME: claim.name[:_LONGEST_VALUE],
        CLAIM_NAMESPACE: claim.namespace[:_LONGEST_VALUE],
    }


def snapshot_tags(owner: SnapshotOwnership, name: str, made_for: SnapshotIdentity) -> dict[str, str]:
    """Return the tags of a new snapshot. name: by which it is found again. made_for: what people read."""
    return {
        **TAGS.of_snapshot(owner),
        SNAPSHOT: name,
        EBS_CSI_CLUSTER: "true",
        SNAPSHOT_NAME: made_for.name[:_LONGEST_VALUE],
        SNAPSHOT_NAMESPACE: made_for.namespace[:_LONGEST_VALUE],
    }


def tag_specifications(resource_type: str, tags: Mapping[str, str]) -> list[dict[str, object]]:
    """Return the TagSpecifications of a creating call: the resource has these tags from its first moment."""
    return [{"ResourceType": resource_type, "Tags": [{"Key": key, "Value": value} for key, value in tags.items()]}]


def owner_of(tags: Mapping[str, str]) -> Ownership | None:
    """Return the owner that the tags name; None if a tag is missing or cannot be read."""
    return TAGS.owner(tags)


def recorded_spec(tags: Mapping[str, str]) -> str:
    """Return the digest of the spec that the volume was created for, "" if there is no such tag."""
    return TAGS.recorded_demand(tags)


def refuse_foreign(handle: str, tags: Mapping[str, str], expected: Ownership | None) -> None:
    """Raise AlreadyExists unless the tags name `expected`. None = a static volume: raise if they name any owner.

    The generation is not compared.
    """
    TAGS.refuse_foreign(handle, tags, expected, others=(OFFICIAL.volume,))
