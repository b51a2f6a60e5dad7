"""The state of a mocked project: its resources, known requestIds, and running operations."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from volplane_gce_pd.testing.behaviour import Behaviour
from volplane_gce_pd.testing.errors import ComputeError, bad_request, not_found
from volplane_gce_pd.testing.records import (
    URL,
    DiskRecord,
    InstanceRecord,
    OperationRecord,
    SnapshotRecord,
)
from volplane_testing.cloud import DiskContents, Fault, MemoryContents, Timeline

_EPOCH = 1_767_225_600.0  # 2026-01-01T00:00:00Z is second 0 of the clock.
_OPERATION_CODES = {
    "quotaExceeded": ("QUOTA_EXCEEDED", 403),
    "zoneResourcePoolExhausted": ("ZONE_RESOURCE_POOL_EXHAUSTED", 503),
    "resourceInUseByAnotherResource": ("RESOURCE_IN_USE_BY_ANOTHER_RESOURCE", 400),
    "limitExceeded": ("LIMIT_EXCEEDED", 400),
    "notFound": ("RESOURCE_NOT_FOUND", 404),
    "invalid": ("INVALID_USAGE", 400),
    "resourceNotReady": ("RESOURCE_NOT_READY", 400),
    "forbidden": ("PERMISSIONS_ERROR", 403),
    "unsupportedOperation": ("UNSUPPORTED_OPERATION", 400),
}
"""Reason of an HTTP error -> code of an operation's error for the same, and its HTTP status."""


@dataclass(frozen=True, slots=True)
class _Known:
    """A requestId: what it was used for, and the operation."""

    request: str
    operation: OperationRecord
    expires: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """What an operation does."""

    begin: Callable[[], None] = lambda: None
    """When its turn comes, may raise ComputeError."""
    end: Callable[[], None] = lambda: None
    """When it is done."""
    undo: Callable[[], None] = lambda: None
    """Instead of `end`, when it has failed."""


class _Running:
    """An operation from its turn to its end."""

    def __init__(
        self,
        project: Project,
        operation: OperationRecord,
        effect: Effect,
        vm: InstanceRecord | None,
        fault: Fault | None,
        *,
        stalled: bool,
    ) -> None:
        self._project = project
        self._operation = operation
        self._effect = effect
        self._vm = vm
        self._fault = fault
        self._stalled = stalled
        self.seconds = project.behaviour.seconds(operation.method)

    def run(self) -> None:
        """Run the operation: its turn has come."""
        self._operation.status = "RUNNING"
        try:
            self._effect.begin()
        except ComputeError as error:
            self._operation.error, self._operation.error_status = _operation_error(error)
            self._project.timeline.after(self.seconds, self._finish)
            return
        if not self._stalled:
            self._project.timeline.after(self.seconds, self._complete)

    def _complete(self) -> None:
        if self._fault is None:
            self._effect.end()
        else:
            self._effect.undo()
            self._operation.error = (self._fault.code, self._fault.message)
            self._operation.error_status = self._fault.status or 400
        self._finish()

    def _finish(self) -> None:
        self._operation.status = "DONE"
        if self._vm is not None:
            self._vm.queued -= 1
        self._project.timeline.after(
            self._project.behaviour.operation_kept, lambda: self._project.forget(self._operation)
        )


def _operation_error(error: ComputeError) -> tuple[tuple[str, str], int]:
    code, status = _OPERATION_CODES.get(error.code, (error.code, error.status))
    return (code, error.message), status


