"""The actions CreateSnapshot, DeleteSnapshot and DescribeSnapshots."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from volplane_aws_ebs.testing.faults import EC2Error
from volplane_aws_ebs.testing.filters import Read, filters_from, matching, page_from
from volplane_aws_ebs.testing.state import AccountState, Snapshot
from volplane_aws_ebs.testing.tags import tags_from_specification, tags_output

__all__ = ["create_snapshot", "delete_snapshot", "describe_snapshots"]


def create_snapshot(account: AccountState, params: Mapping[str, Any]) -> dict[str, Any]:
    """CreateSnapshot: it has no client token, so every call creates a snapshot."""
    volume = account.volume(params)
    if volume.state not in ("available", "in-use"):
        raise EC2Error("IncorrectState", f"Volume '{volume.id}' is in the '{volume.state}' state.")
    if len(account.snapshots) >= account.behaviour.snapshot_quota:
        raise EC2Error("SnapshotLimitExceeded", "You have exceeded your snapshot limit.")
    _refuse_soon_after(account, volume.id)
    number = account.number()
    snapshot = Snapshot(
        id=account.id("snap", number),
        number=number,
        volume=volume.id,
        size=volume.size,
        encrypted=volume.encrypted,
        started=account.now,
        description=params.get("Description", ""),
        tags=tags_from_specification(params, "snapshot"),
    )
    account.snapshots[snapshot.id] = snapshot
    failure = account.failure
    account.later(account.behaviour.snapshot_seconds, lambda: _ended(snapshot, failure))
    return _output(account, snapshot)


def _refuse_soon_after(account: AccountState, volume: str) -> None:
    """SnapshotCreationPerVolumeRateExceeded (Amazon EC2 API reference, "Error codes for the Amazon EC2 API")."""
    earliest = account.now - account.behaviour.snapshot_interval
    if any(each.volume == volume and each.started > earliest for each in account.snapshots.values()):
        raise EC2Error(
            "SnapshotCreationPerVolumeRateExceeded",
            "The maximum per volume CreateSnapshot request rate has been exceeded. Use an increasing or variable sleep "
            "interval between requests.",
        )


def _ended(snapshot: Snapshot, failure: str | None) -> None:
    if snapshot.state == "pending":
        snapshot.state = "completed" if failure is None else "error"
        snapshot.message = failure or ""


def delete_snapshot(account: AccountState, params: Mapping[str, Any]) -> dict[str, Any]:
    """DeleteSnapshot: at once, also of a pending snapshot."""
    id_ = str(params["SnapshotId"])
    if not id_.startswith("snap-"):
        raise EC2Error("InvalidSnapshotID.Malformed", f'Invalid id: "{id_}" (expecting "snap-...")')
    if account.snapshots.pop(id_, None) is None:
        raise EC2Error("InvalidSnapshot.NotFound", f"The snapshot '{id_}' does not exist.")
    return {}


_FIELDS: Mapping[str, Read[Snapshot]] = {
    "snapshot-id": lambda snapshot: (snapshot.id,),
    "volume-id": lambda snapshot: (snapshot.volume,),
    "status": lambda snapshot: (snapshot.state,),
    "description": lambda snapshot: (snapshot.description,),
    "volume-size": lambda snapshot: (str(snapshot.size),),
}


def describe_snapshots(account: AccountState, params: Mapping[str, Any]) -> dict[str, Any]:
    """DescribeSnapshots: those of this account."""
    if ids := params.get("SnapshotIds"):
        missing = [id_ for id_ in ids if id_ not in account.snapshots]
        if missing:
            raise EC2Error("InvalidSnapshot.NotFound", f"The snapshot '{missing[0]}' does not exist.")
        found = [account.snapshots[id_] for id_ in ids]
    else:
        found = [each for each in account.snapshots.values() if account.visible(each.started)]
    found = matching(found, filters_from(params), _FIELDS, lambda snapshot: snapshot.tags)
    page, following = page_from(found, params, max_results=account.behaviour.max_results, ids="SnapshotIds")
    return {"Snapshots": [_output(account, each) for each in page], "NextToken": following}


def _output(account: AccountState, snapshot: Snapshot) -> dict[str, Any]:
    return {
        "SnapshotId": snapshot.id,
        "VolumeId": snapshot.volume,
        "VolumeSize": snapshot.size,
        "State": snapshot.state,
        "Progress": "100%" if snapshot.state == "completed" else "0%",
        "StartTime": account.unix_time(snapshot.started),
        "Encrypted": snapshot.encrypted,
        "Description": snapshot.description,
        "OwnerId": account.behaviour.account,
        **({"StateMessage": snapshot.message} if snapshot.message else {}),
        "Tags": tags_output(snapshot.tags),
    }
