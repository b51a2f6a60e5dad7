"""The boards of a driver: volumes by id and by name, instances, modifications; each fetched for many callers at once."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from volplane_aws_ebs import ownership_tags
from volplane_aws_ebs.api import AwsRefusal, Call, Gateway
from volplane_aws_ebs.errors import GONE, THROTTLED
from volplane_aws_ebs.polling import Board
from volplane_aws_ebs.resources import InstanceSeen, ModificationSeen, SnapshotSeen, VolumeSeen, chunks

__all__ = ["Lookups", "NameKey"]

_MOST_IDS = 500
_MOST_FILTER_VALUES = 200
_MOST_INSTANCES = 100
_ODD_SECONDS = 3_600.0
_STATE_INTERVAL = 0.5
_NAME_INTERVAL = 0.5
_INSTANCE_INTERVAL = 0.5
_VOLUME_ID = re.compile(r"vol-[0-9a-z]+")

T = TypeVar("T")
NameKey = tuple[str, str]
"""Cluster id and name: what a volume or snapshot is found by."""


class Lookups:
    """What EC2 says, shared by all operations of a driver. Safe for threads."""

    def __init__(self, gateway: Gateway, clock: Callable[[], float]) -> None:
        self._gateway = gateway
        self._clock = clock
        self._odd: dict[str, float] = {}
        """Ids that are probably gone: one of them would fail a call for 500."""
        self.volumes: Board[str, VolumeSeen] = Board(self._volumes, clock=clock, interval=_STATE_INTERVAL)
        self.names: Board[NameKey, tuple[VolumeSeen, ...]] = Board(self._names, clock=clock, interval=_NAME_INTERVAL)
        self.instances: Board[str, InstanceSeen] = Board(self._instances, clock=clock, interval=_INSTANCE_INTERVAL)
        self.modifications: Board[str, ModificationSeen] = Board(
            self._modifications, clock=clock, interval=_STATE_INTERVAL
        )
        self.snapshots: Board[NameKey, tuple[SnapshotSeen, ...]] = Board(
            self._snapshots, clock=clock, interval=_NAME_INTERVAL
        )

    def expect_gone(self, volume: str) -> None:
        """It will not be found much longer: ask for it apart from the others."""
        self._odd[volume] = self._clock() + _ODD_SECONDS

    # --- volumes by id ------------------------------------------------------------------------------------------

    def _volumes(self, ids: Sequence[str]) -> dict[str, VolumeSeen]:
        now = self._clock()
        self._odd = {id_: until for id_, until in self._odd.items() if until > now}
        odd = [id_ for id_ in ids if id_ in self._odd]
        found: dict[str, VolumeSeen] = {}
        if odd and len(ids) <= _MOST_FILTER_VALUES:
            odd = list(ids)  # One call for all of them.
        for chunk in chunks([id_ for id_ in ids if id_ not in odd], _MOST_IDS):
            seen, missing = self._known_volumes(chunk)
            found.update(seen)
            odd += missing
        for chunk in chunks(odd, _MOST_FILTER_VALUES):
            shown = self._all(self.volumes, Call.DESCRIBE_VOLUMES, "Volumes", Filters=[_filter("volume-id", chunk)])
            found.update((each["VolumeId"], VolumeSeen.of(each)) for each in shown)
        for id_ in ids:
            if id_ not in found:
                self._odd.setdefault(id_, now + _ODD_SECONDS)
            elif not found[id_].going:
                self._odd.pop(id_, None)
        return found

    def _known_volumes(self, ids: Sequence[str]) -> tuple[dict[str, VolumeSeen], list[str]]:
        """What exists of the ids, and which of them made the call fail."""
        missing: list[str] = []
        left = list(ids)
        while left:
            try:
                shown = self._all(self.volumes, Call.DESCRIBE_VOLUMES, "Volumes", VolumeIds=left)
            except AwsRefusal as refusal:
                if refusal.code not in GONE:
                    raise
                named = set(_VOLUME_ID.findall(refusal.message)).intersection(left)
                missing += [id_ for id_ in left if id_ in named or not named]
                left = [id_ for id_ in left if id_ not in named] if named else []
                continue
            return {each["VolumeId"]: VolumeSeen.of(each) for each in shown}, missing
        return {}, missing

    # --- the others ---------------------------------------------------------------------------------------------

    def _names(self, keys: Sequence[NameKey]) -> dict[NameKey, tuple[VolumeSeen, ...]]:
        found: dict[NameKey, list[VolumeSeen]] = {}
        for chunk in chunks(sorted({name for _, name in keys}), _MOST_FILTER_VALUES):
            filters = [_filter(f"tag:{ownership_tags.VOLUME}", chunk)]
            for shown in self._all(self.names, Call.DESCRIBE_VOLUMES, "Volumes", Filters=filters):
                seen = VolumeSeen.of(shown)
                key = (seen.tags.get(ownership_tags.CLUSTER, ""), seen.tags.get(ownership_tags.VOLUME, ""))
                found.setdefault(key, []).append(seen)
        return {key: tuple(sorted(volumes, key=lambda seen: (seen.created, seen.id))) for key, volumes in found.items()}

    def _snapshots(self, keys: Sequence[NameKey]) -> dict[NameKey, tuple[SnapshotSeen, ...]]:
        found: dict[NameKey, list[SnapshotSeen]] = {}
        for chunk in chunks(sorted({name for _, name in keys}), _MOST_FILTER_VALUES):
            demand = {"OwnerIds": ["self"], "Filters": [_filter(f"tag:{ownership_tags.SNAPSHOT}", chunk)]}
            for shown in self._all(self.snapshots, Call.DESCRIBE_SNAPSHOTS, "Snapshots", **demand):
                seen = SnapshotSeen.of(shown)
                key = (seen.tags.get(ownership_tags.CLUSTER, ""), seen.tags.get(ownership_tags.SNAPSHOT, ""))
                found.setdefault(key, []).append(seen)
        return {key: tuple(sorted(each, key=lambda seen: (seen.started, seen.id))) for key, each in found.items()}

    def _instances(self, ids: Sequence[str]) -> dict[str, InstanceSeen]:
        found: dict[str, InstanceSeen] = {}
        for chunk in chunks(ids, _MOST_INSTANCES):
            filters = [_filter("instance-id", chunk)]
            for reservation in self._all(self.instances, Call.DESCRIBE_INSTANCES, "Reservations", Filters=filters):
                found.update((each["InstanceId"], InstanceSeen.of(each)) for each in reservation["Instances"])
        return found

    def _modifications(self, ids: Sequence[str]) -> dict[str, ModificationSeen]:
        found: dict[str, ModificationSeen] = {}
        for chunk in chunks(ids, _MOST_FILTER_VALUES):
            filters = [_filter("volume-id", chunk)]
            call = Call.DESCRIBE_VOLUMES_MODIFICATIONS
            for shown in self._all(self.modifications, call, "VolumesModifications", Filters=filters):
                found[shown["VolumeId"]] = ModificationSeen.of(shown)
        return found

    def _all(self, board: Board[Any, Any], call: Call, field: str, **parameters: Any) -> list[Mapping[str, Any]]:
        """Every page of the answer."""
        items: list[Mapping[str, Any]] = []
        token: dict[str, str] = {}
        while True:
            try:
                answer = self._gateway.call(call, **parameters, **token)
            except AwsRefusal as refusal:
                if refusal.code in THROTTLED:
                    board.slow_down()
                raise
            board.speed_up()
            items += answer.get(field, ())
            following = answer.get("NextToken")
            if not following:
                return items
            token = {"NextToken": following}


def _filter(name: str, values: Sequence[str]) -> dict[str, object]:
    return {"Name": name, "Values": list(values)}