class Project:
    """The resources of the project and their clock. Not safe for threads: FakeCompute locks it."""

    def __init__(self, behaviour: Behaviour, timeline: Timeline) -> None:
        self.behaviour = behaviour
        self.timeline = timeline
        self.disks: dict[tuple[str, str], DiskRecord] = {}
        self.instances: dict[tuple[str, str], InstanceRecord] = {}
        self.snapshots: dict[str, SnapshotRecord] = {}
        self.images: dict[str, SnapshotRecord] = {}
        self.operations: dict[tuple[str, str], OperationRecord] = {}
        self.contents: DiskContents = MemoryContents()
        """By the paths of disks, snapshots and images."""
        self.last_snapshot: dict[int, float] = {}
        """By id of the disk: when its last snapshot was begun."""
        self.minute: tuple[int, Counter[str]] = (-1, Counter())
        """Calls of the running minute by group."""
        self.stalled = False
        """Whether the operation that the current call starts never ends."""
        self.failing: Fault | None = None
        """Why the operation that the current call starts fails; None if it succeeds."""
        self.requests: dict[str, _Known] = {}
        self._last = 0

    @property
    def now(self) -> float:
        """Return the seconds of the clock, up to which events have run."""
        return self.timeline.now

    def number(self) -> int:
        """Return the next number: a later resource has a higher one."""
        self._last += 1
        return self._last

    def unix_time(self) -> float:
        """Return the Unix time now."""
        return _EPOCH + self.now

    def stamp(self) -> str:
        """Return the time now, as in answers."""
        return datetime.fromtimestamp(self.unix_time(), UTC).isoformat(timespec="milliseconds")

    # --- resources ----------------------------------------------------------------------------------------------

    def require_place(self, place: str) -> None:
        """Raise notFound unless the zone or region exists."""
        kind, _, where = place.partition("/")
        known = self.behaviour.zones if kind == "zones" else (self.behaviour.region,)
        if where not in known:
            raise not_found(f"projects/{self.behaviour.project}/{place}")

    def disk(self, place: str, name: str) -> DiskRecord:
        """Return the disk. Raises notFound."""
        self.require_place(place)
        found = self.disks.get((place, name))
        if found is None:
            raise not_found(f"projects/{self.behaviour.project}/{place}/disks/{name}")
        return found

    def disk_at(self, url: str, field: str) -> DiskRecord:
        """Return the disk of a relative or full URL in a request. Raises notFound and invalid."""
        path = url.removeprefix(URL)
        parts = path.split("/")
        if len(parts) != 6 or parts[0] != "projects" or parts[4] != "disks":
            raise bad_request(field, url, "The URL is malformed.")
        if parts[1] != self.behaviour.project:
            raise not_found(path)
        return self.disk(f"{parts[2]}/{parts[3]}", parts[5])

    def instance(self, zone: str, name: str) -> InstanceRecord:
        """Return the virtual machine. Raises notFound."""
        self.require_place(f"zones/{zone}")
        found = self.instances.get((zone, name))
        if found is None:
            raise not_found(f"projects/{self.behaviour.project}/zones/{zone}/instances/{name}")
        return found

    def snapshot(self, name: str, kind: str = "snapshots", project: str = "") -> SnapshotRecord:
        """Return the snapshot, or the image. project: of the call. Raises notFound."""
        found = (self.images if kind == "images" else self.snapshots).get(name)
        where = project or self.behaviour.project
        if found is None or (found.project or self.behaviour.project) != where:
            raise not_found(f"projects/{where}/global/{kind}/{name}")
        return found

    # --- operations ---------------------------------------------------------------------------------------------

    def known_request(self, method: str, params: Mapping[str, Any]) -> OperationRecord | None:
        """Return the operation of an earlier call with this requestId. Raises invalid if that was another call."""
        given = params.get("requestId")
        if given is None:
            return None
        known = self.requests.get(given)
        if known is None or known.expires <= self.now:
            return None
        if known.request != _canonical(method, params):
            raise bad_request("requestId", given, "It was used for another request.")
        return known.operation

    def operate(
        self,
        method: str,
        params: Mapping[str, Any],
        place: str,
        target: str,
        effect: Effect,
        *,
        vm: InstanceRecord | None = None,
        seconds: float | None = None,
    ) -> OperationRecord:
        """Start an operation. target: path of the resource. vm: in whose queue it waits for its turn. seconds: how long
        it runs, None = as the behaviour says of its method.
        """
        number = self.number()
        operation = OperationRecord(
            place=place,
            name=f"operation-{number:06d}",
            id=number,
            method=method,
            target=target,
            created=self.stamp(),
        )
        self.operations[place, operation.name] = operation
        if (given := params.get("requestId")) is not None:
            expires = self.now + self.behaviour.request_id_kept
            self.requests[given] = _Known(_canonical(method, params), operation, expires)
        running = _Running(self, operation, effect, vm, self.failing, stalled=self.stalled)
        running.seconds = running.seconds if seconds is None else seconds
        waits = 0.0
        if vm is not None:
            vm.queued += 1
            waits = max(vm.free_at - self.now, 0.0)
            vm.free_at = self.now + waits + running.seconds
        if waits > 0:
            self.timeline.after(waits, running.run)
        else:
            running.run()
        return operation

    def forget(self, operation: OperationRecord) -> None:
        """Forget operations that finished long ago."""
        self.operations.pop((operation.place, operation.name), None)

    def found_while_running(self, error: ComputeError) -> None:
        """Raise an error that Compute Engine finds while an operation runs, where the behaviour tells it by HTTP."""
        if self.behaviour.shape == "http":
            raise error

    def used_gb(self, *, ssd: bool) -> int:
        """Return the size of all disks that count for a quota."""
        rules = self.behaviour.disk_types
        return sum(disk.size for disk in self.disks.values() if rules[disk.kind].ssd is ssd)

    def in_zones(self, zones: Iterable[str]) -> bool:
        """Return whether one of these zones is without room."""
        return not self.behaviour.stock_outs.isdisjoint(zones)


def _canonical(method: str, params: Mapping[str, Any]) -> str:
    return json.dumps([method, {**params}], sort_keys=True, default=str)
