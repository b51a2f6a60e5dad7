"""The actions CreateSnapshot, CreateSnapshots, DeleteSnapshot and DescribeSnapshots."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from volplane_aws_ebs.testing.faults import EC2Error
from volplane_aws_ebs.testing.filters import Read, filters_from, matching, page_from
from volplane_aws_ebs.testing.state import SNAPSHOT_ID, AccountState, Snapshot, Volume
from volplane_aws_ebs.testing.tags import tags_from_specification, tags_output

_MOST_EXCLUDED = 40
_NOT_IN_INFO = frozenset({"StorageTier", "StateMessage", "KmsKeyId"})
"""What SnapshotInfo lacks of Snapshot."""
_ONE_AT_ONCE = ("st1", "sc1")
"""Types of volumes of which one snapshot can be pending."""


def create_snapshot(account: AccountState, params: Mapping[str, Any]) -> dict[str, Any]:
    """CreateSnapshot: it has no client token, so every call creates a snapshot."""
    volume = account.volume(params)
    _require_room(account, 1)
    _require_snapshot(account, volume, params)
    return _output(account, _begun(account, volume, params))


def create_snapshots(account: AccountState, params: Mapping[str, Any]) -> dict[str, Any]:
    """CreateSnapshots: of all volumes of an instance, but its root volume and those that are excluded; all or none."""
    given = params.get("InstanceSpecification") or {}
    instance = account.instance(str(given.get("InstanceId", "")))
    excluded = list(given.get("ExcludeDataVolumeIds", ()))
    if len(excluded) > _MOST_EXCLUDED:
        raise EC2Error("InvalidParameterValue", f"At most {_MOST_EXCLUDED} volumes can be excluded.")
    attached = {each.id: each for each in account.volumes.values() if instance.id in each.attachments}
    for id_ in excluded:
        if id_ not in attached or id_ == instance.root_volume:
            raise EC2Error("InvalidParameterValue", f"Volume '{id_}' is no data volume of instance '{instance.id}'.")
    if given.get("ExcludeBootVolume"):
        excluded.append(instance.root_volume)
    volumes = [each for id_, each in attached.items() if id_ not in excluded]
    if not volumes:
        raise EC2Error("InvalidParameterCombination", f"Instance '{instance.id}' has no volumes that are not excluded.")
    _require_room(account, len(volumes))
    for volume in volumes:
        _require_snapshot(account, volume, params)
    made = [_output(account, _begun(account, volume, params)) for volume in volumes]
    return {"Snapshots": [{key: value for key, value in each.items() if key not in _NOT_IN_INFO} for each in made]}


def _require_room(account: AccountState, count: int) -> None:
    if len(account.snapshots) + count > account.behaviour.snapshot_quota:
        raise EC2Error("SnapshotLimitExceeded", "You have exceeded your snapshot limit.")


def _require_snapshot(account: AccountState, volume: Volume, params: Mapping[str, Any]) -> None:
    if volume.state not in ("available", "in-use"):
        raise EC2Error("IncorrectState", f"Volume '{volume.id}' is in the '{volume.state}' state.")
    _refuse_soon_after(account, volume.id)
    _refuse_pending(account, volume)
    if params.get("OutpostArn") and params.get("Location"):
        raise EC2Error("InvalidParameterCombination", "OutpostArn and Location cannot be used together.")
    if params.get("Location") == "local" and volume.zone not in account.behaviour.local_zones:
        raise EC2Error("InvalidParameterValue", "Location local is only for volumes in a Local Zone.")


def _begun(account: AccountState, volume: Volume, params: Mapping[str, Any]) -> Snapshot:
    number = account.number()
    snapshot = Snapshot(
        id=account.id("snap", number),
        number=number,
        volume=volume.id,
        size=volume.size,
        encrypted=volume.encrypted,
        kms_key=volume.kms_key,
        started=account.now,
        ends=account.now + account.behaviour.snapshot_seconds,
        description=params.get("Description", ""),
        tags=tags_from_specification(params, "snapshot"),
        zone=volume.zone if params.get("Location") == "local" else "",
        outpost=params.get("OutpostArn", ""),
    )
    account.snapshots[snapshot.id] = snapshot
    account.contents.begin(snapshot.id, volume.id)
    failure = account.failure
    account.later(account.behaviour.snapshot_seconds, lambda: _ended(snapshot, failure))
    return snapshot


def _refuse_soon_after(account: AccountState, volume: str) -> None:
    """SnapshotCreationPerVolumeRateExceeded (Amazon EC2 API reference, "Error codes for the Amazon EC2 API")."""
    earliest = account.now - account.behaviour.snapshot_interval
    if any(each.volume == volume and each.started > earliest for each in account.snapshots.values()):
        raise EC2Error(
            "SnapshotCreationPerVolumeRateExceeded",
            "The maximum per volume CreateSnapshot request rate has been exceeded. Use an increasing or variable sleep "
            "interval between requests.",
        )


def _refuse_pending(account: AccountState, volume: Volume) -> None:
    """ConcurrentSnapshotLimitExceeded (AWS General Reference, "Amazon EBS endpoints and quotas")."""
    most = 1 if volume.volume_type in _ONE_AT_ONCE else account.behaviour.pending_snapshots
    if sum(each.volume == volume.id and each.state == "pending" for each in account.snapshots.values()) >= most:
        raise EC2Error(
            "ConcurrentSnapshotLimitExceeded", "Maximum allowed in-progress snapshots for a single volume exceeded."
        )


def _ended(snapshot: Snapshot, failure: str | None) -> None:
    if snapshot.state == "pending":
        snapshot.state = "completed" if failure is None else "error"
        snapshot.message = failure or ""


def delete_snapshot(account: AccountState, params: Mapping[str, Any]) -> dict[str, Any]:
    """DeleteSnapshot: at once, also of a pending snapshot."""
    id_ = str(params["SnapshotId"])
    snapshot = snapshot_of(account, id_)
    if snapshot.owner:
        raise EC2Error("AuthFailure", f"Not the owner of the snapshot '{id_}'", 403)
    if snapshot.images:
        raise EC2Error("InvalidSnapshot.InUse", f"The snapshot {id_} is currently in use by {snapshot.images[0]}")
    if snapshot.lock is not None and snapshot.lock.state(account.now) != "expired":
        raise EC2Error(account.behaviour.locked_code, f"The snapshot {id_} is locked and cannot be deleted.")
    del account.snapshots[id_]
    return {}


def snapshot_of(account: AccountState, id_: str) -> Snapshot:
    """Return the snapshot. Raises what EC2 raises for ids that are malformed or unknown."""
    if not SNAPSHOT_ID.fullmatch(id_):
        raise EC2Error("InvalidSnapshotID.Malformed", f'Invalid id: "{id_}" (expecting "snap-...")')
    if id_ not in account.snapshots:
        raise EC2Error("InvalidSnapshot.NotFound", f"The snapshot '{id_}' does not exist.")
    return account.snapshots[id_]


def _fields(account: AccountState) -> Mapping[str, Read[Snapshot]]:
    """Return the filters of DescribeSnapshots (Amazon EC2 API reference)."""
    return {
        "description": lambda snapshot: (snapshot.description,),
        "encrypted": lambda snapshot: (str(snapshot.encrypted).lower(),),
        "owner-alias": lambda _snapshot: (),
        "owner-id": lambda snapshot: (_owner(account, snapshot),),
        "progress": lambda snapshot: (_progress(account, snapshot),),
        "snapshot-id": lambda snapshot: (snapshot.id,),
        "start-time": lambda snapshot: (account.time_text(snapshot.started),),
        "status": lambda snapshot: (snapshot.state,),
        "storage-tier": lambda snapshot: ("archive" if snapshot.archived else "standard",),
        "transfer-type": lambda _snapshot: (),
        "volume-id": lambda snapshot: (snapshot.volume,),
        "volume-size": lambda snapshot: (str(snapshot.size),),
    }


def _owner(account: AccountState, snapshot: Snapshot) -> str:
    return snapshot.owner or account.behaviour.account


def _progress(account: AccountState, snapshot: Snapshot) -> str:
    if snapshot.state == "completed":
        return "100%"
    share = (account.now - snapshot.started) / max(snapshot.ends - snapshot.started, 1e-9)
    return f"{min(int(share * 100), 99)}%"


def describe_snapshots(account: AccountState, params: Mapping[str, Any]) -> dict[str, Any]:
    """DescribeSnapshots: without OwnerIds, those that other accounts share too."""
    if ids := params.get("SnapshotIds"):
        malformed = [id_ for id_ in ids if not SNAPSHOT_ID.fullmatch(id_)]
        if malformed:
            raise EC2Error("InvalidSnapshotID.Malformed", f'Invalid id: "{malformed[0]}" (expecting "snap-...")')
        there = {id_: each for id_, each in account.snapshots.items() if account.visible(each.started)}
        missing = [id_ for id_ in ids if id_ not in there]
        if missing:
            raise EC2Error("InvalidSnapshot.NotFound", f"The snapshot '{missing[0]}' does not exist.")
        found = [there[id_] for id_ in ids]
    else:
        found = [each for each in account.snapshots.values() if account.visible(each.started)]
    if owners := params.get("OwnerIds"):
        wanted = {account.behaviour.account if owner == "self" else owner for owner in owners}
        found = [each for each in found if _owner(account, each) in wanted]
    found = matching(found, filters_from(params), _fields(account), lambda snapshot: snapshot.tags)
    page, following = page_from(found, params, behaviour=account.behaviour, ids="SnapshotIds")
    return {"Snapshots": [_output(account, each) for each in page], "NextToken": following}


def _output(account: AccountState, snapshot: Snapshot) -> dict[str, Any]:
    return {
        "SnapshotId": snapshot.id,
        "VolumeId": snapshot.volume,
        "VolumeSize": snapshot.size,
        "State": snapshot.state,
        "Progress": _progress(account, snapshot),
        "StartTime": account.unix_time(snapshot.started),
        "Encrypted": snapshot.encrypted,
        "Description": snapshot.description,
        "OwnerId": _owner(account, snapshot),
        "StorageTier": "archive" if snapshot.archived else "standard",
        **({"StateMessage": snapshot.message} if snapshot.message else {}),
        **({"KmsKeyId": snapshot.kms_key} if snapshot.kms_key else {}),
        **({"AvailabilityZone": snapshot.zone} if snapshot.zone else {}),
        **({"OutpostArn": snapshot.outpost} if snapshot.outpost else {}),
        "Tags": tags_output(snapshot.tags),
    }
