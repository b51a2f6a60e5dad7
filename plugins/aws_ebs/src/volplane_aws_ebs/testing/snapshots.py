"""The actions CreateSnapshot, DeleteSnapshot and DescribeSnapshots."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from volplane_aws_ebs.testing.faults import EC2Error
from volplane_aws_ebs.testing.filters import Read, filters_from, matching, page_from
from volplane_aws_ebs.testing.state import SNAPSHOT_ID, AccountState, Snapshot
from volplane_aws_ebs.testing.tags import tags_from_specification, tags_output


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
    if not SNAPSHOT_ID.fullmatch(id_):
        raise EC2Error("InvalidSnapshotID.Malformed", f'Invalid id: "{id_}" (expecting "snap-...")')
    if account.snapshots.pop(id_, None) is None:
        raise EC2Error("InvalidSnapshot.NotFound", f"The snapshot '{id_}' does not exist.")
    return {}


def _fields(account: AccountState) -> Mapping[str, Read[Snapshot]]:
    """Return the filters of DescribeSnapshots (Amazon EC2 API reference)."""
    return {
        "description": lambda snapshot: (snapshot.description,),
        "encrypted": lambda snapshot: (str(snapshot.encrypted).lower(),),
        "owner-alias": lambda _snapshot: (),
        "owner-id": lambda _snapshot: (account.behaviour.account,),
        "progress": lambda snapshot: (_progress(snapshot),),
        "snapshot-id": lambda snapshot: (snapshot.id,),
        "start-time": lambda snapshot: (account.time_text(snapshot.started),),
        "status": lambda snapshot: (snapshot.state,),
        "storage-tier": lambda _snapshot: ("standard",),
        "transfer-type": lambda _snapshot: (),
        "volume-id": lambda snapshot: (snapshot.volume,),
        "volume-size": lambda snapshot: (str(snapshot.size),),
    }


def _progress(snapshot: Snapshot) -> str:
    return "100%" if snapshot.state == "completed" else "0%"


def describe_snapshots(account: AccountState, params: Mapping[str, Any]) -> dict[str, Any]:
    """DescribeSnapshots: those of this account."""
    if ids := params.get("SnapshotIds"):
        malformed = [id_ for id_ in ids if not SNAPSHOT_ID.fullmatch(id_)]
        if malformed:
            raise EC2Error("InvalidSnapshotID.Malformed", f'Invalid id: "{malformed[0]}" (expecting "snap-...")')
        missing = [id_ for id_ in ids if id_ not in account.snapshots]
        if missing:
            raise EC2Error("InvalidSnapshot.NotFound", f"The snapshot '{missing[0]}' does not exist.")
        found = [account.snapshots[id_] for id_ in ids]
    else:
        found = [each for each in account.snapshots.values() if account.visible(each.started)]
    if owners := params.get("OwnerIds"):
        found = [each for each in found if {"self", account.behaviour.account}.intersection(owners)]
    found = matching(found, filters_from(params), _fields(account), lambda snapshot: snapshot.tags)
    page, following = page_from(found, params, behaviour=account.behaviour, ids="SnapshotIds")
    return {"Snapshots": [_output(account, each) for each in page], "NextToken": following}


def _output(account: AccountState, snapshot: Snapshot) -> dict[str, Any]:
    return {
        "SnapshotId": snapshot.id,
        "VolumeId": snapshot.volume,
        "VolumeSize": snapshot.size,
        "State": snapshot.state,
        "Progress": _progress(snapshot),
        "StartTime": account.unix_time(snapshot.started),
        "Encrypted": snapshot.encrypted,
        "Description": snapshot.description,
        "OwnerId": account.behaviour.account,
        **({"StateMessage": snapshot.message} if snapshot.message else {}),
        "Tags": tags_output(snapshot.tags),
    }
