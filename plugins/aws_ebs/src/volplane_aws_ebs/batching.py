"""Batched Describe calls: one call reads many volumes, instances, modifications or snapshots for all hook calls."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from volplane.cloud import StatePoller, chunks, read_without_bad_ids
from volplane_aws_ebs import ownership_tags
from volplane_aws_ebs.api import Action, AwsClient
from volplane_aws_ebs.errors import NOT_FOUND, is_throttled
from volplane_aws_ebs.resources import Ec2Instance, Ec2Snapshot, Ec2Volume, VolumeModification

_MAX_IDS = 500
_MAX_FILTER_VALUES = 200
"""EC2's limit of values in one filter (Amazon EC2 API reference, DescribeVolumes)."""
_MAX_INSTANCES = 100
_PROBABLY_GONE_SECONDS = 3_600.0
_POLL_INTERVAL = 0.5
_SNAPSHOT_INTERVAL = 5.0
"""A snapshot takes minutes: callers that wait for some meet at multiples of these seconds."""
_INITIALIZING_INTERVAL = 60.0
"""EC2 takes minutes to hours, and shows its progress no sooner (Amazon EBS User Guide, "Initialize volumes")."""
_IDS = {"VolumeIds": re.compile(r"vol-[0-9a-z]+"), "SnapshotIds": re.compile(r"snap-[0-9a-z]+")}
"""The ids that a message names, by the parameter that the call has."""
_BAD_ID = NOT_FOUND | {"InvalidVolumeID.Malformed", "InvalidSnapshotID.Malformed", "InvalidParameterValue"}
"""Codes of Describe calls by ids for an id that does not exist, or that EC2 cannot read.

Amazon EC2 API reference, "Error codes for the Amazon EC2 API".
"""

NameKey = tuple[str, str]
"""Cluster id and name, as the tags of a volume or snapshot have them."""


