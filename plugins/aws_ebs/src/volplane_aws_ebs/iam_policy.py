"""The IAM policy that the driver needs: no more than its calls, on no more than what it made.

`python -m volplane_aws_ebs.iam_policy` prints it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from typing import Any

from volplane_aws_ebs import ownership_tags
from volplane_aws_ebs.api import Call

__all__ = ["iam_policy"]

_VOLUME = "arn:aws:ec2:*:*:volume/*"
_SNAPSHOT = "arn:aws:ec2:*:*:snapshot/*"
_SNAPSHOT_SHARED = "arn:aws:ec2:*::snapshot/*"
_INSTANCE = "arn:aws:ec2:*:*:instance/*"
_ASKED = {"StringLike": {f"aws:RequestTag/{ownership_tags.CLUSTER}": "*"}}
_MARKED = {"StringLike": {f"aws:ResourceTag/{ownership_tags.CLUSTER}": "*"}}
_OUTSIDE = (Call.ASSUME_ROLE,)
"""Belongs to the credentials of the default chain, not to the role that the driver works in."""


def iam_policy() -> dict[str, Any]:
    """The policy document. What does not carry volplane's mark can be looked at, and no more.

    For static volumes, which carry none, the conditions of ChangeMarkedVolumes must be widened by a tag of your own.
    """
    looks = [call for call in Call if not call.mutates and call not in (*_OUTSIDE, Call.DECODE_AUTHORIZATION_MESSAGE)]
    return {
        "Version": "2012-10-17",
        "Statement": [
            _statement("Look", looks, ["*"]),
            _statement("MakeMarkedVolumes", [Call.CREATE_VOLUME], [_VOLUME], _ASKED),
            _statement("MakeVolumesFromSnapshots", [Call.CREATE_VOLUME], [_SNAPSHOT, _SNAPSHOT_SHARED]),
            _statement(
                "ChangeMarkedVolumes",
                [Call.DELETE_VOLUME, Call.MODIFY_VOLUME, Call.ATTACH_VOLUME, Call.DETACH_VOLUME],
                [_VOLUME],
                _MARKED,
            ),
            _statement("AttachToInstances", [Call.ATTACH_VOLUME, Call.DETACH_VOLUME], [_INSTANCE]),
            _statement("MakeSnapshotsOfMarkedVolumes", [Call.CREATE_SNAPSHOT], [_VOLUME], _MARKED),
            _statement("MakeMarkedSnapshots", [Call.CREATE_SNAPSHOT], [_SNAPSHOT, _SNAPSHOT_SHARED], _ASKED),
            _statement("DeleteMarkedSnapshots", [Call.DELETE_SNAPSHOT], [_SNAPSHOT, _SNAPSHOT_SHARED], _MARKED),
            _statement(
                "MarkWhatIsMade",
                [Call.CREATE_TAGS],
                [_VOLUME, _SNAPSHOT, _SNAPSHOT_SHARED],
                {"StringEquals": {"ec2:CreateAction": [str(Call.CREATE_VOLUME), str(Call.CREATE_SNAPSHOT)]}},
            ),
            _statement("ChangeMarks", [Call.CREATE_TAGS], [_VOLUME], _own_tags_of_marked()),
            {
                "Sid": "ReadWhyNot",
                "Effect": "Allow",
                "Action": [f"sts:{Call.DECODE_AUTHORIZATION_MESSAGE}"],
                "Resource": ["*"],
            },
        ],
    }


def _own_tags_of_marked() -> dict[str, Any]:
    """Later only our own tags are written, on what is marked: the fence, and the owner when a volume is adopted."""
    return {**_MARKED, "ForAllValues:StringEquals": {"aws:TagKeys": sorted(ownership_tags.LATER)}}


def _statement(
    sid: str, calls: Iterable[Call], resources: list[str], condition: dict[str, Any] | None = None
) -> dict[str, Any]:
    statement: dict[str, Any] = {
        "Sid": sid,
        "Effect": "Allow",
        "Action": [f"ec2:{call}" for call in calls],
        "Resource": resources,
    }
    return {**statement, "Condition": condition} if condition is not None else statement


if __name__ == "__main__":
    sys.stdout.write(json.dumps(iam_policy(), indent=2) + "\n")
