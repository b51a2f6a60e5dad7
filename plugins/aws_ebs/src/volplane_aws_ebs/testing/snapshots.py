"""CreateSnapshot, DeleteSnapshot, DescribeSnapshots."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from volplane_aws_ebs.testing.faults import Refusal
from volplane_aws_ebs.testing.filters import Read, chosen, filters_of, page_of
from volplane_aws_ebs.testing.state import Cloud, Snapshot
from volplane_aws_ebs.testing.tags import shown_tags, specified_tags

__all__ = ["create_snapshot", "delete_snapshot", "describe_snapshots"]


def create_snapshot(cloud: Cloud, given: Mapping[str, Any]) -> dict[str, Any]:
    """CreateSnapshot: has no client token, so every call makes another one."""
    volume = cloud.volume(given)
    if volume.state not in ("available", "in-use"):
        raise Refusal("IncorrectState", f"Volume '{volume.id}' is in the '{volume.state}' state.")
    if len(cloud.snapshots) >= cloud.behaviour.snapshot_quota:
        raise Refusal("SnapshotLimitExceeded", "You have exceeded your snapshot limit.")
    number = cloud.number()
    snapshot = Snapshot(
        id=cloud.id("snap", number),
        number=number,
        volume=volume.id,
        size=volume.size,
        encrypted=volume.encrypted,
        started=cloud.now,
        description=given.get("Description", ""),
        tags=specified_tags(given, "snapshot"),
    )
    cloud.snapshots[snapshot.id] = snapshot
    cloud.later(cloud.behaviour.snapshot_seconds, lambda: _completed(snapshot))
    return _shown(cloud, snapshot)


def _completed(snapshot: Snapshot) -> None:
    if snapshot.state == "pending":
        snapshot.state = "completed"


def delete_snapshot(cloud: Cloud, given: Mapping[str, Any]) -> dict[str, Any]:
    """DeleteSnapshot: at once, a pending one too."""
    id_ = str(given["SnapshotId"])
    if not id_.startswith("snap-"):
        raise Refusal("InvalidSnapshotID.Malformed", f'Invalid id: "{id_}" (expecting "snap-...")')
    if cloud.snapshots.pop(id_, None) is None:
        raise Refusal("InvalidSnapshot.NotFound", f"The snapshot '{id_}' does not exist.")
    return {}


_FIELDS: Mapping[str, Read[Snapshot]] = {
    "snapshot-id": lambda snapshot: (snapshot.id,),
    "volume-id": lambda snapshot: (snapshot.volume,),
    "status": lambda snapshot: (snapshot.state,),
    "description": lambda snapshot: (snapshot.description,),
    "volume-size": lambda snapshot: (str(snapshot.size),),
}


def describe_snapshots(cloud: Cloud, given: Mapping[str, Any]) -> dict[str, Any]:
    """DescribeSnapshots: of this account alone."""
    if ids := given.get("SnapshotIds"):
        missing = [id_ for id_ in ids if id_ not in cloud.snapshots]
        if missing:
            raise Refusal("InvalidSnapshot.NotFound", f"The snapshot '{missing[0]}' does not exist.")
        found = [cloud.snapshots[id_] for id_ in ids]
    else:
        found = [each for each in cloud.snapshots.values() if cloud.visible(each.started)]
    found = chosen(found, filters_of(given), _FIELDS, lambda snapshot: snapshot.tags)
    page, following = page_of(found, given, most=cloud.behaviour.most_results, ids="SnapshotIds")
    return {"Snapshots": [_shown(cloud, each) for each in page], "NextToken": following}


def _shown(cloud: Cloud, snapshot: Snapshot) -> dict[str, Any]:
    return {
        "SnapshotId": snapshot.id,
        "VolumeId": snapshot.volume,
        "VolumeSize": snapshot.size,
        "State": snapshot.state,
        "Progress": "100%" if snapshot.state == "completed" else "0%",
        "StartTime": cloud.stamp(snapshot.started),
        "Encrypted": snapshot.encrypted,
        "Description": snapshot.description,
        "OwnerId": cloud.behaviour.account,
        "Tags": shown_tags(snapshot.tags),
    }
