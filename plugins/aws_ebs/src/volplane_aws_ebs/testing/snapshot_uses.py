"""The actions about fast restores, locks and images of snapshots."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from volplane_aws_ebs.testing.faults import EC2Error, invalid
from volplane_aws_ebs.testing.filters import filters_from, matching, page_from
from volplane_aws_ebs.testing.snapshots import snapshot_of
from volplane_aws_ebs.testing.state import AccountState, Lock, Snapshot

_MOST_SNAPSHOTS = 10
_MOST_DAYS = 36_500
_COOL_OFF = (1, 72)
_LARGEST_GIB = 16_384
_DAY = 86_400.0
_ACTIVE = ("enabling", "optimizing", "enabled")


@dataclass(frozen=True, slots=True)
class _Pair:
    """A snapshot and a zone."""

    number: int
    snapshot: Snapshot
    zone: str
    state: str


def enable_fast_snapshot_restores(account: AccountState, params: Mapping[str, Any]) -> dict[str, Any]:
    """EnableFastSnapshotRestores: the call succeeds, while single pairs fail (Amazon EC2 API reference)."""
    ids, zones = params.get("SourceSnapshotIds", ()), params.get("AvailabilityZones", ())
    if not ids or not zones:
        raise EC2Error("MissingParameter", "The request must contain snapshots and availability zones")
    if len(ids) > _MOST_SNAPSHOTS:
        raise EC2Error("InvalidParameterValue", f"At most {_MOST_SNAPSHOTS} snapshots in a request.")
    successful: list[dict[str, Any]] = []
    unsuccessful: list[dict[str, Any]] = []
    for snapshot in [snapshot_of(account, id_) for id_ in ids]:
        errors = []
        for zone in zones:
            error = _refused(account, snapshot, zone)
            if error is None:
                if snapshot.fast_restores.get(zone) not in _ACTIVE:
                    _enable(account, snapshot, zone)
                successful.append(_pair_output(account, _Pair(0, snapshot, zone, snapshot.fast_restores[zone])))
            else:
                errors.append({"AvailabilityZone": zone, "Error": {"Code": error.code, "Message": error.message}})
        if errors:
            unsuccessful.append({"SnapshotId": snapshot.id, "FastSnapshotRestoreStateErrors": errors})
    return {"Successful": successful, "Unsuccessful": unsuccessful}


def _refused(account: AccountState, snapshot: Snapshot, zone: str) -> EC2Error | None:
    """Amazon EBS User Guide, "Amazon EBS fast snapshot restore": quotas and where there is none."""
    if zone not in account.behaviour.zones:
        return EC2Error("InvalidParameterValue", f"Invalid availability zone: [{zone}]")
    if snapshot.size > _LARGEST_GIB:
        return EC2Error("InvalidParameterValue", f"Snapshots of more than {_LARGEST_GIB} GiB have no fast restore.")
    others = {each.id for each in account.snapshots.values() if set(each.fast_restores.values()) & set(_ACTIVE)}
    if len(others - {snapshot.id}) >= account.behaviour.fast_restore_quota:
        return EC2Error("FastSnapshotRestoreLimitExceeded", "You have exceeded your limit of fast snapshot restores.")
    return None


def _enable(account: AccountState, snapshot: Snapshot, zone: str) -> None:
    snapshot.fast_restores[zone] = "enabling"

    def become(before: str, after: str) -> None:
        if snapshot.fast_restores.get(zone) == before:
            snapshot.fast_restores[zone] = after

    def optimize() -> None:
        if snapshot.state == "pending":
            account.later(1.0, optimize)
            return
        become("enabling", "optimizing")
        account.later(account.behaviour.optimize_restore_seconds, lambda: become("optimizing", "enabled"))

    account.later(1.0, optimize)


def describe_fast_snapshot_restores(account: AccountState, params: Mapping[str, Any]) -> dict[str, Any]:
    """DescribeFastSnapshotRestores: by filters, in pages."""
    zones = list(account.behaviour.zone_ids)
    pairs = [
        _Pair(snapshot.number * len(zones) + zones.index(zone), snapshot, zone, state)
        for snapshot in account.snapshots.values()
        for zone, state in snapshot.fast_restores.items()
    ]
    fields = {
        "availability-zone": lambda pair: (pair.zone,),
        "availability-zone-id": lambda pair: (account.behaviour.zone_ids[pair.zone],),
        "owner-id": lambda _pair: (account.behaviour.account,),
        "snapshot-id": lambda pair: (pair.snapshot.id,),
        "state": lambda pair: (pair.state,),
    }
    found = matching(pairs, filters_from(params), fields, lambda _pair: {})
    page, following = page_from(found, params, behaviour=account.behaviour)
    return {"FastSnapshotRestores": [_pair_output(account, each) for each in page], "NextToken": following}


def _pair_output(account: AccountState, pair: _Pair) -> dict[str, Any]:
    return {
        "SnapshotId": pair.snapshot.id,
        "AvailabilityZone": pair.zone,
        "AvailabilityZoneId": account.behaviour.zone_ids[pair.zone],
        "State": pair.state,
        "OwnerId": account.behaviour.account,
    }


def lock_snapshot(account: AccountState, params: Mapping[str, Any]) -> dict[str, Any]:
    """LockSnapshot: a pending or completed one; what is locked for compliance can only be locked for longer."""
    snapshot = snapshot_of(account, str(params["SnapshotId"]))
    mode, days, cool_off = params["LockMode"], params.get("LockDuration"), params.get("CoolOffPeriod")
    expires: datetime | str | None = params.get("ExpirationDate")
    if (days is None) is (expires is None):
        raise EC2Error("InvalidParameterCombination", "Specify either LockDuration or ExpirationDate, but not both.")
    if mode not in ("governance", "compliance"):
        raise invalid("lockMode", mode)
    if days is not None and not 1 <= days <= _MOST_DAYS:
        raise invalid("lockDuration", days, f"Expecting 1 to {_MOST_DAYS}.")
    if cool_off is not None and (mode != "compliance" or not _COOL_OFF[0] <= cool_off <= _COOL_OFF[1]):
        raise invalid("coolOffPeriod", cool_off, "It is for compliance mode, from 1 to 72 hours.")
    if snapshot.state not in ("pending", "completed"):
        raise EC2Error("IncorrectState", f"The snapshot '{snapshot.id}' is in the '{snapshot.state}' state.")
    end = account.now + days * _DAY if days is not None else _clock_time(account, expires)
    if end < account.now + _DAY:
        raise invalid("expirationDate", str(expires), "It must be at least a day away.")
    held = snapshot.lock
    if held is not None and held.state(account.now) == "compliance" and (mode != "compliance" or end < held.expires):
        raise EC2Error("OperationNotPermitted", "A lock in compliance mode can only be extended.")
    if account.failure is None:
        whole = max(round((end - account.now) / _DAY), 1)
        snapshot.lock = Lock(mode=mode, made=account.now, expires=end, days=whole, cool_off=cool_off or 0)
    return {key: value for key, value in _lock_output(account, snapshot).items() if key != "OwnerId"}


def _clock_time(account: AccountState, expires: datetime | str | None) -> float:
    given = datetime.fromisoformat(str(expires)) if not isinstance(expires, datetime) else expires
    return given.timestamp() - account.unix_time(0.0)


def describe_locked_snapshots(account: AccountState, params: Mapping[str, Any]) -> dict[str, Any]:
    """DescribeLockedSnapshots: those that have a lock, or had one."""
    if ids := params.get("SnapshotIds"):
        candidates = [snapshot_of(account, id_) for id_ in ids]
    else:
        candidates = list(account.snapshots.values())
    locked = [each for each in candidates if each.lock is not None]
    fields = {"lock-state": lambda each: (each.lock.state(account.now),)}
    found = matching(locked, filters_from(params), fields, lambda _each: {})
    page, following = page_from(found, params, behaviour=account.behaviour, ids="SnapshotIds")
    return {"Snapshots": [_lock_output(account, each) for each in page], "NextToken": following}


def _lock_output(account: AccountState, snapshot: Snapshot) -> dict[str, Any]:
    lock = snapshot.lock
    if lock is None:
        return {"SnapshotId": snapshot.id}
    return {
        "OwnerId": account.behaviour.account,
        "SnapshotId": snapshot.id,
        "LockState": lock.state(account.now),
        "LockDuration": lock.days,
        "LockCreatedOn": account.unix_time(lock.made),
        "LockExpiresOn": account.unix_time(lock.expires),
        "LockDurationStartTime": account.unix_time(lock.made),
        **({"CoolOffPeriod": lock.cool_off} if lock.cool_off else {}),
        **({"CoolOffPeriodExpiresOn": account.unix_time(lock.made + lock.cool_off * 3_600)} if lock.cool_off else {}),
    }


def describe_images(account: AccountState, params: Mapping[str, Any]) -> dict[str, Any]:
    """DescribeImages: those that are made of snapshots, by these."""
    images = [(image, each.id) for each in account.snapshots.values() for image in each.images]
    fields = {
        "block-device-mapping.snapshot-id": lambda pair: (pair[1],),
        "image-id": lambda pair: (pair[0],),
    }
    found = matching(images, filters_from(params), fields, lambda _pair: {})
    if not {"self", account.behaviour.account, None}.intersection(params.get("Owners") or [None]):
        found = []
    mapped = [(image, [{"DeviceName": "/dev/xvda", "Ebs": {"SnapshotId": id_}}]) for image, id_ in found]
    owner = account.behaviour.account
    return {"Images": [{"ImageId": i, "OwnerId": owner, "BlockDeviceMappings": devices} for i, devices in mapped]}
