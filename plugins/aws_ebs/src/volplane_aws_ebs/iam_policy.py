"""The IAM policy that the driver needs: its calls, on the volumes and snapshots that carry its tags.

`python -m volplane_aws_ebs.iam_policy` prints it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from typing import Any

from volplane_aws_ebs import ownership_tags
from volplane_aws_ebs.api import Action

__all__ = ["iam_policy"]

_VOLUME = "arn:aws:ec2:*:*:volume/*"
_SNAPSHOT = "arn:aws:ec2:*:*:snapshot/*"
_SNAPSHOT_SHARED = "arn:aws:ec2:*::snapshot/*"
_INSTANCE = "arn:aws:ec2:*:*:instance/*"
_WITH_TAG_REQUESTED = {"StringLike": {f"aws:RequestTag/{ownership_tags.CLUSTER}": "*"}}
_WITH_TAG = {"StringLike": {f"aws:ResourceTag/{ownership_tags.CLUSTER}": "*"}}
_NOT_OF_THE_ROLE = (Action.ASSUME_ROLE,)
"""Called with the credentials of the default chain, not with the role of the driver."""


def iam_policy() -> dict[str, Any]:
    """The policy document. Resources without volplane's tags can be read but not changed.

    Static volumes carry none of them: add a tag of your own to the conditions of ChangeMarkedVolumes.
    """
    reads = [
        action
        for action in Action
        if not action.mutates and action not in (*_NOT_OF_THE_ROLE, Action.DECODE_AUTHORIZATION_MESSAGE)
    ]
    return {
        "Version": "2012-10-17",
        "Statement": [
            _statement("Look", reads, ["*"]),
            _statement("MakeMarkedVolumes", [Action.CREATE_VOLUME], [_VOLUME], _WITH_TAG_REQUESTED),
            _statement("MakeVolumesFromSnapshots", [Action.CREATE_VOLUME], [_SNAPSHOT, _SNAPSHOT_SHARED]),
            _statement(
                "ChangeMarkedVolumes",
                [Action.DELETE_VOLUME, Action.MODIFY_VOLUME, Action.ATTACH_VOLUME, Action.DETACH_VOLUME],
                [_VOLUME],
                _WITH_TAG,
            ),
            _statement("AttachToInstances", [Action.ATTACH_VOLUME, Action.DETACH_VOLUME], [_INSTANCE]),
            _statement("MakeSnapshotsOfMarkedVolumes", [Action.CREATE_SNAPSHOT], [_VOLUME], _WITH_TAG),
            _statement(
                "MakeMarkedSnapshots", [Action.CREATE_SNAPSHOT], [_SNAPSHOT, _SNAPSHOT_SHARED], _WITH_TAG_REQUESTED
            ),
            _statement("DeleteMarkedSnapshots", [Action.DELETE_SNAPSHOT], [_SNAPSHOT, _SNAPSHOT_SHARED], _WITH_TAG),
            _statement(
                "MarkWhatIsMade",
                [Action.CREATE_TAGS],
                [_VOLUME, _SNAPSHOT, _SNAPSHOT_SHARED],
                {"StringEquals": {"ec2:CreateAction": [str(Action.CREATE_VOLUME), str(Action.CREATE_SNAPSHOT)]}},
            ),
            _statement("ChangeMarks", [Action.CREATE_TAGS], [_VOLUME], _own_tags_of_marked()),
            {
                "Sid": "ReadWhyNot",
                "Effect": "Allow",
                "Action": [f"sts:{Action.DECODE_AUTHORIZATION_MESSAGE}"],
                "Resource": ["*"],
            },
        ],
    }


def _own_tags_of_marked() -> dict[str, Any]:
    """After creation only our own tags are written, on tagged volumes: the fence, and the owner at adoption."""
    return {**_WITH_TAG, "ForAllValues:StringEquals": {"aws:TagKeys": sorted(ownership_tags.WRITABLE_LATER)}}


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


if __name__ == "__main__":
    sys.stdout.write(json.dumps(iam_policy(), indent=2) + "\n")