class DescribeBatches:
    """The shared pollers of a driver. Safe for threads.

    volumes, instances, modifications, snapshots: by id. names, snapshot_names: volumes and snapshots by cluster and
    name; the official driver's name stands for a cluster whose snapshots have its tag. locks: LockState by snapshot.
    fast_restores: by snapshot, from zone to state. initialized: whether the contents of a volume are all there, by id.
    """

    def __init__(self, client: AwsClient, clock: Callable[[], float]) -> None:
        self._client = client
        self._clock = clock
        self.account = ""
        """Id of the account, as the first snapshot of it has told."""
        self._probably_gone: dict[str, float] = {}
        """Volumes that are probably gone, and until when that is assumed.

        One unknown id fails a DescribeVolumes by ids.
        """
        self.volumes: StatePoller[str, Ec2Volume] = StatePoller(self._volumes, clock=clock, interval=_POLL_INTERVAL)
        self.names: StatePoller[NameKey, tuple[Ec2Volume, ...]] = StatePoller(
            self._names, clock=clock, interval=_POLL_INTERVAL, early=True
        )
        self.instances: StatePoller[str, Ec2Instance] = StatePoller(
            self._instances, clock=clock, interval=_POLL_INTERVAL
        )
        self.modifications: StatePoller[str, VolumeModification] = StatePoller(
            self._modifications, clock=clock, interval=_POLL_INTERVAL
        )
        self.snapshot_names: StatePoller[NameKey, tuple[Ec2Snapshot, ...]] = StatePoller(
            self._snapshot_names, clock=clock, interval=_POLL_INTERVAL
        )
        self.initialized: StatePoller[str, bool] = StatePoller(
            self._initialized, clock=clock, interval=_INITIALIZING_INTERVAL
        )
        self.locks: StatePoller[str, str] = StatePoller(self._locks, clock=clock, interval=_SNAPSHOT_INTERVAL)
        self.fast_restores: StatePoller[str, Mapping[str, str]] = StatePoller(
            self._fast_restores, clock=clock, interval=_SNAPSHOT_INTERVAL
        )
        self.snapshots: StatePoller[str, Ec2Snapshot] = StatePoller(
            self._snapshots, clock=clock, interval=_SNAPSHOT_INTERVAL
        )

    def expect_missing(self, volume: str) -> None:
        """Read a volume that is being deleted by a filter from now on, which does not fail for unknown ids."""
        self._probably_gone[volume] = self._clock() + _PROBABLY_GONE_SECONDS

    # --- volumes by id ------------------------------------------------------------------------------------------

    def _volumes(self, ids: Sequence[str]) -> dict[str, Ec2Volume]:
        now = self._clock()
        self._probably_gone = {id_: until for id_, until in self._probably_gone.items() if until > now}
        probably_gone = [id_ for id_ in ids if id_ in self._probably_gone]
        found: dict[str, Ec2Volume] = {}
        if probably_gone and len(ids) <= _MAX_FILTER_VALUES:
            probably_gone = list(ids)  # One call by filter reads them all.
        for chunk in chunks([id_ for id_ in ids if id_ not in probably_gone], _MAX_IDS):
            existing, missing = self._volumes_by_id(chunk)
            found.update(existing)
            probably_gone += missing
        for chunk in chunks(probably_gone, _MAX_FILTER_VALUES):
            response = self._all(
                self.volumes, Action.DESCRIBE_VOLUMES, "Volumes", Filters=[_filter("volume-id", chunk)]
            )
            found.update((each["VolumeId"], Ec2Volume.of(each)) for each in response)
        for id_ in ids:
            if id_ not in found:
                self._probably_gone.setdefault(id_, now + _PROBABLY_GONE_SECONDS)
            elif not found[id_].being_deleted:
                self._probably_gone.pop(id_, None)
        return found

    def _volumes_by_id(self, ids: Sequence[str]) -> tuple[dict[str, Ec2Volume], list[str]]:
        """Return the volumes that exist, and the ids that made the call fail.

        Those are unknown or malformed, and are read by a filter, which fails for neither.
        """
        volumes, missing = self._by_ids(self.volumes, Action.DESCRIBE_VOLUMES, "Volumes", "VolumeIds", ids)
        return {each["VolumeId"]: Ec2Volume.of(each) for each in volumes}, missing

    def _initialized(self, ids: Sequence[str]) -> dict[str, bool]:
        action = Action.DESCRIBE_VOLUME_STATUS
        found: dict[str, bool] = {}
        for chunk in chunks(ids, _MAX_IDS):
            statuses, _gone = self._by_ids(self.initialized, action, "VolumeStatuses", "VolumeIds", chunk)
            for each in statuses:
                details = each.get("VolumeStatus", {}).get("Details", ())
                states = [one.get("Status") for one in details if one.get("Name") == "initialization-state"]
                found[each["VolumeId"]] = "initializing" not in states
        return found

    # --- by name, and other resources --------------------------------------------------------------------------

    def _names(self, keys: Sequence[NameKey]) -> dict[NameKey, tuple[Ec2Volume, ...]]:
        found: dict[NameKey, list[Ec2Volume]] = {}
        for chunk in chunks(sorted({name for _, name in keys}), _MAX_FILTER_VALUES):
            filters = [_filter(f"tag:{ownership_tags.VOLUME}", chunk)]
            for response in self._all(self.names, Action.DESCRIBE_VOLUMES, "Volumes", Filters=filters):
                volume = Ec2Volume.of(response)
                key = (volume.tags.get(ownership_tags.CLUSTER, ""), volume.tags.get(ownership_tags.VOLUME, ""))
                found.setdefault(key, []).append(volume)
        return {
            key: tuple(sorted(volumes, key=lambda volume: (volume.created, volume.id)))
            for key, volumes in found.items()
        }

    # --- snapshots ----------------------------------------------------------------------------------------------

    def _snapshot_names(self, keys: Sequence[NameKey]) -> dict[NameKey, tuple[Ec2Snapshot, ...]]:
        found: dict[NameKey, list[Ec2Snapshot]] = {}
        official = ownership_tags.OFFICIAL
        for tag, names in (
            (ownership_tags.SNAPSHOT, {name for cluster, name in keys if cluster != official.name}),
            (official.snapshot, {name for cluster, name in keys if cluster == official.name}),
        ):
            for chunk in chunks(sorted(names), _MAX_FILTER_VALUES):
                for snapshot in self._own_snapshots(self.snapshot_names, f"tag:{tag}", chunk):
                    cluster = snapshot.tags.get(ownership_tags.CLUSTER, "")
                    key = (official.name if tag == official.snapshot else cluster, snapshot.tags.get(tag, ""))
                    found.setdefault(key, []).append(snapshot)
        return {
            key: tuple(sorted(each, key=lambda snapshot: (snapshot.started, snapshot.id)))
            for key, each in found.items()
        }

    def _own_snapshots(self, poller: StatePoller[Any, Any], name: str, values: Sequence[str]) -> list[Ec2Snapshot]:
        """Return the account's snapshots by a filter, which fails for no unknown value."""
        parameters = {"OwnerIds": ["self"], "Filters": [_filter(name, values)]}
        answers = self._all(poller, Action.DESCRIBE_SNAPSHOTS, "Snapshots", **parameters)
        found = [Ec2Snapshot.of(each) for each in answers]
        self.account = found[0].account if found else self.account
        return found

    def _snapshots(self, ids: Sequence[str]) -> dict[str, Ec2Snapshot]:
        """Read the account's own, then those that other accounts share, which only their ids show."""
        found: dict[str, Ec2Snapshot] = {}
        for chunk in chunks(ids, _MAX_FILTER_VALUES):
            found.update((each.id, each) for each in self._own_snapshots(self.snapshots, "snapshot-id", chunk))
            others = [id_ for id_ in chunk if id_ not in found]
            action = Action.DESCRIBE_SNAPSHOTS
            shared, _unknown = self._by_ids(self.snapshots, action, "Snapshots", "SnapshotIds", others)
            for each in map(Ec2Snapshot.of, shared):
                found[each.id] = replace(each, shared=each.account != self.account)
        return found

    def _locks(self, ids: Sequence[str]) -> dict[str, str]:
        action = Action.DESCRIBE_LOCKED_SNAPSHOTS
        found: dict[str, str] = {}
        for chunk in chunks(ids, _MAX_FILTER_VALUES):
            locked, _gone = self._by_ids(self.locks, action, "Snapshots", "SnapshotIds", chunk)
            found.update((each["SnapshotId"], str(each.get("LockState", ""))) for each in locked)
        return found

    def _fast_restores(self, ids: Sequence[str]) -> dict[str, dict[str, str]]:
        found: dict[str, dict[str, str]] = {}
        for chunk in chunks(ids, _MAX_FILTER_VALUES):
            filters = [_filter("snapshot-id", chunk)]
            action = Action.DESCRIBE_FAST_SNAPSHOT_RESTORES
            for each in self._all(self.fast_restores, action, "FastSnapshotRestores", Filters=filters):
                found.setdefault(each["SnapshotId"], {})[each.get("AvailabilityZone", "")] = str(each.get("State", ""))
        return found

    def _instances(self, ids: Sequence[str]) -> dict[str, Ec2Instance]:
        found: dict[str, Ec2Instance] = {}
        for chunk in chunks(ids, _MAX_INSTANCES):
            filters = [_filter("instance-id", chunk)]
            for reservation in self._all(self.instances, Action.DESCRIBE_INSTANCES, "Reservations", Filters=filters):
                found.update((each["InstanceId"], Ec2Instance.of(each)) for each in reservation["Instances"])
        return found

    def _modifications(self, ids: Sequence[str]) -> dict[str, VolumeModification]:
        found: dict[str, VolumeModification] = {}
        for chunk in chunks(ids, _MAX_FILTER_VALUES):
            filters = [_filter("volume-id", chunk)]
            action = Action.DESCRIBE_VOLUMES_MODIFICATIONS
            for response in self._all(self.modifications, action, "VolumesModifications", Filters=filters):
                found[response["VolumeId"]] = VolumeModification.of(response)
        return found

    def _by_ids(
        self, poller: StatePoller[Any, Any], action: Action, field: str, parameter: str, ids: Sequence[str]
    ) -> tuple[list[Mapping[str, Any]], list[str]]:
        """Return the items with these ids, and the ids that made the call fail: unknown or malformed ones."""
        return read_without_bad_ids(
            ids,
            lambda some: self._all(poller, action, field, **{parameter: list(some)}),
            is_bad=lambda error: error.code in _BAD_ID,
            named=lambda error: _IDS[parameter].findall(error.message),
        )

    def _all(
        self, poller: StatePoller[Any, Any], action: Action, field: str, **parameters: Any
    ) -> list[Mapping[str, Any]]:
        """Return the items of every page. Slows the poller down when EC2 throttles."""
        items: list[Mapping[str, Any]] = []
        token: dict[str, str] = {}
        while True:
            with poller.pacing(is_throttled):
                answer = self._client.call(action, **parameters, **token)
            items += answer.get(field, ())
            following = answer.get("NextToken")
            if not following:
                return items
            token = {"NextToken": following}


def _filter(name: str, values: Sequence[str]) -> dict[str, object]:
    return {"Name": name, "Values": list(values)}
