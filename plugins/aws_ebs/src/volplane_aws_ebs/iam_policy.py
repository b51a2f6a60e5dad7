"""The IAM policy that the driver needs: its calls, on the volumes and snapshots that carry the tag of its cluster.

`python -m volplane_aws_ebs.iam_policy CLUSTER_ID` prints it. A cluster's id is the uid of its namespace kube-system, or
`clusterId` of its configuration.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from volplane_aws_ebs import ownership_tags
from volplane_aws_ebs.api import Action

PARTITIONS = ("aws", "aws-cn", "aws-us-gov", "aws-iso", "aws-iso-b", "aws-iso-e", "aws-iso-f", "aws-eusc")
"""Source: AWS General Reference, "Amazon Resource Names"."""
PLACEHOLDER = "CLUSTER_ID"
"""In the policy of the documentation."""
_RESERVED = ("volplane.dev/", "ebs.csi.aws.com/", "CSIVolume", "kubernetes.io/created-for/", "aws:")
_OF_SNAPSHOTS = (Action.DELETE_SNAPSHOT, Action.ENABLE_FAST_SNAPSHOT_RESTORES, Action.LOCK_SNAPSHOT)
_NOT_OF_THE_ROLE = (Action.ASSUME_ROLE,)
"""Called with the credentials of the default chain, not with the role of the driver."""


def iam_policy(cluster: str, partition: str = "aws", *, former: Sequence[str] = ()) -> dict[str, Any]:
    """Return the policy document for the driver of one cluster, in one partition of AWS.

    Resources without this cluster's tag can be read but not changed, those of other clusters included. former: ids of
    clusters whose volumes `volplane adopt` takes over, or the name of the official driver; their tags may be replaced
    by this cluster's, and those of the official driver's volumes back. Static volumes
    carry no tag of ours: add one of your own to the conditions of ChangeMarkedVolumes.
    """
    volume, snapshot, instance = (f"arn:{partition}:ec2:*:*:{kind}/*" for kind in ("volume", "snapshot", "instance"))
    snapshots = [snapshot, f"arn:{partition}:ec2:*::snapshot/*"]
    tagged = {"StringEquals": {f"aws:ResourceTag/{ownership_tags.CLUSTER}": cluster}}
    tagging = {"StringEquals": {f"aws:RequestTag/{ownership_tags.CLUSTER}": cluster}}
    reads = [
        action
        for action in Action
        if not action.mutates and action not in (*_NOT_OF_THE_ROLE, Action.DECODE_AUTHORIZATION_MESSAGE)
    ]
    return {
        "Version": "2012-10-17",
        "Statement": [
            _statement("Look", reads, ["*"]),
            _statement("MakeMarkedVolumes", [Action.CREATE_VOLUME, Action.COPY_VOLUMES], [volume], tagging),
            _statement("CopyMarkedVolumes", [Action.COPY_VOLUMES], [volume], tagged),
            _statement("MakeVolumesFromSnapshots", [Action.CREATE_VOLUME], snapshots),
            _statement(
                "ChangeMarkedVolumes",
                [Action.DELETE_VOLUME, Action.MODIFY_VOLUME, Action.ATTACH_VOLUME, Action.DETACH_VOLUME],
                [volume],
                tagged,
            ),
            _statement("AttachToInstances", [Action.ATTACH_VOLUME, Action.DETACH_VOLUME], [instance]),
            _statement(
                "MakeSnapshotsOfMarkedVolumes", [Action.CREATE_SNAPSHOT, Action.CREATE_SNAPSHOTS], [volume], tagged
            ),
            _statement("MakeMarkedSnapshots", [Action.CREATE_SNAPSHOT, Action.CREATE_SNAPSHOTS], snapshots, tagging),
            _statement("MakeSnapshotsOfInstances", [Action.CREATE_SNAPSHOTS], [instance]),
            _statement("ChangeMarkedSnapshots", _OF_SNAPSHOTS, snapshots, tagged),
            _statement(
                "MarkWhatIsMade",
                [Action.CREATE_TAGS],
                [volume, *snapshots],
                {
                    "StringEquals": {
                        "ec2:CreateAction": [
                            str(Action.COPY_VOLUMES),
                            str(Action.CREATE_VOLUME),
                            str(Action.CREATE_SNAPSHOT),
                            str(Action.CREATE_SNAPSHOTS),
                        ]
                    }
                },
            ),
            _statement(
                "TagForClasses", [Action.CREATE_TAGS, Action.DELETE_TAGS], [volume], _other_tags_of_marked(cluster)
            ),
            _statement("ChangeMarks", [Action.CREATE_TAGS], [volume], _own_tags_of_marked(cluster, former)),
            *_taking_over(cluster, volume, snapshots, former),
            {
                "Sid": "ReadWhyNot",
                "Effect": "Allow",
                "Action": [f"sts:{Action.DECODE_AUTHORIZATION_MESSAGE}"],
                "Resource": ["*"],
            },
        ],
    }


def _own_tags_of_marked(cluster: str, former: Sequence[str]) -> dict[str, Any]:
    """Allow to write our own tags on our volumes after creation: the fence, and the owner at adoption."""
    return {
        "StringEquals": {f"aws:ResourceTag/{ownership_tags.CLUSTER}": [cluster, *former] if former else cluster},
        "StringEqualsIfExists": {f"aws:RequestTag/{ownership_tags.CLUSTER}": cluster},
        "ForAllValues:StringEquals": {"aws:TagKeys": sorted(ownership_tags.WRITABLE_LATER)},
    }


def _taking_over(cluster: str, volume: str, snapshots: list[str], former: Sequence[str]) -> list[dict[str, Any]]:
    """Allow to mark volumes of the official driver that nobody has marked, and to give marked ones back; and to change
    its snapshots, which stay as they are.
    """
    official = ownership_tags.OFFICIAL.name
    if official not in former:
        return []
    keys = {"ForAllValues:StringEquals": {"aws:TagKeys": sorted(ownership_tags.WRITABLE_LATER)}}
    made = {f"aws:ResourceTag/{ownership_tags.EBS_CSI_CLUSTER}": "true"}
    owner = f"aws:RequestTag/{ownership_tags.CLUSTER}"
    unmarked = {"Null": {f"aws:ResourceTag/{ownership_tags.CLUSTER}": "true"}}
    ours = f"aws:ResourceTag/{ownership_tags.CLUSTER}"
    tag = [Action.CREATE_TAGS]
    return [
        _statement("TakeOver", tag, [volume], {"StringEquals": {**made, owner: cluster}, **unmarked, **keys}),
        _statement("ChangeItsSnapshots", _OF_SNAPSHOTS, snapshots, {"StringEquals": made, **unmarked}),
        _statement("GiveBack", tag, [volume], {"StringEquals": {ours: cluster, owner: official}, **keys}),
    ]


def _other_tags_of_marked(cluster: str) -> dict[str, Any]:
    """Allow what a VolumeAttributesClass does: change tags of our volumes, but not those of their owner."""
    return {
        "StringEquals": {f"aws:ResourceTag/{ownership_tags.CLUSTER}": cluster},
        "Null": {"aws:TagKeys": "false"},  # DeleteTags without keys removes every tag.
        "ForAllValues:StringNotLike": {"aws:TagKeys": [f"{prefix}*" for prefix in _RESERVED]},
    }


def _statement(
    sid: str, actions: Iterable[Action], resources: list[str], condition: dict[str, Any] | None = None
) -> dict[str, Any]:
    statement: dict[str, Any] = {
        "Sid": sid,
        "Effect": "Allow",
        "Action": [f"ec2:{action}" for action in actions],
        "Resource": resources,
    }
    return {**statement, "Condition": condition} if condition is not None else statement


def _main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m volplane_aws_ebs.iam_policy", description="Print the IAM policy for the driver of a cluster."
    )
    parser.add_argument("cluster", help="its id: uid of namespace kube-system, or clusterId of the configuration")
    parser.add_argument("--partition", choices=PARTITIONS, default="aws", help="default aws")
    parser.add_argument(
        "--former",
        action="append",
        default=[],
        metavar="ID",
        help="whose volumes are to be adopted: a cluster, or ebs.csi.aws.com",
    )
    given = parser.parse_args()
    sys.stdout.write(json.dumps(iam_policy(given.cluster, given.partition, former=given.former), indent=2) + "\n")


if __name__ == "__main__":
    _main()
